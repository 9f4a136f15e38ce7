"""No redundancy: any failure means a global restart from the last checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fault_tolerance.assignment import SpreadAssignment
from fault_tolerance.placement import cyclic
from fault_tolerance.policies.base import Plan, Replan, Restart, Unit
from fault_tolerance.policies.common import check_dead, check_joined


class CheckpointOnly:
    """Each group computes its own type; the first death ends the run until it restarts."""

    def __init__(self, groups: int, micro_batches: int = 1) -> None:
        if micro_batches < 1:
            raise ValueError(f"parallel.micro_batches={micro_batches} is too small: at least 1")
        self.groups = groups
        self.micro_batches = micro_batches
        self._plan = SpreadAssignment(cyclic(groups, 1), micro_batches, whole_types=True).snapshot()
        self._dead: set[int] = set()
        self.masks_failures, self.sums_kept = False, 1

    def on_start(self) -> Plan:
        """All groups live; returns the only plan there is."""
        return self.on_restart()

    def plan_step(self, step: int) -> Plan:
        """The same plan for each step."""
        return self._plan

    def on_failure(
        self, dead: Collection[int], computed: Mapping[int, Collection[Unit]] | None = None
    ) -> Replan | Restart:
        """Always a restart; the types named are those of all groups that are dead by now."""
        self._dead.update(check_dead(dead, self.groups, self._dead))
        lost = tuple(sorted(self._dead))
        return Restart(lost, f"{len(lost)} of {self.groups} groups are gone and no other group holds their work")

    def on_join(self, joined: Collection[int]) -> Replan | Restart:
        """A restart as long as a group is missing; with all groups back the plan stands."""
        self._dead.difference_update(check_joined(joined, self.groups, self._dead))
        if self._dead:
            lost = tuple(sorted(self._dead))
            return Restart(lost, f"{len(lost)} of {self.groups} groups are gone and no other group holds their work")
        return Replan({}, 0.0, -1, 0, 1.0, 1.0, self._plan)

    def on_commit(self) -> None:
        """Nothing to remember."""

    def on_restart(self) -> Plan:
        """All groups live."""
        self._dead.clear()
        return self._plan
