"""Reading a verified checkpoint into the state of a run, whatever the layout of either.

Each rank reads the slices that it holds, by itself: no collective, so a slow or dead peer cannot stop it here.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def load(path: str | os.PathLike[str], parts: int, into: dict[str, Tensor]) -> None:
    """Fill the tensors of `into` in place from the `parts` parts of the checkpoint at `path`.

    The checkpoint must have been verified: torch.distributed.checkpoint itself does not notice altered bytes.

    Raises:
        ValueError: the checkpoint lacks a tensor, or holds it with another shape or type (another model).
    """
    missing = dict(into)
    for index in range(parts):
        folder = Path(path) / f"part-{index}"
        held = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        wanted = {name: missing.pop(name) for name in list(missing) if name in held}
        for name, tensor in wanted.items():
            _check_fits(path, name, tensor, held[name])
        if wanted:
            planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
            dcp.load(wanted, storage_reader=dcp.FileSystemReader(folder), planner=planner, no_dist=True)
    if missing:
        raise ValueError(
            f"checkpoint {path} has no {min(missing)} (and {len(missing) - 1} more): it is of another model; "
            "set the model it was made with, or checkpoint.resume=never"
        )


def _check_fits(path: str | os.PathLike[str], name: str, tensor: Tensor, held: object) -> None:
    assert isinstance(held, TensorStorageMetadata), f"{name} was not saved as a tensor"
    if held.size != tensor.shape or held.properties.dtype != tensor.dtype:
        raise ValueError(
            f"checkpoint {path} holds {name} as {tuple(held.size)} {held.properties.dtype}, the run needs "
            f"{tuple(tensor.shape)} {tensor.dtype}: set the model it was made with, or checkpoint.resume=never"
        )
