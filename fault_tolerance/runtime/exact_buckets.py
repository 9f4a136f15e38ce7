"""Gradient sums that do not depend on the order: the same bits under every failure schedule.

Each unit's gradient is rounded to one fixed grid and added up in float64. Sums of grid points are exact while they
stay below 2^53 steps, so they are associative and commutative: who computed a unit, in which order and over how many
groups, cannot be seen in the result.

The grid is 2^-40 of the gradient of the mean token loss, fixed for the run by the tokens of a step. It needs no
history, hence none to agree on or to restore: below it nothing matters to AdamW (its epsilon of 1e-8 is 2^13 steps),
and its range ends at a mean gradient of 2^13, where training has diverged. Whether a unit stays in range depends on
that unit alone; a step with one that does not counts as not finite, whoever computed it.

Cost: 8 bytes per parameter instead of 4 for the local sums, twice the bytes in the all-reduce, and one more pass over
each unit's gradient; for weights that two pipeline stages share, three more copies in float64 while they are added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from fault_tolerance.runtime.buckets import STATISTICS, GradientBuckets, local_tensor, sum_into

GRID_BITS = 40
"""The grid is 2^-GRID_BITS of the mean gradient."""
EXACT_BITS = 53
"""float64 holds every integer up to 2^53."""
BLOCK_CPU, BLOCK_ACCELERATOR = 1 << 16, 1 << 24
"""Elements that are converted at a time: on a CPU they stay in cache."""
OUT_OF_RANGE = STATISTICS - 1
"""Place in the statistics of the count of gradients too large for exact sums."""


class ExactGradientBuckets(GradientBuckets):
    """`GradientBuckets` with order-independent sums.

    `param.grad` is free during the backward pass: a hook rounds each gradient into the sums as soon as autograd (or
    FSDP) has it, once per unit, and lets go of it.

    Args:
        tokens_per_step: target tokens of a step over all groups (fixes the grid).
        units_per_step: units of a step over all groups (fixes how large one unit's gradient may be).
        parted: for parameters (by place) whose gradient other ranks of this group hold parts of: the collective that
            turns this rank's flat sums into those of all parts.
    """

    in_flight = 4

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        bucket_bytes: int,
        tokens_per_step: int,
        units_per_step: int,
        slots: int = 1,
        parted: Mapping[int, Callable[[torch.Tensor], torch.Tensor]] | None = None,
    ) -> None:
        self.keep_local, self.slots = True, slots
        self._parameters = list(reversed(parameters))
        self._parted = {len(parameters) - 1 - index: add_up for index, add_up in (parted or {}).items()}
        self._lay_out(bucket_bytes)
        self._scale = 2.0 ** (GRID_BITS - math.ceil(math.log2(tokens_per_step)))
        self._sums = [self._flat(torch.float64) for _ in range(slots)]
        self._make_statistics()
        addends = units_per_step * (2 if self._parted else 1)
        self._largest = 2.0**EXACT_BITS / (self._scale * addends)
        largest = max(local_tensor(parameter).numel() for parameter in self._parameters)
        self._block = min(BLOCK_CPU if self._device.type == "cpu" else BLOCK_ACCELERATOR, largest)
        self._steps = torch.empty(self._block, device=self._device)
        self._wide_steps = torch.empty(self._block, dtype=torch.float64, device=self._device)
        self._selected = 0
        self._void: list[set[int]] = [set() for _ in range(slots)]  # parameters whose sums are of an earlier step
        self._watched = False
        self._watch_nothing()
        self.renew_reduced()
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._accumulate(index))

    def renew_reduced(self) -> None:
        self._free: list[torch.Tensor] = []
        self._on_the_way: dict[int, torch.Tensor] = {}
        self._parts: dict[int, torch.Tensor] = {}  # reduced sums of parameters that are parted
        super().renew_reduced()

    def begin_step(self) -> None:
        """Declares all local sums void: the first gradient of a step is written over them."""
        for void, statistics in zip(self._void, self._slot_statistics, strict=True):
            void.update(range(len(self._parameters)))
            statistics.zero_()
        self.select(0)

    def _accumulate(self, index: int) -> Callable[[torch.Tensor], None]:
        @torch.no_grad()
        def round_into_sum(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            gradient = local_tensor(parameter.grad).reshape(-1)
            parameter.grad = None
            if gradient.numel():
                self._add(index, gradient)
                least, most = torch.aminmax(gradient)
                self.statistics[OUT_OF_RANGE] += (most >= self._largest) | (least <= -self._largest)
            self._is_final(index)

        return round_into_sum

    def _add(self, index: int, gradient: torch.Tensor) -> None:
        """Adds a flat gradient [n], rounded to the grid, to the parameter's sum in the selected slot.

        Conversions go through `copy_`, which is vectorised; arithmetic with operands of two types is not.
        """
        void, total = self._void[self._selected], self._sums[self._selected][self._place(index)]
        for part, sums in zip(gradient.split(self._block), total.split(self._block), strict=True):
            steps, wide = self._steps[: part.numel()], self._wide_steps[: part.numel()]
            torch.mul(part, self._scale, out=steps).round_()  # a power of two: exact
            if index in void:
                sums.copy_(steps)
            else:
                sums.add_(wide.copy_(steps))
        void.discard(index)

    def _place(self, index: int) -> slice:
        """Where a parameter lies in the flat buffers."""
        start = self._offsets[index]
        return slice(start, start + local_tensor(self._parameters[index]).numel())

    def _clear_void(self, bucket: int, slot: int) -> None:
        """Zeroes the sums of parameters that got no gradient in this step."""
        for index in [index for index in self._void[slot] if self._bucket_of[index] == bucket]:
            self._sums[slot][self._place(index)].zero_()
            self._void[slot].discard(index)

    def select(self, slot: int) -> None:
        self._selected = slot
        self.statistics = self._slot_statistics[slot]
        for parameter in self._parameters:
            parameter.grad = None

    def begin_reduce(self) -> None:
        self._free.extend(self._on_the_way.values())
        self._on_the_way.clear()

    def load_bucket(self, bucket: int, slots: Sequence[int]) -> torch.Tensor:
        start, end = self._bounds[bucket]
        for slot in slots:
            self._clear_void(bucket, slot)
        self._on_the_way[bucket] = target = self._free.pop() if self._free else self._buffer()
        return sum_into(target[: end - start], [self._sums[slot][start:end] for slot in slots])

    def store_bucket(self, bucket: int) -> None:
        start, end = self._bounds[bucket]
        target = self._on_the_way.pop(bucket)
        for index in self._parted:
            if self._bucket_of[index] == bucket:
                offset = self._offsets[index] - start
                self._parts[index] = target[offset : offset + local_tensor(self._parameters[index]).numel()].clone()
        self._scale_back(target[: end - start], self._reduced[start:end])
        self._free.append(target)

    def _scale_back(self, sums: torch.Tensor, gradients: torch.Tensor) -> None:
        """Gradients in float32 [n] of sums on the grid [n]."""
        for source, reduced in zip(sums.split(self._block), gradients.split(self._block), strict=True):
            reduced.copy_(source).mul_(1.0 / self._scale)  # a power of two: exact

    def combine(self) -> None:
        for index, add_up in self._parted.items():
            sums = self._parts.pop(index)
            if self.reduced_statistics[OUT_OF_RANGE].item() > 0:
                sums.fill_(math.nan)  # for the ranks of the other parts too
            self._scale_back(add_up(sums), self._reduced[self._place(index)])

    def finish(self) -> None:
        if self.reduced_statistics[OUT_OF_RANGE].item() > 0:
            self._reduced.fill_(math.nan)

    def _buffer(self) -> torch.Tensor:
        largest = max(end - start for start, end in self._bounds)
        return torch.empty(largest, dtype=torch.float64, device=self._device)

    def watch_backward(self) -> None:
        self._watched = True

    def arm(self, on_bucket: Callable[[int], None]) -> None:
        if self._watched:
            super().arm(lambda bucket: on_bucket(bucket) if bucket < self.in_flight else None)
