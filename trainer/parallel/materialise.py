"""From the meta device to initial weights: each rank draws only the rows that it holds.

Chunks are built and wrapped without memory; afterwards every parameter gets its storage and the piece of the initial
weights that its layout names, so an 8B model never exists whole on a rank that holds a part of it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainer.config import ModelConfig
from trainer.model.decoder import Decoder
from trainer.model.initialise import initial_rows


def local_piece(parameter: Tensor, shape: torch.Size) -> tuple[slice, ...]:
    """Which part of the full parameter of `shape` this rank holds."""
    if not isinstance(parameter, DTensor):
        return tuple(slice(0, size) for size in shape)
    sizes, offsets = compute_local_shape_and_global_offset(shape, parameter.device_mesh, parameter.placements)
    return tuple(slice(offset, offset + size) for size, offset in zip(sizes, offsets, strict=True))


@torch.no_grad()
def materialise(parts: list[Decoder], config: ModelConfig, seed: int, device: torch.device) -> None:
    """Give all parameters storage on `device` and their initial values; build the rotary tables."""
    for part in parts:
        part.to_empty(device=device)
        part.build_tables(device)
    for name, parameter in (pair for part in parts for pair in part.named_parameters()):
        rows, *others = local_piece(parameter, parameter.shape)
        values = initial_rows(config, seed, name, parameter.shape, rows.start, rows.stop)
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        local.copy_(values[(slice(None), *others)])
