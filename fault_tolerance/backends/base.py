"""What the trainer knows of a fault-tolerance backend: the verbs of a step.

work = backend.plan(step)
while not committed:
    for batch in work: backend.enter(batch), compute its units (gradients add up in `buckets`)
    work = backend.reduce()           # None: reduced; else a patch to compute first
    committed = work is None and backend.commit(check)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fault_tolerance.policies.base import Unit
from fault_tolerance.runtime.buckets import GradientBuckets

Batch = Sequence[Unit]
"""Units that go through the group's pipeline in one call, in order."""
Work = Sequence[Batch]
Vote = Callable[[Sequence[int]], list[int]]
"""Element-wise minimum over the ranks of this group; every rank calls it."""


class GlobalRestart(RuntimeError):
    """No way on from here: every group begins again at the newest checkpoint. The message says why."""


class Backend(Protocol):
    """Fault tolerance of the data-parallel layer, as one rank of a group sees it."""

    buckets: GradientBuckets

    def plan(self, step: int) -> Work:
        """What this group computes in `step`; the local sums are zero from here."""

    def enter(self, batch: Batch) -> None:
        """The units of `batch` are computed next; their gradients and statistics belong together."""

    def overlap(self) -> None:
        """The backward pass of the last unit of the step's plan begins: buckets may be reduced while it runs."""

    def reduce(self) -> Work | None:
        """Sums the gradients and statistics of all groups into the reduced buffers.

        Returns:
            None when every rank of this group holds the sums; else the membership changed and this patch (perhaps
            empty) must be computed before the next call.

        Raises:
            GlobalRestart: the step cannot be completed by the groups that live.
        """

    def commit(self, check: float) -> bool:
        """The step counts on all survivors (True), or on none and must be reduced again (False).

        Args:
            check: a number that must be equal on all groups if they hold the same bits (the gradient norm).

        Raises:
            GlobalRestart: the groups' numbers differ.
        """

    @property
    def stacks(self) -> float:
        """Stacks that the step in flight cost: the plan's and its patches' (failure-free ckpt and spare: 1.0)."""

    @property
    def live_groups(self) -> tuple[int, ...]:
        """Groups that take part."""

    @property
    def generation(self) -> int:
        """Number of the generation that is applied."""
