"""SPARe: stacked parallelism with adaptive reordering."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fault_tolerance.assignment import Change, SpreadAssignment, StackAssignment
from fault_tolerance.assignment.solvers import make_solver
from fault_tolerance.placement import make_placement
from fault_tolerance.policies.common import MaskingPlan, MaskingPolicy

GRANULARITIES = ("shard", "micro_batch")


class Spare(MaskingPolicy):
    """Failures are masked by RECTLR until a type has no live host.

    Args:
        groups: N.
        redundancy: r, types per group.
        micro_batches: m, micro-batches per type.
        granularity: `shard` moves whole types, as published; `micro_batch` moves single micro-batches.
        placement: cyclic or partition.
        solver: incremental, or networkx (the readable reference).
        duplicates: True (shard only, as published): each live group computes the first S types of its stack, so that
            a type may be computed more than once. False: each unit is computed exactly once.

    Raises:
        ValueError: sizes or names that do not fit.
    """

    def __init__(
        self,
        groups: int,
        redundancy: int,
        micro_batches: int = 1,
        granularity: str = "micro_batch",
        placement: str = "cyclic",
        solver: str = "incremental",
        duplicates: bool = False,
    ) -> None:
        if granularity not in GRANULARITIES:
            raise ValueError(
                f"fault_tolerance.granularity={granularity} is unknown: choose {' or '.join(GRANULARITIES)}"
            )
        if duplicates and granularity != "shard":
            raise ValueError("duplicates=True needs fault_tolerance.granularity=shard")
        if micro_batches < 1:
            raise ValueError(f"parallel.micro_batches={micro_batches} is too small: at least 1")
        layout = make_placement(placement, groups, redundancy)
        place = make_solver(solver)
        self.whole_types_in_patch = granularity == "shard"
        self.patch_anywhere = granularity == "micro_batch"
        self._assignment: SpreadAssignment | StackAssignment
        if duplicates:
            self._assignment = StackAssignment(layout, micro_batches, place)
        else:
            self._assignment = SpreadAssignment(layout, micro_batches, granularity == "shard", place)
        super().__init__(layout, micro_batches)

    def _restore(self) -> MaskingPlan:
        self._assignment.reset()
        return self._assignment.snapshot()

    def _remove(self, dead: Collection[int]) -> Change:
        return self._assignment.remove(dead)

    def _add(self, joined: Collection[int]) -> Change:
        return self._assignment.add(joined)

    def _snapshot(self) -> MaskingPlan:
        return self._assignment.snapshot()

    def _live_hosts(self) -> Sequence[Sequence[int]]:
        return self._assignment.flow.live_hosts
