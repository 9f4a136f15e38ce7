"""Make a checkpoint at step 0 of weights that transformers wrote, so that a run starts from them.

    python scripts/import_hf.py HF_FOLDER OUT_FOLDER
    python -m trainer model.hf=HF_FOLDER checkpoint.resume=OUT_FOLDER/step-00000000 ...

Any layout can start from it, since checkpoints do not depend on one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from trainer.checkpoint.catalog import Catalog
from trainer.checkpoint.state import training_state
from trainer.checkpoint.writer import CheckpointWriter
from trainer.config import Config, ModelConfig, OptimConfig, to_dict
from trainer.model.decoder import Decoder
from trainer.model.huggingface import from_hf_state, model_config_from_hf
from trainer.optim import build_optimizer


def load_parameters(path_or_name: str, config: ModelConfig) -> list[tuple[str, nn.Parameter]]:
    """The decoder's parameters in float32, filled from a folder or hub name of transformers.

    Raises ValueError if weights are missing, or are not the decoder's.
    """
    from transformers import AutoModelForCausalLM

    try:
        reference = AutoModelForCausalLM.from_pretrained(path_or_name, dtype=torch.float32)
    except OSError as error:
        raise ValueError(f"{path_or_name} has no weights that transformers can read: {error}") from error
    with torch.device("meta"):
        decoder = Decoder(config, 1)
    try:
        decoder.load_state_dict(from_hf_state(reference.state_dict(), config), assign=True)
    except RuntimeError as error:
        raise ValueError(f"{path_or_name}: {error}") from error
    return list(decoder.named_parameters())


def main(arguments: list[str] | None = None) -> int:
    """Run; exit status 2 for what the caller can mend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or hub name that transformers loads")
    parser.add_argument("out", type=Path, help="folder of checkpoints to write into")
    options = parser.parse_args(arguments)
    catalog, failures = Catalog(options.out), []
    try:
        if catalog.exists(0):
            raise ValueError(f"{options.out} already has a checkpoint of step 0; name another folder")
        config = model_config_from_hf(options.model)
        parameters = load_parameters(options.model, config)
        state = training_state(parameters, build_optimizer(parameters, OptimConfig()))
        writer = CheckpointWriter(
            catalog,
            group=0,
            asynchronous=False,
            on_event=lambda event: failures.append(event) if event["status"] != "written" else None,
        )
        writer.save(0, 0, 0, 1, state, {"step": 0, "config": to_dict(Config(run_dir="", model=config))})
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if failures:
        print(f"not written: {failures[0].get('reason')}", file=sys.stderr)
        return 1
    print(f"{options.model} -> {options.out / 'step-00000000'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
