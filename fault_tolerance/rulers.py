"""Cyclic Golomb rulers: r marks whose pairwise differences mod N are all distinct, found fast and the same each time.

In this order: a known optimal ruler; the algebraic constructions of Singer, Bose and Ruzsa whose modulus is N; their
cyclic windows of r marks, which are short rulers, for other N; a bounded backtracking search. Whatever comes out is
checked, never assumed. Where r (r - 1) > N - 1 no such ruler exists (there are only N - 1 differences); then, and where
the search ends empty-handed, a local search gives the fewest repeated differences it can find.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from math import gcd

from fault_tolerance.difference_sets import FAMILIES, sizes_for

OPTIMAL_RULERS: tuple[tuple[int, ...], ...] = (
    (0,),
    (0, 1),
    (0, 1, 3),
    (0, 1, 4, 6),
    (0, 1, 4, 9, 11),
    (0, 1, 4, 10, 12, 17),
    (0, 1, 4, 10, 18, 23, 25),
    (0, 1, 4, 9, 15, 22, 32, 34),
    (0, 1, 5, 12, 25, 27, 35, 41, 44),
    (0, 1, 6, 10, 23, 26, 34, 41, 53, 55),
    (0, 1, 4, 13, 28, 33, 47, 54, 64, 70, 72),
    (0, 2, 6, 24, 29, 40, 43, 55, 68, 75, 76, 85),
    (0, 2, 5, 25, 37, 43, 59, 70, 85, 89, 98, 99, 106),
    (0, 4, 6, 20, 35, 52, 59, 77, 78, 86, 89, 99, 122, 127),
    (0, 4, 20, 30, 57, 59, 62, 76, 100, 111, 123, 136, 144, 145, 151),
    (0, 1, 4, 11, 26, 32, 56, 68, 76, 115, 117, 134, 150, 163, 168, 177),
    (0, 5, 7, 17, 52, 56, 67, 80, 81, 100, 122, 138, 159, 165, 168, 191, 199),
    (0, 2, 10, 22, 53, 56, 82, 83, 89, 98, 130, 148, 153, 167, 188, 192, 205, 216),
    (0, 1, 6, 25, 32, 72, 100, 108, 120, 130, 153, 169, 187, 190, 204, 231, 233, 242, 246),
    (0, 1, 8, 11, 68, 77, 94, 116, 121, 156, 158, 179, 194, 208, 212, 228, 240, 253, 259, 283),
)
"""Shortest rulers with distinct differences for 1 to 20 marks (the published table, for example OEIS A003022)."""

SEARCH_STEPS = 30_000
"""Steps that the backtracking and the local search may take, each; bounds the time, not the clock."""

MULTIPLES = 60
"""Multiples of a difference set among which the shortest window is sought."""


@lru_cache(maxsize=256)
def find_ruler(modulus: int, marks: int) -> tuple[int, ...]:
    """`marks` marks, 0 first, with distinct differences mod `modulus`; where there is none, the fewest repeats found.

    Both numbers are at least 1 and marks <= modulus.
    """
    possible = marks * (marks - 1) <= modulus - 1
    starts: list[tuple[int, tuple[int, ...]]] = []
    for ruler in _known(modulus, marks):
        repeats = repeated_differences(ruler, modulus)
        if repeats == 0:
            return ruler
        starts.append((repeats, ruler))
    if possible:
        found = _backtrack(modulus, marks)
        if found:
            return found
    rulers = [_exchange(modulus, _one_by_one(modulus, marks))]
    if starts:
        rulers.append(_exchange(modulus, min(starts)[1]))
    return min(rulers, key=lambda ruler: (repeated_differences(ruler, modulus), ruler))


def repeated_differences(marks: tuple[int, ...], modulus: int) -> int:
    """How many ordered differences a_i - a_j mod `modulus` (i != j) stand again after their first time."""
    seen = bytearray(modulus)
    repeats = 0
    for a in marks:
        for b in marks:
            if a != b:
                difference = (a - b) % modulus
                repeats += seen[difference]
                seen[difference] = 1
    return repeats


def _known(modulus: int, marks: int) -> Iterator[tuple[int, ...]]:
    """Rulers from the table and from algebra, the cheapest first; those too long for `modulus` are starting points."""
    if marks <= len(OPTIMAL_RULERS) and OPTIMAL_RULERS[marks - 1][-1] < modulus:
        yield OPTIMAL_RULERS[marks - 1]
    for family, order in sizes_for(modulus, marks):
        whole, size = FAMILIES[family](order)
        if size == modulus:
            yield tuple(sorted((mark - whole[0]) % modulus for mark in whole)[:marks])
        else:
            ruler = _shortest_window(whole, size, marks)
            if ruler[-1] < modulus:
                yield ruler


def _shortest_window(whole: tuple[int, ...], size: int, marks: int) -> tuple[int, ...]:
    """The shortest `marks` neighbouring marks of a difference set mod `size`, over its first multiples."""
    best: tuple[int, ...] = ()
    for multiplier in range(1, min(size, MULTIPLES)):
        if gcd(multiplier, size) != 1:
            continue
        ring = sorted(mark * multiplier % size for mark in whole)
        ring += [mark + size for mark in ring]
        length, first = min((ring[i + marks - 1] - ring[i], i) for i in range(len(whole)))
        if not best or length < best[-1]:
            best = tuple(mark - ring[first] for mark in ring[first : first + marks])
    return best


def _backtrack(modulus: int, marks: int) -> tuple[int, ...]:
    """Depth-first search in ascending order with a bounded number of candidates; empty where it found none."""
    used = bytearray(modulus)
    chosen = [0]
    added: list[list[int]] = []
    candidate = 1
    for _ in range(SEARCH_STEPS):
        if len(chosen) == marks:
            return tuple(chosen)
        # The marks still to come need at least one place each.
        if candidate + (marks - len(chosen)) > modulus:
            if not added:
                return ()
            candidate = chosen.pop() + 1
            for difference in added.pop():
                used[difference] = 0
            continue
        new: list[int] = []
        for mark in chosen:
            forward, back = candidate - mark, modulus - (candidate - mark)
            if used[forward] or used[back] or forward == back:
                break
            new += (forward, back)
        if len(new) == 2 * len(chosen) == len(set(new)):
            for difference in new:
                used[difference] = 1
            chosen.append(candidate)
            added.append(new)
        candidate += 1
    return ()


class _Differences:
    """How often each difference mod `modulus` stands among a growing and shrinking set of marks."""

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus
        self.counts = [0] * modulus

    def shift(self, mark: int, others: list[int], by: int) -> None:
        """Count (or, with -1, uncount) the differences between a mark and others."""
        for other in others:
            self.counts[(mark - other) % self.modulus] += by
            self.counts[(other - mark) % self.modulus] += by

    def cheapest(self, others: list[int], start: int) -> tuple[int, int]:
        """(repeats, place) of the best place for one more mark among a window of places from `start` on.

        A difference and its inverse stand equally often, so that one direction is enough.
        """
        modulus, counts, taken = self.modulus, self.counts, set(others)
        width = max(len(others) + 1, SEARCH_STEPS * 8 // (len(others) + 1) ** 2)
        places = [(start + i) % modulus for i in range(min(modulus, width))]
        return min((sum([counts[place - other] for other in others]), place) for place in places if place not in taken)


def _one_by_one(modulus: int, marks: int) -> tuple[int, ...]:
    """Mark by mark the one that repeats least."""
    differences, chosen = _Differences(modulus), [0]
    while len(chosen) < marks:
        _, place = differences.cheapest(chosen, chosen[-1] + 1)
        differences.shift(place, chosen, 1)
        chosen.append(place)
    return tuple(sorted(chosen))


def _exchange(modulus: int, ruler: tuple[int, ...]) -> tuple[int, ...]:
    """Seeded exchange of single marks while that lowers the number of repeats, for a bounded number of looks."""
    if len(ruler) < 3:
        return ruler
    differences, chosen = _Differences(modulus), list(ruler)
    for index, mark in enumerate(chosen):
        differences.shift(mark, chosen[:index], 1)
    rng = random.Random(modulus * 1009 + len(ruler))
    looks = SEARCH_STEPS * 5
    while looks > 0:
        index = rng.randrange(1, len(chosen))
        mark = chosen.pop(index)
        differences.shift(mark, chosen, -1)
        now = sum(differences.counts[mark - other] for other in chosen)
        found, place = differences.cheapest(chosen, rng.randrange(modulus))
        if found > now:
            place = mark
        differences.shift(place, chosen, 1)
        chosen.insert(index, place)
        looks -= SEARCH_STEPS * 8 // len(chosen)
    return tuple(sorted(chosen))
