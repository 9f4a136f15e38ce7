"""The patch: who computes the units that the step in flight still lacks, with the shortest longest extra work.

A unit is a function of its index, so that any group can compute it: `even_patch` hands single units to all survivors
in turn. `least_patch` keeps to the live hosts of the type; the largest number that one host gets is the extra critical
path. A lower bound is the average of a type over its hosts. Augmenting paths fill up to the bound; where they fail, the
groups reached prove a higher one (Hall's condition), and the search goes on from what is already placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def least_patch(
    missing: Mapping[int, int], live_hosts: Sequence[Sequence[int]]
) -> tuple[dict[int, dict[int, int]], int]:
    """Spread `missing[type]` units over the type's live hosts.

    Returns:
        {group: {type: units}} and the largest number of units at one group.
    """
    if not missing:
        return {}, 0
    if len(missing) == 1:
        [(kind, wanted)] = missing.items()
        if wanted == 1:
            return {live_hosts[kind][0]: {kind: 1}}, 1
    limit = max([-(-wanted // len(live_hosts[kind])) for kind, wanted in missing.items()])
    given: dict[int, dict[int, int]] = {}
    load: dict[int, int] = {}
    for kind in sorted(missing, key=lambda kind: (len(live_hosts[kind]), kind)):
        wanted = missing[kind]
        hosts = live_hosts[kind]
        for host in hosts if limit == 1 else sorted(hosts, key=lambda host: load.get(host, 0)):
            held = load.get(host, 0)
            if held < limit:
                amount = min(wanted, limit - held)
                load[host] = held + amount
                if host in given:
                    given[host][kind] = amount
                else:
                    given[host] = {kind: amount}
                wanted -= amount
                if not wanted:
                    break
        while wanted:
            bound = _augment(kind, live_hosts, given, load, limit)
            if bound:
                limit = bound
            else:
                wanted -= 1
    return given, max(load.values())


def even_patch(missing: Mapping[int, int], live: Sequence[int]) -> dict[int, dict[int, int]]:
    """Spread `missing[type]` units over the groups in `live`, in turn, so that none has two more than another.

    Returns:
        {group: {type: units}}.
    """
    given: dict[int, dict[int, int]] = {}
    turn = 0
    for kind in sorted(missing):
        for _ in range(missing[kind]):
            kinds = given.setdefault(live[turn % len(live)], {})
            kinds[kind] = kinds.get(kind, 0) + 1
            turn += 1
    return given


def _give(given: dict[int, dict[int, int]], load: dict[int, int], host: int, kind: int, amount: int) -> None:
    kinds = given.setdefault(host, {})
    kinds[kind] = kinds.get(kind, 0) + amount
    if not kinds[kind]:
        del kinds[kind]
    load[host] = load.get(host, 0) + amount


def _augment(
    source: int,
    live_hosts: Sequence[Sequence[int]],
    given: dict[int, dict[int, int]],
    load: dict[int, int],
    limit: int,
) -> int:
    """Place one unit of `source` within `limit` by a shortest path; 0, or the next limit worth trying."""
    type_from: dict[int, int] = {source: -1}
    host_from: dict[int, int] = {}
    queue = [source]
    for kind in queue:
        for host in live_hosts[kind]:
            if host in host_from:
                continue
            host_from[host] = kind
            if load.get(host, 0) < limit:
                while True:
                    kind = host_from[host]
                    _give(given, load, host, kind, 1)
                    host = type_from[kind]
                    if host < 0:
                        return 0
                    _give(given, load, host, kind, -1)
            for other in given[host]:
                if other not in type_from:
                    type_from[other] = host
                    queue.append(other)
    return limit + 1
