"""The incremental solver against networkx on random sequences and against brute force on every failure set."""

from __future__ import annotations

import itertools
import random

import pytest

from fault_tolerance.assignment import SpreadAssignment, StackAssignment, least_patch
from fault_tolerance.assignment.solvers import make_solver
from fault_tolerance.placement import make_placement


def assignment(
    mode: str, groups: int, redundancy: int, micro_batches: int = 3, solver: str = "incremental", name="cyclic"
):
    layout = make_placement(name, groups, redundancy)
    if mode == "stacked":
        return StackAssignment(layout, 1, make_solver(solver))
    return SpreadAssignment(layout, micro_batches, mode == "whole", make_solver(solver))


def heads(subject: StackAssignment) -> dict[int, tuple[int, ...]]:
    return {g: o[: subject.flow.capacity] for g, o in enumerate(subject.order) if subject.flow.alive[g]}


def units(subject: SpreadAssignment) -> dict[tuple[int, int], int]:
    return {(kind, piece): g for g, owned in enumerate(subject.owned) for kind, ps in owned.items() for piece in ps}


def brute_force_spread(hosts: list[tuple[int, ...]], today: dict[int, dict[int, int]], supply: int) -> tuple[int, int]:
    """Least (largest load, moves) over all ways to distribute each type's units, by dynamic programming over types."""
    states: dict[tuple[int, ...], int] = {(0,) * len(hosts): 0}
    for kind, live in enumerate(hosts):
        successors: dict[tuple[int, ...], int] = {}
        for split in itertools.product(range(supply + 1), repeat=len(live)):
            if sum(split) != supply:
                continue
            cost = sum(max(0, n - today.get(h, {}).get(kind, 0)) for n, h in zip(split, live, strict=True))
            for loads, moves in states.items():
                new = list(loads)
                for n, h in zip(split, live, strict=True):
                    new[h] += n
                key = tuple(new)
                if moves + cost < successors.get(key, 1 << 30):
                    successors[key] = moves + cost
        states = successors
    return min((max(loads), moves) for loads, moves in states.items())


def brute_force_stacked(hosts: list[tuple[int, ...]], orders: dict[int, tuple[int, ...]]) -> tuple[int, int]:
    """Least (S, pulls into a head) over all ways to give each type one live host."""
    best = (1 << 30, 1 << 30)
    choices = list(itertools.product(*hosts))
    depth = 1
    while best[0] == 1 << 30:
        for choice in choices:
            if max(choice.count(h) for h in set(choice)) <= depth:
                pulls = sum(kind not in orders[h][:depth] for kind, h in enumerate(choice))
                best = min(best, (depth, pulls))
        depth += 1
    return best


def failure_sequences(groups: int):
    """Every set of dead groups, as one blow and one after another."""
    for size in range(1, groups):
        for dead in itertools.combinations(range(groups), size):
            yield [list(dead)]
            if size > 1:
                yield [[g] for g in dead]


@pytest.mark.parametrize(("groups", "redundancy"), [(3, 2), (4, 2), (5, 3), (6, 3), (7, 3)])
@pytest.mark.parametrize("mode", ["whole", "stacked"])
def test_whole_types_against_brute_force(mode: str, groups: int, redundancy: int) -> None:
    for blows in failure_sequences(groups):
        subject = assignment(mode, groups, redundancy)
        for dead in blows:
            before = {g: dict(at) for g, at in enumerate(subject.flow.at)}
            orders = dict(enumerate(subject.order)) if mode == "stacked" else {}
            depth = subject.flow.capacity
            change = subject.remove(dead)
            hosts = list(subject.flow.live_hosts)
            assert change.lost_types == tuple(k for k, live in enumerate(hosts) if not live)
            if change.lost_types:
                break
            if mode == "whole":
                expected = brute_force_spread(hosts, before, 1)
                assert (max(subject.flow.load), change.moves) == expected
            else:
                expected = brute_force_stacked(hosts, orders)
                covered = set().union(*(orders[g][:depth] for g in heads(subject)))
                assert (change.phase == 0) == (len(covered) == groups)
                assert (subject.flow.capacity, change.moves) == expected


@pytest.mark.parametrize(("groups", "redundancy", "supply"), [(4, 2, 3), (5, 3, 2), (5, 2, 4)])
def test_micro_batches_against_brute_force(groups: int, redundancy: int, supply: int) -> None:
    for blows in failure_sequences(groups):
        subject = assignment("micro", groups, redundancy, supply)
        for dead in blows:
            before = {g: dict(at) for g, at in enumerate(subject.flow.at)}
            change = subject.remove(dead)
            if change.lost_types:
                break
            expected = brute_force_spread(list(subject.flow.live_hosts), before, supply)
            assert (max(subject.flow.load), change.moves) == expected


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["whole", "stacked", "micro"])
def test_same_optimum_as_networkx(mode: str, seed: int) -> None:
    """Deaths and returns at random; the second solver starts each change from the first one's state."""
    rng = random.Random(seed)
    groups, redundancy = rng.choice([(9, 3), (12, 4), (14, 4), (16, 3)])
    subject = assignment(mode, groups, redundancy, 5)
    reference = make_solver("networkx")
    fast = subject._solve
    results: list[tuple[int, int]] = []

    def both(flow, missing, floor):
        saved = (
            [dict(at) for at in flow.at],
            list(flow.load),
            {k: dict(v) for k, v in flow.room.items()},
            flow.capacity,
        )
        reference(flow, missing, floor)
        results.append((flow.capacity, sum(sum(kinds.values()) for kinds in flow.over.values())))
        flow.at, flow.load, flow.room, flow.capacity = saved
        flow.over = {}
        fast(flow, missing, floor)
        moved = sum(sum(kinds.values()) for kinds in flow.over.values())
        assert (flow.capacity, moved) == results[-1]

    subject._solve = both
    for _ in range(14):
        live = [g for g in range(groups) if subject.flow.alive[g]]
        gone = [g for g in range(groups) if not subject.flow.alive[g]]
        if gone and rng.random() < 0.3:
            change = subject.add(rng.sample(gone, rng.randint(1, len(gone))))
        else:
            change = subject.remove(rng.sample(live, min(len(live), rng.choice([1, 1, 1, 2, 3]))))
        if change.lost_types:
            subject.reset()
    assert results


def brute_force_patch(missing: dict[int, int], hosts: list[list[int]]) -> int:
    units_ = [kind for kind, count in missing.items() for _ in range(count)]
    best = len(units_)
    for choice in itertools.product(*(hosts[kind] for kind in units_)):
        best = min(best, max(choice.count(h) for h in set(choice)))
    return best


def test_patch_is_shortest() -> None:
    rng = random.Random(0)
    for _ in range(150):
        hosts = [sorted(rng.sample(range(5), rng.randint(1, 3))) for _ in range(4)]
        missing = {kind: rng.randint(1, 3) for kind in rng.sample(range(4), rng.randint(1, 3))}
        given, longest = least_patch(missing, hosts)
        assert longest == brute_force_patch(missing, hosts)
        placed: dict[int, int] = dict.fromkeys(missing, 0)
        for host, kinds in given.items():
            assert sum(kinds.values()) <= longest
            for kind, count in kinds.items():
                assert count > 0 and host in hosts[kind]
                placed[kind] += count
        assert placed == missing
