"""The published form: each live group computes the first S types of its stack, whoever else computes them too.

Phase 0 asks whether the heads (first S entries) of the survivors still cover every type. If not, phase 1 finds the
smallest S for which each type can be given to one live host with at most S types per host, and phase 2 takes, among
those, the assignment that pulls the fewest types into a head. A type inside a head costs nothing, one outside costs 1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fault_tolerance.assignment.change import Change
from fault_tolerance.assignment.flow import Flow
from fault_tolerance.placement import Placement

Unit = tuple[int, int]


class StackPlan:
    """An unchanging picture of a `StackAssignment`."""

    def __init__(self, assignment: StackAssignment) -> None:
        self.depth = assignment.flow.capacity
        self.stacks = float(self.depth)
        self._micro_batches = assignment.micro_batches
        self._alive = bytes(assignment.flow.alive)
        self._order = assignment.order.copy()
        self._owner = assignment.owner.copy()

    @property
    def live(self) -> tuple[int, ...]:
        """Live groups in ascending order."""
        return tuple([group for group, alive in enumerate(self._alive) if alive])

    def head_of(self, group: int) -> tuple[int, ...]:
        """Types that `group` computes, in order; also for a group that has died since."""
        return self._order[group][: self.depth]

    def units_of(self, group: int) -> tuple[Unit, ...]:
        """Units that `group` computes, in order.

        Raises:
            ValueError: the group is not live in this plan.
        """
        self._check(group)
        return tuple([(kind, micro) for kind in self.head_of(group) for micro in range(self._micro_batches)])

    def counted_of(self, group: int) -> tuple[Unit, ...]:
        """Units of `group` that enter the gradient: the types that RECTLR's matching gave it.

        Raises:
            ValueError: the group is not live in this plan.
        """
        self._check(group)
        owner = self._owner
        return tuple(
            [
                (kind, micro)
                for kind in self.head_of(group)
                if owner[kind] == group
                for micro in range(self._micro_batches)
            ]
        )

    def lacking(self, dead: Collection[int], live_hosts: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        """{type: micro-batches} that nobody computes under this plan once the `dead` are gone."""
        order, depth = self._order, self.depth
        missing: dict[int, list[int]] = {}
        for group in dead:
            for kind in order[group][:depth]:
                for host in live_hosts[kind]:
                    if kind in order[host][:depth]:
                        break
                else:
                    missing[kind] = list(range(self._micro_batches))
        return missing

    def _check(self, group: int) -> None:
        if not (0 <= group < len(self._alive) and self._alive[group]):
            raise ValueError(f"group {group} is not live in this plan")


class StackAssignment:
    """Orders, S and the owner of each type through a sequence of deaths and returns."""

    def __init__(self, placement: Placement, micro_batches: int, solver=None) -> None:
        self.placement = placement
        self.micro_batches = micro_batches
        self.flow = Flow(placement, 1)
        self.flow.widen = self._widen
        self._solve = solver or Flow.place
        self.reset()

    @property
    def stacks(self) -> float:
        """S."""
        return float(self.flow.capacity)

    def reset(self) -> None:
        """All groups live, initial order, S = 1."""
        self.flow.reset()
        self.order: list[tuple[int, ...]] = list(self.placement.stacks)
        self.owner = list(range(self.placement.groups))
        self._unhosted: tuple[int, ...] = ()
        self._unowned: tuple[int, ...] = ()

    def snapshot(self) -> StackPlan:
        """The plan of the coming steps."""
        return StackPlan(self)

    def remove(self, dead: Collection[int]) -> Change:
        """Groups died."""
        flow = self.flow
        missing: dict[int, int] = dict.fromkeys(self._unowned, 1)
        lost = list(self._unhosted)
        for group in sorted(dead):
            missing.update(flow.at[group])
            lost += flow.kill(group)
            for kind in self.order[group][: flow.capacity]:
                flow.room.get(kind, {}).pop(group, None)
        if lost:
            self._unhosted = tuple(sorted(lost))
            self._unowned = tuple(sorted(missing))
            return Change(0, 0, self._unhosted)
        uncovered = {}
        for kind in sorted(missing):
            room = flow.room.get(kind)
            if room:
                host = min(room)
                flow.shift(host, kind, 1)
                self.owner[kind] = host
            else:
                uncovered[kind] = 1
        if not uncovered:
            return Change(0, 0)
        floor = max(flow.capacity, flow.smallest_capacity())
        self._widen(floor)
        return self._place(floor, uncovered)

    def add(self, joined: Collection[int]) -> Change:
        """Groups came back with their initial stack. With all groups live the initial orders are restored."""
        flow = self.flow
        if flow.live_count + len(joined) == self.placement.groups:
            before, depth = self.order, flow.capacity
            self.reset()
            moved = sum(group not in before[group][:depth] for group in range(self.placement.groups))
            return Change(2 if moved else 0, moved)
        for group in sorted(joined):
            flow.revive(group)
            self.order[group] = self.placement.stacks[group]
        self._unhosted = tuple(kind for kind in self._unhosted if not flow.live_hosts[kind])
        if self._unhosted:
            return Change(0, 0, self._unhosted)
        for kind in self._unowned:
            self.owner[kind] = -1
        self._unowned = ()
        floor = flow.smallest_capacity()
        missing = self._rebuild(floor)
        return self._place(floor, missing) if missing else Change(0, 0)

    def _rebuild(self, depth: int) -> dict[int, int]:
        """Heads of `depth` over today's orders; returns the types whose owner no longer has them in its head."""
        flow, missing = self.flow, {}
        flow.capacity = depth
        flow.room.clear()
        heads = {g: self.order[g][:depth] for g in range(self.placement.groups) if flow.alive[g]}
        for kind, owner in enumerate(self.owner):
            if owner < 0 or kind not in heads[owner]:
                missing[kind] = 1
                if owner >= 0:
                    del flow.at[owner][kind]
                    flow.load[owner] -= 1
                    self.owner[kind] = -1
        for group, head in heads.items():
            for kind in head:
                if kind not in flow.at[group]:
                    flow.room.setdefault(kind, {})[group] = 1
        return missing

    def _widen(self, depth: int) -> None:
        """Raise S: the next entries of each live stack become free of cost."""
        flow = self.flow
        if depth > flow.capacity:
            for group, order in enumerate(self.order):
                if flow.alive[group]:
                    for kind in order[flow.capacity : depth]:
                        flow.room.setdefault(kind, {})[group] = 1
            flow.capacity = depth

    def _place(self, floor: int, missing: dict[int, int]) -> Change:
        """Phases 1 and 2; then heads follow what was pulled into them."""
        flow = self.flow
        self._solve(flow, missing, floor)
        for group, kind, amount in flow.journal:
            if amount > 0:
                self.owner[kind] = group
        moves = 0
        for group, pulled in sorted((g, p) for g, p in flow.over.items() if p):
            moves += len(pulled)
            order, depth = self.order[group], flow.capacity
            unused = [kind for kind in order[:depth] if kind not in flow.at[group]]
            evicted = unused[len(unused) - len(pulled) :]
            head = [kind for kind in order[:depth] if kind not in evicted]
            head += [kind for kind in order[depth:] if kind in pulled]
            self.order[group] = tuple(head + [kind for kind in order if kind not in head])
            for kind in evicted:
                del flow.room[kind][group]
        flow.over.clear()
        return Change(2 if moves else 1, moves)
