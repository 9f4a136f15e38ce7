"""The linear layer: computes in the dtype of its input, on the local part of its weight, adding gradients in place.

Where the weight's `.grad` is preset, the product that gives its gradient is accumulated straight into it (Megatron-LM's
"gradient accumulation fusion"), instead of being written to memory, read again and added.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies on this rank: all of it unless tensor parallelism made it a DTensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


_LIBRARY = torch.library.Library("spare_trainer", "DEF")
_LIBRARY.define(
    "add_weight_gradient(Tensor(a!) grad, Tensor grad_out, Tensor x) -> ()", tags=(torch.Tag.flexible_layout,)
)


@torch.library.impl(_LIBRARY, "add_weight_gradient", "CompositeExplicitAutograd")
def _add_weight_gradient(grad: Tensor, grad_out: Tensor, x: Tensor) -> None:
    """grad [out, in] += grad_out [rows, out]^T @ x [rows, in]; an operator of its own, which is compiled around."""
    grad.addmm_(grad_out.t(), x)


@torch.library.register_fake("spare_trainer::add_weight_gradient", lib=_LIBRARY)
def _(grad: Tensor, grad_out: Tensor, x: Tensor) -> None:
    return None


class _AccumulatingLinear(torch.autograd.Function):
    """x @ weight^T, whose backward adds to `grad` itself. Autograd runs the weight's hooks all the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.grad = grad  # not saved by autograd, which would object to what other micro-batches add to it meanwhile
        return F.linear(x, local(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        rows, x_rows = gradients[0].flatten(0, -2), x.flatten(0, -2)
        if torch.compiler.is_compiling():
            torch.ops.spare_trainer.add_weight_gradient(ctx.grad, rows, x_rows)
        else:
            _add_weight_gradient(local(ctx.grad), rows, x_rows)
        return (gradients[0] @ local(weight) if ctx.needs_input_grad[0] else None), None, None


class Linear(nn.Linear):
    """A linear layer without bias."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self._accumulates(x):
            out: Tensor = _AccumulatingLinear.apply(x, self.weight, self.weight.grad)
            return out
        return F.linear(x, local(self.weight).to(x.dtype))

    def _accumulates(self, x: Tensor) -> bool:
        """Whether a backward pass would find a gradient of the right kind to add to."""
        weight = self.weight
        return (
            torch.is_grad_enabled()
            and weight.grad is not None
            and not (isinstance(weight, DTensor) and torch.compiler.is_compiling())
            and weight.requires_grad
            and weight.is_leaf
            and weight.grad.dtype == weight.dtype == x.dtype
        )
