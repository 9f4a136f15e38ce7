"""The model of one group as the training loop sees it: units in, a loss and summed gradients out.

All of tensor, pipeline and FSDP parallelism lies behind this one object. Wrapping follows one order: tensor
parallelism, activation checkpointing, compilation, FSDP. Gradients are those of the SUM of token losses, added to
whatever the parameters' `.grad` holds. What only some layouts need (schedules, FSDP, the compiler) is imported where it
is used: it costs as much time and memory as half of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.config import ModelConfig, ParallelConfig
from trainer.model.decoder import Decoder
from trainer.model.size import flops_per_token, parameter_count
from trainer.parallel.layers import split_layers
from trainer.parallel.materialise import materialise
from trainer.parallel.mesh import GroupMesh
from trainer.parallel.tensor import apply_tensor_parallel
from trainer.parallel.tied import TiedEmbedding
from trainer.validation import validate_model

if TYPE_CHECKING:
    from trainer.parallel.pipeline import Pipeline

TIED_WEIGHT = "embed_tokens.weight"
"""The weight that embedding and output projection share where they are tied."""


class GroupModel:
    """This rank's part of one group's model.

    `sequence_length` is tokens per sequence, `compute_dtype` the type of activations and matrix products (master
    weights and gradients stay float32), `seed` fixes the initial weights whatever the layout. Raises ValueError where
    the degrees do not fit the model.

    `parts` are the chunks of the model on this rank (one per virtual pipeline stage).
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
        ranges = split_layers(model.layers, parallel.pp * parallel.pp_virtual_stages)
        with torch.device("meta"):
            self._chunks = [
                Decoder(model, sequence_length, compute_dtype, layers)
                for layers in ranges[mesh.coordinate("pp") :: parallel.pp]
            ]
        self._split_over_tp = self._wrap(parallel, compute_dtype)
        materialise(self._chunks, model, seed, mesh.device)
        self.parts: list[nn.Module] = list(self._chunks)
        self._parameters = [pair for chunk in self._chunks for pair in chunk.named_parameters()]
        self._pipeline: Pipeline | None = None
        self._tied: TiedEmbedding | None = None
        if mesh.has("pp"):
            from trainer.parallel.pipeline import Pipeline

            self._pipeline = Pipeline(self._chunks, parallel, mesh.group("pp"), mesh.device)
            if model.tied_embeddings and (self._pipeline.is_first or self._pipeline.is_last):
                self._tied = TiedEmbedding(dict(self._parameters)[TIED_WEIGHT], mesh.group("pp"))

    def _wrap(self, parallel: ParallelConfig, compute_dtype: torch.dtype) -> set[str]:
        """Apply tp, activation checkpointing, compilation and FSDP; returns names of parameters that tp splits."""
        tp, dp_shard = self.mesh.axis_or_none("tp"), self.mesh.axis_or_none("dp_shard")
        split: set[str] = set()
        if parallel.compile:
            from torch._inductor import config as inductor

            inductor.deterministic = torch.are_deterministic_algorithms_enabled()
            if self.mesh.device.type == "cpu":
                inductor.compile_threads = 1  # no pool of compiler processes beside every rank
        for chunk in self._chunks:
            if tp is not None:
                apply_tensor_parallel(chunk, tp)
                split |= {name for name, parameter in chunk.named_parameters() if isinstance(parameter, DTensor)}
            for layer in chunk.layers.values():
                layer.recompute = parallel.activation_checkpointing
                if parallel.compile:
                    layer.compile()
            if dp_shard is not None:
                from trainer.parallel.sharding import shard

                shard(chunk, dp_shard, compute_dtype, keep_gathered=self.mesh.has("pp"))
        return split

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """This rank's parameters under the full model's names, in a stable order, tied weights once.

        With tied embeddings the first and the last pipeline stage both hold the shared weight.
        """
        return list(self._parameters)

    def keep_tied_gradients_apart(self) -> dict[int, Callable[[Tensor], Tensor]]:
        """From now on `run` leaves the tied weight's gradients of two pipeline stages on their stages.

        Returns what adds them up, under the parameter's place in `named_parameters`: a collective of the two stages,
        from this stage's sums to those of both. Empty on other ranks.
        """
        if self._tied is None:
            return {}
        self._tied.apart = True
        return {[name for name, _ in self._parameters].index(TIED_WEIGHT): self._tied.add_up}

    def run(self, blocks: Tensor, on_last_backward: Callable[[], None] | None = None) -> Tensor:
        """Forward and backward of units `blocks` [units, B, T+1] (int64, equal on all ranks of the group).

        Adds the gradient of the sum of token losses to `param.grad` and returns that sum: a float64 scalar, equal on
        all ranks of the group. `on_last_backward` is called right before the last backward pass on this rank (with
        virtual stages: of the last of its chunks, so that other chunks' gradients are complete by then).
        """
        inputs, targets = self._local_rows(blocks)
        if self._pipeline is None:
            return self._sum_loss(self._run_units(inputs, targets, on_last_backward))
        if self._tied is not None:
            self._tied.begin()
        total = self._pipeline.run(inputs.flatten(0, 1), targets.flatten(0, 1), len(blocks), on_last_backward)
        if self._tied is not None:
            self._tied.finish()
        return self._sum_loss(total)

    def _run_units(self, inputs: Tensor, targets: Tensor, on_last_backward: Callable[[], None] | None = None) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for index in range(len(inputs)):
            loss = self._chunks[0](inputs[index], targets[index])
            total += loss.detach()
            if torch.is_grad_enabled():
                if on_last_backward is not None and index == len(inputs) - 1:
                    on_last_backward()
                loss.backward()
        return total

    @torch.no_grad()
    def evaluate(self, blocks: Tensor) -> Tensor:
        """The sum of token losses of `blocks` [units, B, T+1], without gradients; as `run` returns it."""
        inputs, targets = self._local_rows(blocks)
        if self._pipeline is None:
            total = self._run_units(inputs, targets)
        else:
            total = self._pipeline.evaluate(inputs.flatten(0, 1), targets.flatten(0, 1), len(blocks))
        if self.mesh.has("dp_shard"):
            from trainer.parallel.sharding import release

            for chunk in self._chunks:
                release(chunk)
        return self._sum_loss(total)

    def _local_rows(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets [units, B / dp_shard, T] of this rank."""
        shards = self.mesh.degrees["dp_shard"]
        if blocks.ndim != 3 or blocks.shape[1] % shards:
            raise ValueError(
                f"units must be [units, B, T+1] with parallel.dp_shard={shards} dividing B, not {list(blocks.shape)}"
            )
        rows = blocks.to(self.mesh.device).chunk(shards, dim=1)[self.mesh.coordinate("dp_shard")]
        return rows[..., :-1].contiguous(), rows[..., 1:].contiguous()

    def _sum_loss(self, total: Tensor) -> Tensor:
        return self.mesh.sum(total, "dp_shard", "pp")

    @torch.no_grad()
    def gradient_norm(self, grads: Sequence[Tensor]) -> Tensor:
        """Global 2-norm (float64 scalar, equal on all ranks) of local gradients in the order of `named_parameters`.

        Weights that tp replicates count on one of its ranks only, a tied weight on the first stage only.
        """
        assert len(grads) == len(self._parameters)
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for (name, _), grad in zip(self._parameters, grads, strict=True):
            if self._counts(name):
                total += torch.linalg.vector_norm(grad).double().square()
        return self.mesh.sum(total, "tp", "dp_shard", "pp").sqrt()

    def _counts(self, name: str) -> bool:
        """Whether this rank's piece of a parameter is one that no other rank counts."""
        if self.mesh.has("tp") and name not in self._split_over_tp and self.mesh.coordinate("tp") > 0:
            return False
        return self._is_owner(name)

    def _is_owner(self, name: str) -> bool:
        """Whether this pipeline rank speaks for the parameter: the first one for a tied weight."""
        return self._tied is None or name != TIED_WEIGHT or self.mesh.coordinate("pp") == 0

    @torch.no_grad()
    def full_named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors of this rank's pipeline stages in sorted order of names; shards are gathered on all ranks.

        All ranks of a stage must iterate together. A weight that two stages hold is given by the first only.
        """
        for name, parameter in sorted(self._parameters, key=lambda pair: pair[0]):
            if self._is_owner(name):
                yield name, (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach())
