"""Each unit at exactly one live group: the least largest load, and the fewest units that change hosts.

Lost types are cut into their units, which spread over all hosts of the type. After k failures the largest load
is near m N / (N - k) units, where whole shards would need the next multiple of m.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fault_tolerance.assignment.change import Change
from fault_tolerance.assignment.flow import Flow
from fault_tolerance.placement import Placement

Unit = tuple[int, int]


class SpreadPlan:
    """An unchanging picture of a `SpreadAssignment`; unit tuples are made when asked for."""

    def __init__(self, assignment: SpreadAssignment) -> None:
        self.stacks = assignment.stacks
        self._alive = bytes(assignment.flow.alive)
        self._pieces = assignment.pieces
        self._stacks = assignment.placement.stacks
        self._owned = assignment.owned.copy()

    @property
    def live(self) -> tuple[int, ...]:
        """Live groups in ascending order."""
        return tuple([group for group, alive in enumerate(self._alive) if alive])

    def units_of(self, group: int) -> tuple[Unit, ...]:
        """Units that `group` computes: types in the order of its stack, micro-batches ascending.

        Raises:
            ValueError: the group is not live in this plan.
        """
        if not (0 <= group < len(self._alive) and self._alive[group]):
            raise ValueError(f"group {group} is not live in this plan")
        owned = self._owned[group]
        return tuple(
            [
                (kind, micro)
                for kind in self._stacks[group]
                if kind in owned
                for piece in owned[kind]
                for micro in self._pieces[piece]
            ]
        )

    counted_of = units_of

    def holdings(self, group: int) -> dict[int, tuple[int, ...]]:
        """{type: micro-batches} that `group` computes; empty for a dead group."""
        return {
            kind: tuple([micro for piece in owned for micro in self._pieces[piece]])
            for kind, owned in self._owned[group].items()
        }


class SpreadAssignment:
    """The assignment through a sequence of deaths and returns.

    Args:
        placement: who hosts what.
        micro_batches: m, units per type.
        whole_types: True keeps a type's units together (shard granularity without duplicates).
        solver: places missing units in a `Flow`; None for the incremental one.
    """

    def __init__(self, placement: Placement, micro_batches: int, whole_types: bool, solver=None) -> None:
        self.placement = placement
        self.micro_batches = micro_batches
        self.pieces: tuple[range, ...]
        if whole_types:
            self.pieces = (range(micro_batches),)
        else:
            self.pieces = tuple(range(micro, micro + 1) for micro in range(micro_batches))
        self.flow = Flow(placement, len(self.pieces))
        self._solve = solver or Flow.place
        self.reset()

    @property
    def stacks(self) -> float:
        """Largest load of a live group, in types."""
        return self.flow.capacity / len(self.pieces)

    def reset(self) -> None:
        """All groups live, each with the units of its own type."""
        self.flow.reset()
        every = tuple(range(len(self.pieces)))
        self.owned: list[dict[int, tuple[int, ...]]] = [{group: every} for group in range(self.placement.groups)]
        self._pool: dict[int, list[int]] = {}

    def snapshot(self) -> SpreadPlan:
        """The plan of the coming steps."""
        return SpreadPlan(self)

    def remove(self, dead: Collection[int]) -> Change:
        """Groups died."""
        flow, pool = self.flow, self._pool
        hit: set[int] = set()
        for group in sorted(dead):
            flow.kill(group)
            hit.update(self.placement.stacks[group])
            for kind, pieces in self.owned[group].items():
                pool.setdefault(kind, []).extend(pieces)
            self.owned[group] = {}
        lost = tuple(sorted(kind for kind in hit if not flow.live_hosts[kind]))
        if lost or any(not flow.live_hosts[kind] for kind in pool):
            return Change(0, 0, tuple(sorted({*lost, *(kind for kind in pool if not flow.live_hosts[kind])})))
        return self._place(max(flow.capacity, flow.smallest_capacity()))

    def add(self, joined: Collection[int]) -> Change:
        """Groups came back, empty. With all groups live the initial assignment is restored."""
        flow, pool = self.flow, self._pool
        if flow.live_count + len(joined) == self.placement.groups:
            before = self.owned
            self.reset()
            moved = sum(
                len(set(self.owned[group][group]).difference(before[group].get(group, ())))
                for group in range(self.placement.groups)
            )
            return Change(2 if moved else 0, moved)
        for group in sorted(joined):
            flow.revive(group)
        lost = tuple(sorted(kind for kind in pool if not flow.live_hosts[kind]))
        if lost:
            return Change(0, 0, lost)
        floor = flow.smallest_capacity()
        missing = {kind: len(pieces) for kind, pieces in pool.items()}
        for group in flow.overloaded(floor):
            excess = flow.load[group] - floor
            for kind in sorted(flow.at[group]):
                amount = min(excess, flow.at[group][kind])
                if amount:
                    flow.shift(group, kind, -amount)
                    missing[kind] = missing.get(kind, 0) + amount
                    excess -= amount
        return self._place(floor, missing)

    def _place(self, floor: int, missing: dict[int, int] | None = None) -> Change:
        """Place what is missing (default: what is in the pool) and let units follow the counts."""
        flow, pool = self.flow, self._pool
        if missing is None:
            missing = {kind: len(pieces) for kind, pieces in pool.items()}
        if not missing:
            return Change(0, 0)
        self._solve(flow, missing, floor)
        given_up = False
        for group, kinds in _sorted_items(flow.room):
            owned = self.owned[group] = dict(self.owned[group])
            for kind, amount in sorted(kinds.items()):
                given_up = True
                pieces = owned.pop(kind)
                if len(pieces) > amount:
                    owned[kind] = pieces[:-amount]
                pool.setdefault(kind, []).extend(pieces[-amount:])
        for pieces in pool.values():
            pieces.sort(reverse=True)
        moves = 0
        for group, kinds in _sorted_items(flow.over):
            owned = self.owned[group] = dict(self.owned[group])
            for kind, amount in sorted(kinds.items()):
                moves += amount
                taken = pool[kind][-amount:]
                del pool[kind][-amount:]
                owned[kind] = tuple(sorted([*owned.get(kind, ()), *taken]))
        assert not any(pool.values())
        pool.clear()
        flow.room.clear()
        flow.over.clear()
        return Change(2 if given_up else 1, moves)


def _sorted_items(table: dict[int, dict[int, int]]) -> Iterable[tuple[int, dict[int, int]]]:
    """Items with a non-empty value by ascending group."""
    return sorted((group, kinds) for group, kinds in table.items() if kinds)
