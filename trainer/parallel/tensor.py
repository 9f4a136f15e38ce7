"""Tensor parallelism: weights are DTensors split over the ranks, the arithmetic is done on their local parts.

Attention is split by heads and the feed-forward by its inner width (Megatron-LM, Shoeybi et al. 2019), so each costs
one all-reduce forward and one backward; hidden states are replicated. The layout lives in the DTensors, for FSDP,
checkpoints and gathering; between layers plain tensors flow, which spares DTensor's dispatch for every operation.
The vocabulary is split over the same ranks: the loss never gathers logits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainer.model.decoder import Decoder, DecoderLayer
from trainer.model.linear import Linear, local
from trainer.model.loss import linear_cross_entropy


def _all_reduced(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of `x` over the group in a new tensor."""
    if torch.compiler.is_compiling():
        reduced: Tensor = functional.all_reduce(x, "sum", group)
        return reduced
    result = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group)
    return result


class _SumGradient(torch.autograd.Function):
    """Identity whose gradient is summed over a process group: enters a region where ranks differ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_reduced(gradients[0], ctx.group), None


class _Sum(torch.autograd.Function):
    """Sum over a process group whose gradient is the identity: leaves a region where ranks differ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _all_reduced(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _sum_gradient(group: dist.ProcessGroup, x: Tensor) -> Tensor:
    entered: Tensor = _SumGradient.apply(x, group)
    return entered


def _enter(group: dist.ProcessGroup, _module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (_sum_gradient(group, arguments[0]), *arguments[1:])


def _leave(group: dist.ProcessGroup, _module: nn.Module, _arguments: Any, output: Tensor) -> Tensor:
    left: Tensor = _Sum.apply(output, group)
    return left


class VocabularySlice:
    """This rank's rows of the embedding and of the output projection, and what is computed with them."""

    def __init__(self, mesh: DeviceMesh, vocabulary: int) -> None:
        self.group = mesh.get_group()
        self.rows = vocabulary // mesh.size()
        self.first_row = self.rows * mesh.get_local_rank()

    def embed(self, ids_BT: Tensor, weight: Tensor) -> Tensor:
        """Embeddings [B, T, C] of all ids, whichever rank holds their rows."""
        rows = ids_BT - self.first_row
        outside = (rows < 0) | (rows >= self.rows)
        x_BTC = F.embedding(rows.masked_fill(outside, 0), local(weight)).masked_fill(outside.unsqueeze(-1), 0.0)
        embedded: Tensor = _Sum.apply(x_BTC, self.group)
        return embedded

    def loss(self, hidden_NC: Tensor, weight: Tensor, targets_N: Tensor) -> Tensor:
        """Sum of the tokens' cross-entropies, a float32 scalar equal on all ranks."""
        return linear_cross_entropy(hidden_NC, local(weight), targets_N, self.group, self.first_row)

    def logits(self, x_BTC: Tensor, weight: Tensor) -> Tensor:
        """All logits [B, T, V], gathered; for evaluation only (not differentiable over ranks)."""
        part = F.linear(x_BTC, local(weight))
        pieces = [torch.empty_like(part) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(pieces, part.contiguous(), group=self.group)
        return torch.cat(pieces, dim=-1)


def _split(module: nn.Module, dim: int, mesh: DeviceMesh) -> None:
    """Split a module's weight along `dim` over the mesh."""
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    module.weight = nn.Parameter(distribute_tensor(weight, mesh, [Shard(dim)]))


def _split_layer(layer: DecoderLayer, mesh: DeviceMesh) -> None:
    group, attention, mlp = mesh.get_group(), layer.self_attn, layer.mlp
    by_output: list[Linear] = [attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj]
    for linear in by_output:
        _split(linear, 0, mesh)
    for linear in (attention.o_proj, mlp.down_proj):
        _split(linear, 1, mesh)
    for module in (attention, mlp):
        module.register_forward_pre_hook(partial(_enter, group))
        module.register_forward_hook(partial(_leave, group))
    for norm in (attention.q_norm, attention.k_norm):
        if norm is not None:
            norm.shared = partial(_sum_gradient, group)


def apply_tensor_parallel(chunk: Decoder, mesh: DeviceMesh) -> None:
    """Split a chunk over `mesh` in place. Norm weights stay whole on every rank."""
    for layer in chunk.layers.values():
        assert isinstance(layer, DecoderLayer)
        _split_layer(layer, mesh)
    for name in ("embed_tokens", "lm_head"):
        if hasattr(chunk, name):
            _split(getattr(chunk, name), 0, mesh)
    chunk.vocabulary = VocabularySlice(mesh, chunk.config.vocab_size)
