"""Output projection and cross-entropy in one step, without ever holding all the logits.

Logits of a large vocabulary are the largest tensor of a step. Here rows of tokens are taken in chunks: their logits
are computed, turned into the loss and, in the same buffer, into the gradient of the logits, and used at once for the
gradients of the hidden states and of the weight (as Liger Kernel does, "Liger Kernel: Efficient Triton Kernels for
LLM Training", 2024). The backward pass then only hands these out. With a process group the weight holds a slice of
the vocabulary per rank (Megatron-LM's vocabulary-parallel cross-entropy).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CHUNK_ELEMENTS_CPU = 2**20
"""Logits per chunk on CPU: about the share of the last cache that one process may fill."""
CHUNK_ELEMENTS_ACCELERATOR = 2**27
"""Logits per chunk on an accelerator: 512 MiB in float32, so that matrix products stay large."""


def chunk_rows(rows: int, vocabulary: int, device: torch.device) -> int:
    """Rows of tokens per chunk, at least 128, such that rows divide into chunks of nearly the same size."""
    budget = CHUNK_ELEMENTS_CPU if device.type == "cpu" else CHUNK_ELEMENTS_ACCELERATOR
    largest = max(128, budget // max(1, vocabulary))
    chunks = max(1, -(-rows // largest))
    return max(1, -(-rows // chunks))


def _chunk_loss(logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None, first_row: int) -> tuple[Tensor, Any]:
    """Sum of the chunk's losses; `logits` [n, V_local] float32 becomes exp(logits - max) in place.

    Returns (loss, (sums [n, 1], local targets [n, 1], whether the target lies in this rank's slice [n, 1])).
    """
    top = logits.amax(dim=-1, keepdim=True)
    if group is not None:
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
    logits.sub_(top)
    local = (targets - first_row).unsqueeze(-1)
    inside = (local >= 0) & (local < logits.shape[-1])
    local = torch.where(inside, local, 0)
    picked = logits.gather(-1, local)
    sums = logits.exp_().sum(dim=-1, keepdim=True)
    if group is not None:
        both = torch.cat((torch.where(inside, picked, 0.0), sums), dim=-1)
        dist.all_reduce(both, group=group)
        picked, sums = both[:, :1], both[:, 1:]
    return (sums.log() - picked).sum(), (sums, local, inside)


def _accumulate(grad_weight: Tensor, grad_logits: Tensor, hidden: Tensor, first: bool) -> None:
    """grad_weight (+)= grad_logits^T @ hidden, kept in float32; assigned instead of added if `first`."""
    if grad_logits.dtype == torch.float32:
        grad_weight.addmm_(grad_logits.t(), hidden, beta=0 if first else 1)
    elif first:
        grad_weight.copy_(grad_logits.t() @ hidden)
    else:
        grad_weight += grad_logits.t() @ hidden


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, group: dist.ProcessGroup | None, first_row: int
    ) -> Tensor:
        needs_gradient = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        compute_weight = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden) if needs_gradient else None
        grad_weight = torch.empty(weight.shape, device=weight.device, dtype=torch.float32) if needs_gradient else None
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        rows = chunk_rows(hidden.shape[0], weight.shape[0], hidden.device)
        for start in range(0, hidden.shape[0], rows):
            piece = hidden[start : start + rows]
            logits = (piece @ compute_weight.t()).float()
            loss, (sums, local, inside) = _chunk_loss(logits, targets[start : start + rows], group, first_row)
            total += loss
            if grad_hidden is None or grad_weight is None:
                continue
            grad_logits = logits.div_(sums)
            grad_logits.scatter_add_(-1, local, -inside.to(logits.dtype))
            grad_logits = grad_logits.to(hidden.dtype)
            torch.mm(grad_logits, compute_weight, out=grad_hidden[start : start + rows])
            _accumulate(grad_weight, grad_logits, piece, first=start == 0)
        if group is not None and grad_hidden is not None:
            dist.all_reduce(grad_hidden, group=group)
        ctx.gradients = (grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        return total.float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        assert ctx.gradients is not None, "the fused cross-entropy can be differentiated once"
        grad_hidden, grad_weight = ctx.gradients
        ctx.gradients = None
        if gradients[0].device.type != "cpu" or gradients[0].item() != 1.0:  # reading it would stall an accelerator
            grad_hidden.mul_(gradients[0])
            grad_weight.mul_(gradients[0])
        return grad_hidden, grad_weight.to(ctx.weight_dtype), None, None, None


def linear_cross_entropy(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    group: dist.ProcessGroup | None = None,
    first_row: int = 0,
) -> Tensor:
    """Sum over tokens of -log softmax(hidden @ weight^T)[target]; scalar float32.

    `weight_VH` holds the vocabulary's rows from `first_row` on (all of them without a group). With a group,
    `hidden_NH` and `targets_N` must be equal on its ranks, and so is the result.
    """
    loss: Tensor = _LinearCrossEntropy.apply(hidden_NH, weight_VH, targets_N, group, first_row)
    return loss
