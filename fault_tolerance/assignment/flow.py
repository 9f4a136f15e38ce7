"""The flow from shard types to live groups, repaired rather than solved anew when the membership changes.

Supply: each type has `supply` units. A unit may go to any live host of its type; no group may hold more than
`capacity` units. A unit costs nothing where today's assignment has it and 1 (a move) anywhere else. Today's
assignment less the units of the dead is a flow of cost zero, hence the cheapest of its size; successive shortest
augmenting paths (Ahuja, Magnanti, Orlin: Network Flows, 1993, section 9.7) add the missing units one path at a time
and keep it the cheapest, touching only what has to change. Node potentials keep reduced costs non-negative, so that
each search is a bucket Dijkstra which ends at the first group with room.

When no path exists, the types and groups that the search reached prove it: the groups are full and may hold all
units of those types only if each holds more. That gives the next capacity worth trying (Hall's condition).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fault_tolerance.placement import Placement


class Flow:
    """Units per (group, type), with what they cost against today's assignment.

    Attributes:
        live_hosts: per type its live hosts, in the placement's order.
        alive: per group 1 or 0.
        at: per group {type: units held}.
        load: per group the sum of `at`.
        room: per group {type: units that may still be put there at no cost}.
        over: per group {type: units held there at cost 1}.
        capacity: most units that a group may hold.
    """

    def __init__(self, placement: Placement, supply: int) -> None:
        self.placement = placement
        self.supply = supply
        self.widen: Callable[[int], None] | None = None
        self.reset()

    def reset(self) -> None:
        """All groups live; each holds the units of the type it starts with."""
        groups = self.placement.groups
        self.live_hosts = [list(hosts) for hosts in self.placement.hosts]
        self.alive = bytearray(b"\x01" * groups)
        self.live_count = groups
        self.at: list[dict[int, int]] = [{group: self.supply} for group in range(groups)]
        self.load = [self.supply] * groups
        self.room: dict[int, dict[int, int]] = {}
        self.over: dict[int, dict[int, int]] = {}
        self.capacity = self.supply
        self.journal: list[tuple[int, int, int]] = []

    def kill(self, group: int) -> dict[int, int]:
        """Take a group out; returns the units it held. The caller places them again."""
        self.alive[group] = 0
        self.live_count -= 1
        for kind in self.placement.stacks[group]:
            self.live_hosts[kind].remove(group)
        held = self.at[group]
        self.at[group] = {}
        self.load[group] = 0
        return held

    def revive(self, group: int) -> None:
        """Bring a group back, empty."""
        self.alive[group] = 1
        self.live_count += 1
        stacks, order = self.placement.stacks[group], self.placement.hosts
        for kind in stacks:
            self.live_hosts[kind] = [host for host in order[kind] if self.alive[host]]

    def smallest_capacity(self) -> int:
        """ceil(all units / live groups): no assignment has a smaller largest load."""
        return -(-self.placement.groups * self.supply // self.live_count)

    def overloaded(self, capacity: int) -> list[int]:
        """Groups that hold more than `capacity` units, ascending."""
        return [group for group, load in enumerate(self.load) if load > capacity]

    def place(self, missing: Mapping[int, int], floor: int) -> None:
        """Give every missing unit a live host: least largest load not below `floor`, then least moves.

        Afterwards `over` and `room` hold what was gained and given up against today's assignment.
        Every missing type must have a live host.
        """
        self.capacity = floor
        while True:
            self.journal = []
            bound = self._augment_all(missing)
            if bound == 0:
                return
            assert bound > self.capacity
            for group, kind, amount in reversed(self.journal):
                self.shift(group, kind, -amount)
            if self.widen is not None:
                self.widen(bound)
            self.capacity = bound

    def shift(self, group: int, kind: int, amount: int) -> None:
        """Add `amount` (may be negative) units of a type at a group and keep `room` and `over` true."""
        at = self.at[group]
        held = at.get(kind, 0) + amount
        if held:
            at[kind] = held
        else:
            at.pop(kind, None)
        self.load[group] += amount
        over = self.over.get(group)
        if over is None:
            over = self.over[group] = {}
        room = self.room.get(group)
        if room is None:
            room = self.room[group] = {}
        balance = over.pop(kind, 0) - room.pop(kind, 0) + amount
        if balance > 0:
            over[kind] = balance
        elif balance < 0:
            room[kind] = -balance

    def _augment_all(self, missing: Mapping[int, int]) -> int:
        """Place all missing units within `capacity`; 0, or the next capacity worth trying."""
        self._type_potential: dict[int, int] = {}
        self._host_potential: dict[int, int] = {}
        for kind in sorted(missing):
            wanted = missing[kind]
            while wanted:
                placed = self._augment(kind, wanted)
                if placed <= 0:
                    return -placed
                wanted -= placed
        return 0

    def _augment(self, source: int, wanted: int) -> int:
        """One shortest path from a type to a group with room. Units placed, or minus the next capacity to try."""
        type_pot, host_pot = self._type_potential, self._host_potential
        at, load, capacity, live_hosts = self.at, self.load, self.capacity, self.live_hosts
        empty: dict[int, int] = {}
        type_dist: dict[int, int] = {source: 0}
        host_dist: dict[int, int] = {}
        type_from: dict[int, int] = {}
        host_from: dict[int, int] = {}
        done_types: set[int] = set()
        done_hosts: set[int] = set()
        buckets: list[list[int]] = [[source]]  # types as t, groups as -1 - g
        distance = 0
        target = -1
        while distance < len(buckets) and target < 0:
            queue = buckets[distance]
            index = 0
            while index < len(queue):
                node = queue[index]
                index += 1
                if node >= 0:
                    if node in done_types:
                        continue
                    done_types.add(node)
                    base = distance + type_pot.get(node, 0)
                    for host in live_hosts[node]:
                        if host in done_hosts:
                            continue
                        step = 0 if node in self.room.get(host, empty) else 1
                        reach = base + step - host_pot.get(host, 0)
                        if reach < host_dist.get(host, 1 << 60):
                            host_dist[host] = reach
                            host_from[host] = node
                            while len(buckets) <= reach:
                                buckets.append([])
                            buckets[reach].append(-1 - host)
                else:
                    host = -1 - node
                    if host in done_hosts:
                        continue
                    done_hosts.add(host)
                    if load[host] < capacity:
                        target = host
                        break
                    base = distance + host_pot.get(host, 0)
                    over = self.over.get(host, empty)
                    for kind in at[host]:
                        if kind in done_types:
                            continue
                        reach = base - (1 if kind in over else 0) - type_pot.get(kind, 0)
                        if reach < type_dist.get(kind, 1 << 60):
                            type_dist[kind] = reach
                            type_from[kind] = host
                            while len(buckets) <= reach:
                                buckets.append([])
                            buckets[reach].append(kind)
            if target < 0:
                distance += 1
        if target < 0:
            return -(-(-len(done_types) * self.supply // len(done_hosts)))
        for kind, reach in type_dist.items():
            if reach < distance:
                type_pot[kind] = type_pot.get(kind, 0) + reach - distance
        for host, reach in host_dist.items():
            if reach < distance:
                host_pot[host] = host_pot.get(host, 0) + reach - distance
        return self._push(source, target, min(wanted, capacity - load[target]), type_from, host_from)

    def _push(
        self, source: int, target: int, amount: int, type_from: Mapping[int, int], host_from: Mapping[int, int]
    ) -> int:
        """Send as many units as fit along the path found; returns how many."""
        forward: list[tuple[int, int]] = []
        backward: list[tuple[int, int]] = []
        host = target
        while True:
            kind = host_from[host]
            forward.append((host, kind))
            room = self.room.get(host, {}).get(kind, 0)
            if room:
                amount = min(amount, room)
            if kind == source:
                break
            host = type_from[kind]
            backward.append((host, kind))
            amount = min(amount, self.over.get(host, {}).get(kind, 0) or self.at[host][kind])
        for host, kind in forward:
            self.journal.append((host, kind, amount))
            self.shift(host, kind, amount)
        for host, kind in backward:
            self.journal.append((host, kind, -amount))
            self.shift(host, kind, -amount)
        return amount
