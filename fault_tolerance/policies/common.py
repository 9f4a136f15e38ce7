"""What replication and SPARe share: membership checks, the step in flight, and the patch.

A subclass says how its assignment changes (`_reset`, `_remove`, `_add`, `_snapshot`); this class knows which units the
step in flight still lacks and hands them out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Protocol

from fault_tolerance.assignment import Change, even_patch, least_patch
from fault_tolerance.placement import Placement
from fault_tolerance.policies.base import Plan, Replan, Restart, Unit


class MaskingPlan(Plan, Protocol):
    """A plan that also knows what deaths take from it."""

    def lacking(self, dead: Collection[int], live_hosts: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        """{type: micro-batches} that no group computes under this plan once the `dead` are gone."""


def check_dead(dead: Collection[int], groups: int, gone: Collection[int]) -> list[int]:
    """The groups that died now, ascending. Raises ValueError for an unknown group or one in `gone` already."""
    newly = sorted(set(dead))
    for group in newly:
        if not 0 <= group < groups:
            raise ValueError(f"group {group} is unknown: groups are 0 to {groups - 1}")
        if group in gone:
            raise ValueError(f"group {group} is dead already")
    return newly


def check_joined(joined: Collection[int], groups: int, gone: Collection[int]) -> list[int]:
    """The groups that came back, ascending. Raises ValueError for an unknown group or one that is live."""
    newly = sorted(set(joined))
    for group in newly:
        if not 0 <= group < groups:
            raise ValueError(f"group {group} is unknown: groups are 0 to {groups - 1}")
        if group not in gone:
            raise ValueError(f"group {group} is live already")
    return newly


class StepInFlight:
    """What each group was asked to compute in the step that is running, or holds if the caller said so."""

    def __init__(self, step: int, plan: MaskingPlan) -> None:
        self.step = step
        self.plan = plan
        self.held: dict[int, set[Unit]] | None = None
        self.patches: dict[int, tuple[Unit, ...]] = {}


class MaskingPolicy:
    """A policy that goes on without the dead as long as each type has a live host."""

    groups: int
    micro_batches: int
    placement: Placement
    whole_types_in_patch = False
    patch_anywhere = False
    """A patch may go to any survivor, not only to hosts: a unit is a function of its index, any group can compute it.
    With single micro-batches that keeps the patch to about one; whole types are one stack wherever they go."""

    masks_failures = True
    sums_kept = 1

    def __init__(self, placement: Placement, micro_batches: int) -> None:
        if micro_batches < 1:
            raise ValueError(f"parallel.micro_batches={micro_batches} is too small: at least 1")
        self.placement = placement
        self.groups = placement.groups
        self.micro_batches = micro_batches
        self._lost: tuple[int, ...] = ()
        self._flight: StepInFlight | None = None
        self._dead: set[int] = set()
        self._plan: MaskingPlan = self._restore()

    # What a subclass provides.
    def _restore(self) -> MaskingPlan:
        """All groups live, initial order."""
        raise NotImplementedError

    def _remove(self, dead: Collection[int]) -> Change:
        raise NotImplementedError

    def _add(self, joined: Collection[int]) -> Change:
        raise NotImplementedError

    def _snapshot(self) -> MaskingPlan:
        raise NotImplementedError

    def _live_hosts(self) -> Sequence[Sequence[int]]:
        """Per type its live hosts."""
        raise NotImplementedError

    # The contract.
    def on_start(self) -> Plan:
        """All groups live, initial order; returns the first plan."""
        return self.on_restart()

    def on_restart(self) -> Plan:
        """Global restart: all groups live, initial order."""
        self._flight = None
        self._lost = ()
        self._dead.clear()
        self._plan = self._restore()
        return self._plan

    def plan_step(self, step: int) -> Plan:
        """Plan of `step`; a step counts as in flight from here to `on_commit`."""
        flight = self._flight
        if flight is None or flight.step != step:
            self._flight = StepInFlight(step, self._plan)
        return self._plan

    def on_commit(self) -> None:
        """The step in flight counts."""
        self._flight = None

    def on_failure(
        self, dead: Collection[int], computed: Mapping[int, Collection[Unit]] | None = None
    ) -> Replan | Restart:
        """See `Policy.on_failure`."""
        gone = check_dead(dead, self.groups, self._dead)
        before = self._plan.stacks
        self._dead.update(gone)
        change = self._remove(gone)
        if change.lost_types:
            return self._restart(change.lost_types)
        if change.phase or gone:
            self._plan = self._snapshot()
        patch, longest = self._patch(gone, computed)
        return Replan(
            patch, longest / self.micro_batches, change.phase, change.moves, before, self._plan.stacks, self._plan
        )

    def on_join(self, joined: Collection[int]) -> Replan | Restart:
        """See `Policy.on_join`.

        Raises:
            ValueError: a group is unknown or live already.
        """
        came = check_joined(joined, self.groups, self._dead)
        before = self._plan.stacks
        self._dead.difference_update(came)
        change = self._add(came)
        if change.lost_types:
            return self._restart(change.lost_types)
        self._lost = ()
        self._flight = None
        self._plan = self._snapshot()
        return Replan({}, 0.0, change.phase, change.moves, before, self._plan.stacks, self._plan)

    # The step in flight.
    def _restart(self, lost: tuple[int, ...]) -> Restart:
        self._flight = None
        self._lost = lost
        shown = ", ".join(str(kind) for kind in lost[:8]) + (", ..." if len(lost) > 8 else "")
        return Restart(lost, f"wipe-out: no live group hosts shard type {shown}")

    def _patch(
        self, dead: list[int], computed: Mapping[int, Collection[Unit]] | None
    ) -> tuple[dict[int, tuple[Unit, ...]], int]:
        """Hand out the missing units of the step in flight; also the longest patch in units."""
        flight = self._flight
        if flight is None:
            return {}, 0
        missing = self._missing(flight, dead, computed)
        if not missing:
            return {}, 0
        size = self.micro_batches if self.whole_types_in_patch else 1
        wanted = {kind: -(-len(micros) // size) for kind, micros in missing.items()}
        if self.patch_anywhere:
            survivors = (group for group in range(self.groups) if group not in self._dead)
            shares = even_patch(wanted, list(islice(survivors, sum(wanted.values()))))
        else:
            shares, _ = least_patch(wanted, self._live_hosts())
        patch: dict[int, tuple[Unit, ...]] = {}
        for group in sorted(shares):
            units: list[Unit] = []
            for kind, share in sorted(shares[group].items()):
                micros = missing[kind]
                units += [(kind, micro) for micro in micros[: share * size]]
                del micros[: share * size]
            patch[group] = tuple(units)
            if flight.held is None:
                flight.patches[group] = flight.patches.get(group, ()) + patch[group]
            else:
                flight.held.setdefault(group, set()).update(units)
        return patch, max(map(len, patch.values()))

    def _missing(
        self, flight: StepInFlight, dead: list[int], computed: Mapping[int, Collection[Unit]] | None
    ) -> dict[int, list[int]]:
        """{type: micro-batches} of the step in flight that no survivor holds, ascending."""
        if computed is not None:
            flight.held = {group: set(units) for group, units in computed.items() if group not in self._dead}
            flight.patches = {}
        missing: dict[int, list[int]] = {}
        if flight.held is not None:
            for group in dead:
                flight.held.pop(group, None)
            held: set[Unit] = set().union(*flight.held.values())
            lacking = [
                (kind, micro)
                for kind in range(self.groups)
                for micro in range(self.micro_batches)
                if (kind, micro) not in held
            ]
        else:
            missing = flight.plan.lacking(dead, self._live_hosts())
            lacking = [unit for group in dead for unit in flight.patches.pop(group, ())]
        for kind, micro in lacking:
            missing.setdefault(kind, []).append(micro)
        for micros in missing.values():
            micros.sort()
        return missing
