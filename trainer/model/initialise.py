"""Initial weights as a function of (seed, parameter name, row block): the same full weights in every layout.

Each block of rows has its own generator, so that a rank draws only the rows that it holds and no rank ever needs the
whole model. The generators live on the CPU, so that CPU and CUDA start from the same weights.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from trainer.config import ModelConfig

BLOCK_ROWS = 512
"""Rows of a matrix that share one generator; part of what the seed means."""


def _block_seed(seed: int, name: str, block: int) -> int:
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def initial_std(config: ModelConfig, name: str) -> float:
    """Standard deviation of a matrix: model.init_std, and 1/sqrt(2 x layers) of it for the projections that write into
    the residual stream (GPT-2, "Language Models are Unsupervised Multitask Learners", section 2.3)."""
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return config.init_std / math.sqrt(2 * config.layers)
    return config.init_std


def initial_rows(config: ModelConfig, seed: int, name: str, shape: torch.Size, first: int, last: int) -> Tensor:
    """Rows [first, last) of the full parameter `name` of `shape`, float32 on the CPU.

    Vectors (the norms' weights) are ones; matrices are normal with `initial_std`.
    """
    if len(shape) == 1:
        return torch.ones(last - first)
    std = initial_std(config, name)
    pieces = []
    for block in range(first // BLOCK_ROWS, -(-last // BLOCK_ROWS)):
        begin, end = block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, shape[0])
        generator = torch.Generator().manual_seed(_block_seed(seed, name, block))
        rows = torch.empty(end - begin, *shape[1:]).normal_(0.0, std, generator=generator)
        pieces.append(rows[max(first, begin) - begin : min(last, end) - begin])
    return torch.cat(pieces) if pieces else torch.empty(0, *shape[1:])
