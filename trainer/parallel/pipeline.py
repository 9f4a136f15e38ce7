"""Pipeline parallelism over torch's schedules, for any number of micro-batches per call.

A stage object of torch keeps state for one micro-batch count, so each count has its own stages and schedule over the
same chunks, built when first needed. Schedules that cannot take a count give way to the one that can: 1F1B needs as
many micro-batches as stages and falls back to GPipe, interleaved 1F1B needs a multiple of the ranks and falls back to
breadth-first; both compute the same sums (breadth-first adds the micro-batches' gradients in reverse order).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)

from trainer.config import ParallelConfig
from trainer.model.decoder import Decoder


class _Stage(PipelineStage):
    """A stage with static shapes that reports its backward passes."""

    before_backward: Callable[[], None] | None = None

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        if self.has_backward and self.before_backward is not None:
            self.before_backward()
        super().backward_one_chunk(*args, **kwargs)

    def _post_metadata_inference_cleanup(self) -> None:
        """Nothing to clean: shapes are given, so no inference ran. (The inherited method would drop all gradients
        accumulated so far whenever a new micro-batch count comes up under FSDP.)"""


def _loss_of(output: Tensor, _target: Tensor) -> Tensor:
    """The last chunk's output is the loss already."""
    return output


class Pipeline:
    """This rank's chunks of the model and the schedules that run them.

    Chunk i of this rank is stage `rank + i * ranks`. `rows` is sequences per unit on this rank.
    """

    def __init__(
        self, chunks: list[Decoder], parallel: ParallelConfig, group: dist.ProcessGroup, device: torch.device
    ) -> None:
        self.chunks, self.parallel, self.group, self.device = chunks, parallel, group, device
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._schedules: dict[tuple[int, int, bool], Any] = {}
        self._backwards_left = 0
        self._on_last_backward: Callable[[], None] | None = None

    @property
    def is_first(self) -> bool:
        """Whether this rank holds the first stage."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank holds the last stage."""
        return self.rank == self.ranks - 1

    def run(self, inputs: Tensor, targets: Tensor, units: int, on_last_backward: Callable[[], None] | None) -> Tensor:
        """Forward and backward of `units` equal parts of inputs and targets [units * rows, T].

        Returns the sum of the losses, float64: right on the last rank, 0 elsewhere. `on_last_backward` is called
        before the last backward pass of this rank's chunks.
        """
        self._backwards_left = units * len(self.chunks)
        self._on_last_backward = on_last_backward
        schedule = self._schedule(units, inputs.shape[0] // units, inputs.shape[1], training=True)
        losses: list[Tensor] = []
        arguments, options = self._arguments(inputs, targets)
        target = targets if self.is_last else None
        schedule.step(*arguments, target=target, losses=losses, return_outputs=False, **options)
        assert self._backwards_left == 0
        return self._total([loss.detach() for loss in losses])

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor, units: int) -> Tensor:
        """As `run`, without gradients."""
        schedule = self._schedule(units, inputs.shape[0] // units, inputs.shape[1], training=False)
        losses: list[Tensor] = []
        arguments, options = self._arguments(inputs, targets)
        target = targets if self.is_last else None
        schedule.eval(*arguments, target=target, losses=losses, return_outputs=False, **options)
        return self._total(losses)

    def _arguments(self, inputs: Tensor, targets: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        return ((inputs,) if self.is_first else ()), ({"targets": targets} if self.is_last else {})

    def _total(self, losses: list[Tensor]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for loss in losses:
            total += loss
        return total

    def _before_backward(self) -> None:
        self._backwards_left -= 1
        if self._backwards_left == 0 and self._on_last_backward is not None:
            self._on_last_backward()

    def _schedule(self, units: int, rows: int, length: int, training: bool) -> Any:
        key = (units, rows, training)
        if key not in self._schedules:
            stages = [self._stage(index, rows, length) for index in range(len(self.chunks))]
            self._schedules[key] = self._build(stages, units)
        return self._schedules[key]

    def _stage(self, index: int, rows: int, length: int) -> _Stage:
        chunk = self.chunks[index]
        ids = torch.empty(rows, length, dtype=torch.int64, device="meta")
        hidden = torch.empty(rows, length, chunk.config.hidden_size, dtype=chunk.dtype, device="meta")
        loss = torch.empty((), device="meta")
        stage = _Stage(
            chunk,
            self.rank + index * self.ranks,
            self.ranks * len(self.chunks),
            self.device,
            input_args=ids if chunk.range.has_embedding else hidden.clone().requires_grad_(),
            output_args=(loss if chunk.range.has_output else hidden).clone().requires_grad_(),
            group=self.group,
        )
        stage.before_backward = self._before_backward
        return stage

    def _build(self, stages: list[_Stage], units: int) -> Any:
        if self.parallel.pp_schedule == "interleaved_1f1b":
            kind = ScheduleLoopedBFS if units % self.ranks else ScheduleInterleaved1F1B
            return kind(stages, units, loss_fn=_loss_of, scale_grads=False)
        gpipe = self.parallel.pp_schedule == "gpipe" or units < self.ranks
        return (ScheduleGPipe if gpipe else Schedule1F1B)(stages[0], units, loss_fn=_loss_of, scale_grads=False)
