"""Cyclic Golomb rulers: r marks whose pairwise differences mod N are all distinct."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

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


def repeated_differences(marks: tuple[int, ...], modulus: int) -> int:
    """How many ordered differences a_i - a_j mod `modulus` (i != j) stand again after their first time."""
    counts = Counter((a - b) % modulus for a in marks for b in marks if a != b)
    return sum(count - 1 for count in counts.values())


@lru_cache(maxsize=256)
def find_ruler(modulus: int, marks: int) -> tuple[int, ...]:
    """`marks` marks with distinct differences mod `modulus`; where that is impossible the fewest repeats found."""
    if marks <= len(OPTIMAL_RULERS):
        ruler = OPTIMAL_RULERS[marks - 1]
        if ruler[-1] < modulus and repeated_differences(ruler, modulus) == 0:
            return ruler
    return _greedy(modulus, marks)


def _greedy(modulus: int, marks: int) -> tuple[int, ...]:
    """Mark by mark the smallest one that adds the fewest repeated differences."""
    chosen = [0]
    counts = [0] * modulus
    while len(chosen) < marks:
        best, best_cost = -1, -1
        for candidate in range(1, modulus):
            if candidate in chosen:
                continue
            cost = sum(counts[(candidate - mark) % modulus] for mark in chosen)
            if best < 0 or cost < best_cost:
                best, best_cost = candidate, cost
                if cost == 0:
                    break
        for mark in chosen:
            counts[(best - mark) % modulus] += 1
            counts[(mark - best) % modulus] += 1
        chosen.append(best)
    return tuple(sorted(chosen))
