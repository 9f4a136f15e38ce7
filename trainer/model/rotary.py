"""Rotary position embedding: frequency tables and their application.

The rotation pairs element i of a head with element i + head_dim/2 (the layout of transformers' Llama and Qwen3), so
that weights are exchanged with transformers without permutation. The tables depend on the config alone; they are
built once and shared by all layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

SUPPORTED_SCALING = ("default", "linear", "llama3")


def inverse_frequencies(head_dim: int, theta: float, scaling: dict[str, Any] | None = None) -> Tensor:
    """Angular frequency of each pair of a head, [head_dim/2], float32.

    Scaling "llama3" slows the frequencies whose wavelength exceeds the original context and interpolates in between
    (Llama 3.1; the formula is that of transformers' `_compute_llama3_parameters`). Raises ValueError for a scaling
    that is not supported.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    kind = (scaling or {}).get("rope_type", "default")
    if kind == "default":
        return frequencies
    if kind not in SUPPORTED_SCALING:
        raise ValueError(f"model.rope_scaling.rope_type={kind} is not supported; one of {', '.join(SUPPORTED_SCALING)}")
    assert scaling is not None
    factor = float(scaling["factor"])
    if kind == "linear":
        return frequencies / factor
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    smooth = ((context / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / factor + smooth * frequencies


def rotary_tables(positions: int, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of an element and of its partner at each position, each [positions, 1, head_dim], float32.

    With angles a the first half of a head becomes x1 cos a - x2 sin a, the second x2 cos a + x1 sin a; the signs of
    the sines are in the second table.
    """
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=frequencies.device), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)


def _rotated(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    partner = torch.roll(x_BTHD, x_BTHD.shape[-1] // 2, dims=-1)
    return torch.addcmul(x_BTHD * cos, partner, sin)


class _Rotate(torch.autograd.Function):
    """The rotation; its gradient is the rotation by the opposite angle, so nothing of x is kept."""

    @staticmethod
    def forward(ctx: Any, x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x_BTHD, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(gradients[0], cos, -sin), None, None


def rotate(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys [B, T, heads, head_dim] by `rotary_tables` [T, 1, head_dim] of x's dtype."""
    if torch.compiler.is_compiling():
        return _rotated(x_BTHD, cos, sin)
    rotated: Tensor = _Rotate.apply(x_BTHD, cos, sin)
    return rotated
