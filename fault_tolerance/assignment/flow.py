"""The flow from shard types to live groups, repaired rather than solved anew when the membership changes.

Supply: each type has `supply` units. A unit may go to any live host of its type; no group may hold more than
`capacity` units. A unit costs nothing where today's assignment has it and 1 (a move) anywhere else. Today's
assignment less the units of the dead is a flow of cost zero, hence the cheapest of its size. The primal-dual method
(Ahuja, Magnanti, Orlin: Network Flows, 1993, section 9.8) adds the missing units and keeps it the cheapest: a bucket
Dijkstra over reduced costs finds how far the nearest group with room is, then as many units as possible are sent at
that price, then the next price. Only what has to change is touched.

When no group with room can be reached, the types and groups that the search saw prove it: those groups are full, and
they hold all units of those types only if each holds more. That gives the next capacity to try (Hall's condition).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping

from fault_tolerance.placement import Placement

FAR = 1 << 60


class Search:
    """What the searches of one `place` know: prices (potentials) that last, and the latest distances and ways back.

    Attributes:
        type_price, host_price: potentials, 0 or below; groups with room have 0.
        type_dist, host_dist: distance from the wanted types in the latest search; FAR where it did not look.
        type_from: the group through which a type was reached; host_from: the type through which a group was.
        gates: types that the latest search reached; the last one before a group with room is among them.
        found: the group with room that the latest search reached first.
    """

    def __init__(self, groups: int, tried: Collection[int]) -> None:
        """`tried`: types whose units have been sent to hosts with room already, at the first price."""
        self.type_price, self.host_price = [0] * groups, [0] * groups
        for kind in tried:
            self.type_price[kind] = -1
        self.type_from, self.host_from = [-1] * groups, [-1] * groups
        self.type_dist: list[int] = []
        self.host_dist: list[int] = []
        self.gates: list[int] = []
        self.found = -1


class Flow:
    """Units per (group, type), with what they cost against today's assignment.

    Attributes:
        live_hosts: per type its live hosts, in the placement's order.
        alive: per group 1 or 0.
        at: per group {type: units held}.
        load: per group the sum of `at`.
        room: {type: {group: units that may still be put there at no cost}}.
        over: {group: {type: units held there at cost 1}}.
        capacity: most units that a group may hold.
        journal: (group, type, units) as put or taken by the last `place`.
        widen: called with a new capacity before it holds; may add to `room`.
    """

    def __init__(self, placement: Placement, supply: int) -> None:
        self.placement = placement
        self.supply = supply
        self.widen: Callable[[int], None] | None = None
        self.reset()

    def reset(self) -> None:
        """All groups live; each holds the units of the type it starts with."""
        groups, supply = self.placement.groups, self.supply
        self.live_hosts: list[list[int]] = list(map(list, self.placement.hosts))
        self.alive = bytearray(b"\x01" * groups)
        self.live_count = groups
        self.at: list[dict[int, int]] = [{group: supply} for group in range(groups)]
        self.load = [supply] * groups
        self.room: dict[int, dict[int, int]] = {}
        self.over: dict[int, dict[int, int]] = {}
        self.capacity = supply
        self.journal: list[tuple[int, int, int]] = []

    def kill(self, group: int) -> list[int]:
        """Take a group out; returns the types that it was the last to host. The caller places its units again."""
        self.alive[group] = 0
        self.live_count -= 1
        self.at[group] = {}
        self.load[group] = 0
        live_hosts, unhosted = self.live_hosts, []
        for kind in self.placement.stacks[group]:
            hosts = live_hosts[kind]
            hosts.remove(group)
            if not hosts:
                unhosted.append(kind)
        return unhosted

    def revive(self, group: int) -> None:
        """Bring a group back, empty."""
        alive = self.alive
        alive[group] = 1
        self.live_count += 1
        for kind in self.placement.stacks[group]:
            self.live_hosts[kind] = [host for host in self.placement.hosts[kind] if alive[host]]

    def smallest_capacity(self) -> int:
        """ceil(all units / live groups): no assignment has a smaller largest load."""
        return -(-self.placement.groups * self.supply // self.live_count)

    def overloaded(self, capacity: int) -> list[int]:
        """Groups that hold more than `capacity` units, ascending."""
        return [group for group, load in enumerate(self.load) if load > capacity]

    def shift(self, group: int, kind: int, amount: int) -> None:
        """Add `amount` (may be negative) units of a type at a group and keep `room` and `over` true."""
        at = self.at[group]
        held = at.get(kind, 0) + amount
        if held:
            at[kind] = held
        else:
            del at[kind]
        self.load[group] += amount
        over = self.over.get(group)
        if over and kind in over:
            amount += over.pop(kind)
        room = self.room.get(kind)
        if room and group in room:
            amount -= room.pop(group)
        if amount > 0:
            if over is None:
                self.over[group] = {kind: amount}
            else:
                over[kind] = amount
        elif amount < 0:
            if room is None:
                self.room[kind] = {group: -amount}
            else:
                room[group] = -amount

    def place(self, missing: Mapping[int, int], floor: int) -> None:
        """Give every missing unit a live host: least largest load not below `floor`, then least moves.

        Afterwards `over` and `room` hold what was gained and given up against today's assignment.
        Every missing type must have a live host.
        """
        self.capacity = floor
        while True:
            self.journal = []
            bound = self._place_within({kind: missing[kind] for kind in sorted(missing)})
            if bound == 0:
                return
            assert bound > self.capacity
            for group, kind, amount in reversed(self.journal):
                self.shift(group, kind, -amount)
            if self.widen is not None:
                self.widen(bound)
            self.capacity = bound

    def _place_within(self, wanted: dict[int, int]) -> int:
        """Place all wanted units within `capacity`; 0, or the next capacity worth trying."""
        tried: Collection[int] = ()
        if not self.room:
            tried, wanted = wanted, self._place_directly(wanted)
            if not wanted:
                return 0
        search = Search(self.placement.groups, tried)
        while wanted:
            bound = self._raise_prices(wanted, search)
            if bound:
                return bound
            self._send(wanted, search)
        return 0

    def _place_directly(self, wanted: Mapping[int, int]) -> dict[int, int]:
        """The first price when nothing is free of cost: straight to hosts with room, the emptiest first.

        Returns the units for which there is no such room.
        """
        load, capacity, left = self.load, self.capacity, {}
        load_of = load.__getitem__
        for kind, amount in wanted.items():
            while amount:
                host = min(self.live_hosts[kind], key=load_of)
                sent = capacity - load[host]
                if sent <= 0:
                    left[kind] = amount
                    break
                if sent > amount:
                    sent = amount
                self.shift(host, kind, sent)
                self.journal.append((host, kind, sent))
                amount -= sent
        return left

    def _raise_prices(self, wanted: Mapping[int, int], search: Search) -> int:
        """Dijkstra from all wanted types to the nearest group with room; prices rise so that the way there costs 0.

        Returns 0, or the next capacity worth trying where no such group can be reached.
        """
        at, load, capacity, live_hosts = self.at, self.load, self.capacity, self.live_hosts
        rooms, overs = self.room, self.over
        type_price, host_price = search.type_price, search.host_price
        type_from, host_from = search.type_from, search.host_from
        type_dist = search.type_dist = [FAR] * len(load)
        host_dist = search.host_dist = [FAR] * len(load)
        type_bar, host_bar = type_dist.copy(), host_dist.copy()  # distance + price: only below it a way is shorter
        for kind in wanted:
            type_dist[kind] = 0
            type_bar[kind] = type_price[kind]
            type_from[kind] = -1
        type_queues: defaultdict[int, list[int]] = defaultdict(list, {0: list(wanted)})
        host_queues: defaultdict[int, list[int]] = defaultdict(list)
        settled_types: list[int] = []
        settled_hosts: list[int] = []
        distance = 0
        nearest = FAR  # the smallest distance seen of a group with room; nothing beyond matters
        while distance < nearest:
            types, hosts = type_queues.pop(distance, []), host_queues.pop(distance, [])
            if not types and not hosts:
                if not type_queues and not host_queues:
                    break
                distance = min([*type_queues, *host_queues])
                continue
            for kind in types:
                if type_dist[kind] != distance:
                    continue
                settled_types.append(kind)
                base = distance + type_price[kind] + 1
                room = rooms.get(kind)
                if base >= nearest and not room:
                    continue
                for host in live_hosts[kind]:
                    if base >= host_bar[host] and not room:
                        continue
                    reach = base - host_price[host] - (1 if room and host in room else 0)
                    if reach < nearest and reach < host_dist[host]:
                        host_dist[host] = reach
                        host_bar[host] = reach + host_price[host]
                        host_from[host] = kind
                        if load[host] < capacity:
                            nearest, search.found = reach, host
                        elif reach == distance:
                            hosts.append(host)
                        else:
                            host_queues[reach].append(host)
            if nearest == distance:
                break
            for host in hosts:
                if host_dist[host] != distance:
                    continue
                settled_hosts.append(host)
                base = distance + host_price[host]
                over = overs.get(host)
                for kind in at[host]:
                    if base >= type_bar[kind] and not over:
                        continue
                    reach = base - type_price[kind] - (1 if over and kind in over else 0)
                    if reach < type_dist[kind]:
                        type_dist[kind] = reach
                        type_bar[kind] = reach + type_price[kind]
                        type_from[kind] = host
                        type_queues[reach].append(kind)
        if nearest == FAR:
            return -(-len(settled_types) * self.supply // len(settled_hosts))
        for kind in settled_types:
            type_price[kind] += type_dist[kind] - nearest
        for host in settled_hosts:
            host_price[host] += host_dist[host] - nearest
        search.gates = settled_types
        return 0

    def _send(self, wanted: dict[int, int], search: Search) -> None:
        """Send as many wanted units as possible along edges of reduced cost 0.

        Paths are sought backward, from a type next to a group with room to a wanted type: first only on the way that
        the search took, which nearly always is enough, then everywhere. What was left without success leads back to
        no wanted type, now or later at this price, and stays marked; a successful path is unmarked.
        """
        if len(wanted) == 1 and 1 in wanted.values():
            self._send_along(self._way_found(wanted, search), 1)
            wanted.clear()
            return
        self._send_through_gates(wanted, search, lambda gate: self._straight_back(gate, wanted, search))
        if not wanted:
            return
        seen_types, seen_hosts = bytearray(len(self.load)), bytearray(len(self.load))

        def by_any_way(gate: int) -> list[tuple[int, int]]:
            path = [] if seen_types[gate] else self._find_path(gate, wanted, search, seen_types, seen_hosts)
            for between, kind in path:
                seen_hosts[between] = seen_types[kind] = 0
            return path

        self._send_through_gates(wanted, search, by_any_way)

    def _send_through_gates(
        self, wanted: dict[int, int], search: Search, way_back: Callable[[int], list[tuple[int, int]]]
    ) -> None:
        """Send to each group with room next to a gate as long as `way_back` finds a wanted type."""
        load, capacity, type_price = self.load, self.capacity, search.type_price
        for gate in search.gates:
            price = type_price[gate]
            room = self.room.get(gate)
            if price < -1 or (price == 0 and not room):
                continue
            path_is_open = True
            for host in self.live_hosts[gate]:
                while load[host] < capacity and price == (0 if room and host in room else -1):
                    path = way_back(gate)
                    if not path:
                        path_is_open = False
                        break
                    source = path[-1][1]
                    wanted[source] -= self._send_along([*reversed(path[1:]), (host, gate)], wanted[source])
                    if not wanted[source]:
                        del wanted[source]
                        if not wanted:
                            return
                if not path_is_open:
                    break

    def _way_found(self, wanted: Collection[int], search: Search) -> list[tuple[int, int]]:
        """The way of the latest search from a wanted type to a group with room, as `_send_along` takes it."""
        host = search.found
        kind = search.host_from[host]
        path = [(host, kind)]
        while kind not in wanted:
            host = search.type_from[kind]
            kind = search.host_from[host]
            path.append((host, kind))
        path.reverse()
        return path

    def _straight_back(self, gate: int, wanted: Mapping[int, int], search: Search) -> list[tuple[int, int]]:
        """The way on which the latest search came to `gate`, as in `_find_path`, if still open; else empty."""
        type_price, host_price = search.type_price, search.host_price
        kind, path = gate, [(gate, gate)]
        while kind not in wanted:
            host = search.type_from[kind]
            if host < 0 or kind not in self.at[host]:
                return []
            over = self.over.get(host)
            if host_price[host] != type_price[kind] + (1 if over and kind in over else 0):
                return []
            kind = search.host_from[host]
            room = self.room.get(kind)
            if type_price[kind] != host_price[host] - (0 if room and host in room else 1):
                return []
            path.append((host, kind))
        return path

    def _find_path(
        self,
        gate: int,
        wanted: Mapping[int, int],
        search: Search,
        seen_types: bytearray,
        seen_hosts: bytearray,
    ) -> list[tuple[int, int]]:
        """The way back from a type to a wanted one along edges of reduced cost 0; empty if there is none.

        Returns [(gate's place holder, gate), (group, type put there), ...]; each group gives up a unit of the type
        before it.
        """
        stacks = self.placement.stacks
        type_price, host_price = search.type_price, search.host_price
        type_dist, host_dist = search.type_dist, search.host_dist
        seen_types[gate] = 1
        path = [(gate, gate)]
        hosts_left = [iter(self.live_hosts[gate])]
        types_left: list[Iterator[int]] = []
        hosts: list[int] = []
        while path:
            kind = path[-1][1]
            price = type_price[kind]
            for host in hosts_left[-1]:
                if seen_hosts[host] or host_dist[host] == FAR or kind not in self.at[host]:
                    continue
                over = self.over.get(host)
                if host_price[host] != price + (1 if over and kind in over else 0):
                    continue
                seen_hosts[host] = 1
                hosts.append(host)
                types_left.append(iter(stacks[host]))
                break
            else:
                path.pop()
                hosts_left.pop()
            if types_left and len(types_left) == len(path):
                host = hosts[-1]
                price = host_price[host]
                for other in types_left[-1]:
                    if seen_types[other] or type_dist[other] == FAR:
                        continue
                    room = self.room.get(other)
                    if type_price[other] != price - (0 if room and host in room else 1):
                        continue
                    seen_types[other] = 1
                    path.append((host, other))
                    if other in wanted:
                        return path
                    hosts_left.append(iter(self.live_hosts[other]))
                    break
                else:
                    types_left.pop()
                    hosts.pop()
        return []

    def _send_along(self, path: list[tuple[int, int]], amount: int) -> int:
        """Send as many units as fit along a path, at most `amount`; returns how many."""
        last = path[-1][0]
        amount = min(amount, self.capacity - self.load[last])
        previous = -1
        for host, kind in path:
            room = self.room.get(kind)
            if room and host in room:
                amount = min(amount, room[host])
            if previous >= 0:
                over = self.over.get(previous)
                amount = min(amount, over[kind] if over and kind in over else self.at[previous][kind])
            previous = host
        previous = -1
        for host, kind in path:
            self.shift(host, kind, amount)
            self.journal.append((host, kind, amount))
            if previous >= 0:
                self.shift(previous, kind, -amount)
                self.journal.append((previous, kind, -amount))
            previous = host
        return amount
