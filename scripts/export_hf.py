"""Write a checkpoint's weights as a folder that transformers loads with `from_pretrained`.

    python scripts/export_hf.py runs/RUN OUT_FOLDER                        # the newest verified checkpoint of a run
    python scripts/export_hf.py runs/RUN/checkpoints/step-00000040 OUT_FOLDER --dtype bfloat16

Whatever the layout that trained it, whole tensors are read and written one after the other; the checkpoint's
checksums are verified first. The model's sizes come from the checkpoint itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from trainer.checkpoint.catalog import MANIFEST, Catalog
from trainer.checkpoint.loader import load
from trainer.config import ModelConfig
from trainer.model.decoder import Decoder
from trainer.model.huggingface import save_hf_folder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def find_checkpoint(path: Path) -> tuple[Path, dict[str, Any]]:
    """The verified checkpoint that `path` means (itself, or the newest of a run or checkpoint folder), and its
    manifest. Raises ValueError if there is none, or if the one named is damaged."""
    if (path / MANIFEST).exists():
        return path, Catalog(path.parent).verify(path)
    for folder in (path / "checkpoints", path):
        if folder.is_dir():
            catalog = Catalog(folder)
            found = catalog.newest_verified()
            for message in catalog.messages:
                print(message, file=sys.stderr)
            if found is not None:
                return found
    raise ValueError(f"{path} is neither a verified checkpoint nor a run or folder with one")


def model_config(manifest: dict[str, Any]) -> ModelConfig:
    """Sizes of the model that a checkpoint holds."""
    merged = OmegaConf.merge(OmegaConf.structured(ModelConfig), manifest["extra"]["config"]["model"])
    config = OmegaConf.to_object(merged)
    assert isinstance(config, ModelConfig)
    return config


def full_tensors(path: Path, parts: int, config: ModelConfig, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The weights under the decoder's names, read one at a time."""
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in Decoder(config, 1).named_parameters()}
    for name, shape in shapes.items():
        tensor = torch.empty(shape)
        load(path, parts, {f"model/{name}": tensor})
        yield name, tensor.to(dtype)


def main(arguments: list[str] | None = None) -> int:
    """Run; exit status 2 for what the caller can mend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a run folder, a folder of checkpoints, or one checkpoint")
    parser.add_argument("out", type=Path, help="folder to write; must not exist or be empty")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="type of the weights; default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        if options.out.exists() and any(options.out.iterdir()):
            raise ValueError(f"{options.out} is not empty; name a new folder")
        path, manifest = find_checkpoint(options.checkpoint)
        config, length = model_config(manifest), manifest["extra"]["config"]["train"]["sequence_length"]
        tensors = full_tensors(path, manifest["parts"], config, DTYPES[options.dtype])
        save_hf_folder(str(options.out), config, tensors, length)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{path} -> {options.out} (step {manifest['step']}, {config.name})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
