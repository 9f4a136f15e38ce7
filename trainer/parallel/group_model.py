"""The model of one group as the training loop sees it: units in, a loss and summed gradients out.

All of tensor, pipeline and FSDP parallelism lies behind this one object. Wrapping follows one order: tensor
parallelism, activation checkpointing, compilation, FSDP. Gradients are those of the SUM of token losses, added to
whatever the parameters' `.grad` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.config import ModelConfig, ParallelConfig
from trainer.model.decoder import Decoder, LayerRange
from trainer.model.size import flops_per_token, parameter_count
from trainer.parallel.materialise import materialise, named_parameters_once
from trainer.parallel.mesh import GroupMesh
from trainer.validation import validate_model


class GroupModel:
    """This rank's part of one group's model.

    `sequence_length` is tokens per sequence, `compute_dtype` the type of activations and matrix products (master
    weights and gradients stay float32), `seed` fixes the initial weights whatever the layout. Raises ValueError where
    the degrees do not fit the model.
    """

    def __init__(
        self,
        model: ModelConfig,
        parallel: ParallelConfig,
        *,
        mesh: GroupMesh,
        sequence_length: int,
        compute_dtype: torch.dtype,
        seed: int,
    ) -> None:
        validate_model(model, parallel)
        self.config, self.mesh, self.sequence_length = model, mesh, sequence_length
        self.parameter_count = parameter_count(model)
        self.flops_per_token = flops_per_token(model, sequence_length)
        with torch.device("meta"):
            self._chunks = [Decoder(model, sequence_length, compute_dtype, LayerRange(0, model.layers, model.layers))]
        for chunk in self._chunks:
            for layer in chunk.layers.values():
                layer.recompute = parallel.activation_checkpointing
                if parallel.compile:
                    layer.compile()
        materialise(self._chunks, model, seed, mesh.device)
        self.parts: list[nn.Module] = list(self._chunks)

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """This rank's parameters under the full model's names, in a stable order, tied weights once."""
        return named_parameters_once(self._chunks)

    def run(self, blocks: Tensor, on_last_backward: Callable[[], None] | None = None) -> Tensor:
        """Forward and backward of units `blocks` [units, B, T+1] (int64) in order.

        Adds the gradient of the sum of token losses to `param.grad` and returns that sum: a float64 scalar, equal on
        all ranks of the group. `on_last_backward` is called right before the last unit's backward pass.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for index, block in enumerate(blocks):
            loss = self._chunks[0](block[:, :-1], block[:, 1:]).sum()
            total += loss.detach()
            if on_last_backward is not None and index == len(blocks) - 1:
                on_last_backward()
            loss.backward()
        return total

    @torch.no_grad()
    def evaluate(self, blocks: Tensor) -> Tensor:
        """The sum of token losses of `blocks` [units, B, T+1], without gradients; as `run` returns it."""
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for block in blocks:
            total += self._chunks[0](block[:, :-1], block[:, 1:]).sum()
        return total

    @torch.no_grad()
    def gradient_norm(self, grads: Sequence[Tensor]) -> Tensor:
        """Global 2-norm, float64 scalar, of local gradients in the order of `named_parameters`."""
        norms = [torch.linalg.vector_norm(grad, dtype=torch.float64) for grad in grads]
        return torch.stack(norms).square().sum().sqrt()

    @torch.no_grad()
    def full_named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors of this rank's pipeline stages in sorted order of names; shards are gathered on all ranks.

        All ranks of the group must iterate together. A tensor that two stages hold is given by the first only.
        """
        for name, parameter in sorted(self.named_parameters()):
            yield name, (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach())
