"""RMSNorm, with a float32 CPU path of few memory passes; elsewhere torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Normalise(torch.autograd.Function):
    """y = x w / rms(x). With g the gradient of y and C the width:
    dx = g w / rms - x (g w . x) / (C rms^3), dw = sum over rows of g x / rms."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        inverse = mean.add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        width = x.shape[-1]
        product = gradients[0] * x
        rows = product.view(-1, width)
        grad_weight = torch.mv(rows.t(), inverse.view(-1))
        pull = torch.mv(rows, weight).view(inverse.shape).mul_(inverse.pow(3)).div_(-width)
        grad_x = torch.mul(gradients[0], weight, out=product).mul_(inverse).addcmul_(x, pull)
        return grad_x, grad_weight, None


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dim (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps
        self.shared: Callable[[Tensor], Tensor] | None = None
        """Under tensor parallelism: makes the weight's gradient the sum over ranks that each see only some heads."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.shared is None else self.shared(self.weight)
        weight = weight.to(x.dtype)
        if x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling():
            normalised: Tensor = _Normalise.apply(x.contiguous(), weight, self.eps)
            return normalised
        return F.rms_norm(x, weight.shape, weight, self.eps)
