"""Each unit at exactly one live group: the least largest load, and the fewest units that change hosts.

Lost types are cut into their units, which spread over all hosts of the type. After k failures the largest load
is near m N / (N - k) units, where whole shards would need the next multiple of m.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

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

    def lacking(self, dead: Collection[int], live_hosts: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        """{type: micro-batches} that nobody computes under this plan once the `dead` are gone: all that they had."""
        missing: dict[int, list[int]] = {}
        for group in dead:
            for kind, owned in self._owned[group].items():
                missing.setdefault(kind, []).extend([micro for piece in owned for micro in self._pieces[piece]])
        return missing


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
        every = tuple(range(len(self.pieces)))
        self._initial: list[dict[int, tuple[int, ...]]] = [{group: every} for group in range(placement.groups)]
        self._solve = solver or Flow.place
        self.reset()

    @property
    def stacks(self) -> float:
        """Largest load of a live group, in types."""
        return self.flow.capacity / len(self.pieces)

    def reset(self) -> None:
        """All groups live, each with the units of its own type."""
        self.flow.reset()
        self.owned: list[dict[int, tuple[int, ...]]] = self._initial.copy()
        self._unhosted: tuple[int, ...] = ()
        self._pool: dict[int, list[int]] = {}

    def snapshot(self) -> SpreadPlan:
        """The plan of the coming steps."""
        return SpreadPlan(self)

    def remove(self, dead: Collection[int]) -> Change:
        """Groups died."""
        flow, pool = self.flow, self._pool
        lost = list(self._unhosted)
        for group in sorted(dead):
            lost += flow.kill(group)
            for kind, pieces in self.owned[group].items():
                pool.setdefault(kind, []).extend(pieces)
            self.owned[group] = {}
        if lost:
            self._unhosted = tuple(sorted(lost))
            return Change(0, 0, self._unhosted)
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
        self._unhosted = tuple(kind for kind in self._unhosted if not flow.live_hosts[kind])
        if self._unhosted:
            return Change(0, 0, self._unhosted)
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
        own: set[int] = set()  # groups whose units no plan shares any more
        given_up = bool(flow.room) and self._give_up(own)
        moves = self._take(own)
        pool.clear()
        flow.room.clear()
        flow.over.clear()
        return Change(2 if given_up else 1, moves)

    def _give_up(self, own: set[int]) -> bool:
        """Units that the flow took from live groups go into the pool; whether there were any."""
        given_up = False
        for kind, groups in self.flow.room.items():
            for group, amount in groups.items():
                given_up = True
                owned = self._own(group, own)
                held = owned.pop(kind)
                if len(held) > amount:
                    owned[kind] = held[:-amount]
                self._pool.setdefault(kind, []).extend(held[-amount:])
        return given_up

    def _take(self, own: set[int]) -> int:
        """Units from the pool go where the flow put them, the lowest to the first group; returns how many."""
        pool, moves = self._pool, 0
        for free in pool.values():
            if len(free) > 1:
                free.sort(reverse=True)
        gaining = [(group, gained) for group, gained in self.flow.over.items() if gained]
        for group, gained in sorted(gaining) if len(gaining) > 1 else gaining:
            owned = self._own(group, own)
            for kind, amount in gained.items():
                moves += amount
                free = pool[kind]
                taken = free[: -amount - 1 : -1]
                del free[-amount:]
                today = owned.get(kind)
                owned[kind] = tuple(sorted([*today, *taken])) if today else tuple(taken)
        return moves

    def _own(self, group: int, own: set[int]) -> dict[int, tuple[int, ...]]:
        """The group's units, safe to change: plans that were handed out keep what they show."""
        if group not in own:
            own.add(group)
            self.owned[group] = dict(self.owned[group])
        return self.owned[group]
