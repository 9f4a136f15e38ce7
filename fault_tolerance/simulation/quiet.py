"""Passing over steps in which nothing happens: their durations are drawn and summed at once.

Plain floats for a few steps, arrays for many; both use the same draws in the same order.
"""

from __future__ import annotations

import math

import numpy as np

from fault_tolerance.simulation.draws import Draws

FEW = 24
"""Steps up to which plain floats are quicker than arrays."""

Taken = tuple[int, float, float]
"""(steps, when the last of them ends, their all-reduce seconds)."""


def take_quiet_steps(
    draws: Draws, now: float, count: int, durations: tuple[float, float], horizon: float, due: float
) -> Taken:
    """Use draws for at most `count` steps: those that end before `horizon`, up to the first that reaches `due`.

    Args:
        durations: mean seconds of a step's compute and of its all-reduce.
        horizon: when the next failure or repair comes.
        due: when a checkpoint is due.
    """
    taken = (_few if count <= FEW else _many)(draws, now, count, durations, horizon, due)
    draws["compute"].advance(taken[0])
    draws["reduce"].advance(taken[0])
    return taken


def _few(draws: Draws, now: float, count: int, durations: tuple[float, float], horizon: float, due: float) -> Taken:
    compute_mean, reduce_mean = durations
    end, reduced, done = now, 0.0, 0
    for compute, reduce in zip(draws["compute"].peek(count), draws["reduce"].peek(count), strict=True):
        next_end = end + (compute * compute_mean + reduce * reduce_mean)
        if next_end >= horizon:
            break
        end = next_end
        reduced += reduce * reduce_mean
        done += 1
        if end >= due:
            break
    return done, end, reduced


def _many(draws: Draws, now: float, count: int, durations: tuple[float, float], horizon: float, due: float) -> Taken:
    reduce = draws["reduce"].window(count) * durations[1]
    ends = now + np.cumsum(draws["compute"].window(count) * durations[0] + reduce)
    done = int(ends.searchsorted(horizon, side="left"))
    if due < math.inf:
        done = min(done, int(ends.searchsorted(due, side="left")) + 1)
    done = min(done, count)
    return done, float(ends[done - 1]) if done else now, float(reduce[:done].sum())
