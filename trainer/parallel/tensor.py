"""Tensor parallelism: DTensor's column- and row-wise layers, with the vocabulary split over the same ranks.

Attention is split by heads and the feed-forward by its inner width, so each costs one all-reduce forward and one
backward; hidden states are replicated. The output projection never gathers its logits while training: the loss
works on each rank's slice of the vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from trainer.model.decoder import Decoder, DecoderLayer
from trainer.model.loss import linear_cross_entropy


class _SumGradient(torch.autograd.Function):
    """Identity whose gradient is summed over a process group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


def _sum_gradient(group: dist.ProcessGroup, x: Tensor) -> Tensor:
    summed: Tensor = _SumGradient.apply(x, group)
    return summed


class VocabularySlice:
    """This rank's rows of the output projection and what is computed with them."""

    def __init__(self, mesh: DeviceMesh, vocabulary: int) -> None:
        self.group = mesh.get_group()
        self.rows = vocabulary // mesh.size()
        self.first_row = self.rows * mesh.get_local_rank()

    def loss(self, hidden_NC: Tensor, weight: Tensor, targets_N: Tensor) -> Tensor:
        """Sum of the tokens' cross-entropies, a float32 scalar equal on all ranks."""
        assert isinstance(weight, DTensor)
        return linear_cross_entropy(hidden_NC, weight.to_local(), targets_N, self.group, self.first_row)

    def logits(self, x_BTC: Tensor, weight: Tensor) -> Tensor:
        """All logits [B, T, V], gathered; for evaluation only (not differentiable over ranks)."""
        assert isinstance(weight, DTensor)
        local = F.linear(x_BTC, weight.to_local())
        pieces = [torch.empty_like(local) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(pieces, local.contiguous(), group=self.group)
        return torch.cat(pieces, dim=-1)


def _parallelize_layer(layer: DecoderLayer, mesh: DeviceMesh) -> None:
    whole = Replicate()
    plan = {
        "self_attn": PrepareModuleInput(input_layouts=(whole, None, None), desired_input_layouts=(whole, None, None)),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(),
        "mlp": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    parallelize_module(layer, mesh, plan)
    for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
        if norm is not None:
            norm.shared = partial(_sum_gradient, mesh.get_group())


def apply_tensor_parallel(chunk: Decoder, mesh: DeviceMesh) -> None:
    """Split a chunk over `mesh` in place. Norm weights stay whole on every rank."""
    for layer in chunk.layers.values():
        assert isinstance(layer, DecoderLayer)
        _parallelize_layer(layer, mesh)
    plan: dict[str, Any] = {}
    if hasattr(chunk, "embed_tokens"):
        plan["embed_tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    if hasattr(chunk, "lm_head"):
        plan["lm_head"] = ColwiseParallel()
    if plan:
        parallelize_module(chunk, mesh, plan)
    if chunk.range.has_output:
        chunk.vocabulary = VocabularySlice(mesh, chunk.config.vocab_size)
