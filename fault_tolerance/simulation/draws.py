"""Random factors of durations: one stream of N(1, std^2) per kind of duration.

Streams are independent of each other, so the i-th all-reduce gets the same factor however many computes were drawn
before it, and a second engine that asks in its own order gets the same draws. Blocks are drawn at once; a window of
coming draws can be looked at as an array before it is used, which lets the engine pass over quiet steps in bulk.
"""

from __future__ import annotations

import numpy as np

KINDS: tuple[str, ...] = (
    "compute",
    "reduce",
    "shrink",
    "replan",
    "patch",
    "save",
    "restart",
    "repair",
    "join",
    "write",
)

_BLOCK = 4096


class _Stream:
    """Draws of one kind."""

    __slots__ = ("_at", "_block", "_list", "_random", "_std")

    def __init__(self, random: np.random.Generator, std: float) -> None:
        self._random = random
        self._std = std
        self._block = np.empty(0)
        self._list: list[float] = []
        self._at = 0

    def window(self, count: int) -> np.ndarray:
        """The next `count` draws, not yet used."""
        self._fill(count)
        return self._block[self._at : self._at + count]

    def peek(self, count: int) -> list[float]:
        """As `window`, as a list: cheaper than an array for a few."""
        self._fill(count)
        return self._list[self._at : self._at + count]

    def advance(self, count: int) -> None:
        """Use `count` draws of the last window."""
        self._at += count

    def next(self) -> float:
        """Use one draw."""
        at = self._at
        if at >= len(self._list):
            self._fill(1)
            at = 0
        self._at = at + 1
        return self._list[at]

    def _fill(self, count: int) -> None:
        if self._at + count > len(self._list):
            fresh = max(_BLOCK, count)
            drawn = 1.0 + self._std * self._random.standard_normal(fresh) if self._std else np.ones(fresh)
            self._block = np.concatenate([self._block[self._at :], drawn])
            self._list = self._block.tolist()
            self._at = 0


class Draws(dict[str, _Stream]):
    """All streams of a run by kind; a seed gives the same draws in every engine."""

    def __init__(self, seed: int, std: float) -> None:
        """`std`: relative standard deviation; 0 makes every factor exactly 1."""
        # From 1 on: numpy takes [seed, 0] for seed, which failure processes are seeded with.
        seeds = {kind: [seed, index] for index, kind in enumerate(KINDS, 1)}
        super().__init__({kind: _Stream(np.random.default_rng(seeds[kind]), std) for kind in KINDS})
