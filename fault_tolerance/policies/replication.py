"""Traditional replication: each live group computes all r types of its stack in each step.

What a death takes is already there on the other hosts, so failures cost no patch; the price is r stacks per step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fault_tolerance.assignment import Change
from fault_tolerance.placement import Placement, make_placement
from fault_tolerance.policies.base import Unit
from fault_tolerance.policies.common import MaskingPlan, MaskingPolicy


class ReplicationPlan:
    """Every live group computes its whole stack; a type counts at its first live host.

    "First" is by position in the placement: the group that has the type on top of its stack, else the one that has it
    second, and so on. With all groups live each group so counts exactly one type. In a partition the first live
    group of a team counts all of the team's types, so that one sum per group is enough and a death moves it whole.
    """

    def __init__(self, placement: Placement, micro_batches: int, alive: bytes) -> None:
        self.stacks = float(placement.redundancy)
        self._placement = placement
        self._micro_batches = micro_batches
        self._alive = alive

    @property
    def live(self) -> tuple[int, ...]:
        """Live groups in ascending order."""
        return tuple([group for group, alive in enumerate(self._alive) if alive])

    def units_of(self, group: int) -> tuple[Unit, ...]:
        """All units of the group's stack, in order.

        Raises:
            ValueError: the group is not live in this plan.
        """
        self._check(group)
        return tuple([(kind, micro) for kind in self._placement.stacks[group] for micro in range(self._micro_batches)])

    def counted_of(self, group: int) -> tuple[Unit, ...]:
        """Units of the types whose first live host is `group`.

        Raises:
            ValueError: the group is not live in this plan.
        """
        self._check(group)
        return tuple(
            [
                (kind, micro)
                for kind in self._placement.stacks[group]
                if self._first_host(kind) == group
                for micro in range(self._micro_batches)
            ]
        )

    def lacking(self, dead: Collection[int], live_hosts: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        """Nothing: each live host of a type computes it."""
        return {}

    def _first_host(self, kind: int) -> int:
        hosts = self._placement.hosts[kind]
        if self._placement.name == "partition":
            hosts = tuple(sorted(hosts))
        return next(host for host in hosts if self._alive[host])

    def _check(self, group: int) -> None:
        if not (0 <= group < len(self._alive) and self._alive[group]):
            raise ValueError(f"group {group} is not live in this plan")


class Replication(MaskingPolicy):
    """Failures are masked until a type has no live host (in a partition: until a whole team is gone).

    Args:
        groups: N.
        redundancy: r, types per group, all of them computed in each step.
        micro_batches: m, micro-batches per type.
        placement: cyclic or partition.

    Raises:
        ValueError: sizes or names that do not fit.
    """

    def __init__(self, groups: int, redundancy: int, micro_batches: int = 1, placement: str = "cyclic") -> None:
        layout = make_placement(placement, groups, redundancy)
        self._alive = bytearray(b"\x01" * groups)
        super().__init__(layout, micro_batches)
        self.sums_kept = 1 if placement == "partition" else redundancy

    def _restore(self) -> MaskingPlan:
        self._alive = bytearray(b"\x01" * self.groups)
        self._live_on = [list(hosts) for hosts in self.placement.hosts]
        return self._snapshot()

    def _remove(self, dead: Collection[int]) -> Change:
        live_on, lost = self._live_on, list(self._lost)
        for group in dead:
            self._alive[group] = 0
            for kind in self.placement.stacks[group]:
                hosts = live_on[kind]
                hosts.remove(group)
                if not hosts:
                    lost.append(kind)
        return Change(-1, 0, tuple(sorted(lost)))

    def _add(self, joined: Collection[int]) -> Change:
        for group in joined:
            self._alive[group] = 1
        for kind in {kind for group in joined for kind in self.placement.stacks[group]}:
            self._live_on[kind] = [host for host in self.placement.hosts[kind] if self._alive[host]]
        return Change(-1, 0, tuple(kind for kind, hosts in enumerate(self._live_on) if not hosts))

    def _snapshot(self) -> MaskingPlan:
        return ReplicationPlan(self.placement, self.micro_batches, bytes(self._alive))

    def _live_hosts(self) -> Sequence[Sequence[int]]:
        return self._live_on
