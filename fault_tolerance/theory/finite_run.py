"""Expected totals of a run of given length that starts anew after each wipe-out.

A run with work w left (in steps) finishes in its present cycle at the time t_w when W(t_w) = w, unless a wipe-out comes
first. One between the n-th save and the next (or t_w) leaves w - W(n T_c) for a new cycle. So each expected total, be
it uptime or restarts, obeys

    total(w) = own(w) + sum over n of P(wipe-out after save n) * total(w - W(n T_c)),

solved on a grid upwards from total(0) = 0. After many cycles totals grow linearly, by renewal-reward: own(infinity) per
expected work kept; the grid ends there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fault_tolerance.theory.survival import Array

_NODES = 32
"""Grid of remaining work."""

_CYCLES = 6
"""Cycles after which totals count as linear."""

_SAVES = 5_000
"""Most saves of a cycle that are told apart."""


@dataclass(frozen=True)
class Cycle:
    """One cycle from a restart on, over times (T,).

    Attributes:
        time: seconds since the restart, rising from 0, (T,).
        alive: P(no wipe-out yet), (T,).
        work: steps done if there was no wipe-out yet, (T,).
        busy: seconds of these steps, (T,).
        running: expected totals until then or the wipe-out, (T, R).
    """

    time: Array
    alive: Array
    work: Array
    busy: Array
    running: Array


def expected_totals(cycle: Cycle, period_s: float, steps: float) -> Array:
    """Totals of a run of `steps` steps: those of `cycle.running`, then restarts, then seconds of steps that count.

    Returns:
        Shape (R + 2,); infinite where no run ever gets past its first save.
    """
    period_s = max(period_s, cycle.time[-1] / _SAVES)
    saves = np.asarray(np.arange(int(cycle.time[-1] / period_s) + 1) * period_s, dtype=np.float64)
    alive, work, busy = (np.interp(saves, cycle.time, values) for values in (cycle.alive, cycle.work, cycle.busy))
    lost = alive - np.append(alive[1:], 0.0)
    kept = float(lost @ work)
    whole = np.concatenate([cycle.running[-1], [1.0, float(lost @ busy)]])
    in_first_period = steps <= np.interp(period_s, cycle.time, cycle.work)
    reach = steps if in_first_period else min(steps, _CYCLES * kept)
    totals = _solve(cycle, saves, alive, work, busy, reach)
    if reach == steps:
        return totals
    if kept <= 0:
        return np.full(len(whole), math.inf)
    return totals + (steps - reach) * whole / kept


def _solve(cycle: Cycle, saves: Array, alive: Array, work: Array, busy: Array, reach: float) -> Array:
    """total(reach), by steps of reach / _NODES."""
    width = reach / _NODES
    totals = np.zeros((_NODES + 1, cycle.running.shape[1] + 2))
    if width <= 0:
        return totals[0]
    for node in range(1, _NODES + 1):
        left = node * width
        finish = float(np.interp(left, cycle.work, cycle.time))
        if left > cycle.work[-1]:
            finish = float(cycle.time[-1])
        survives = float(np.interp(finish, cycle.time, cycle.alive))
        count = max(1, int(np.searchsorted(saves, finish)))
        lost = alive[:count] - np.append(alive[1:count], survives)
        own = np.concatenate(
            [
                [np.interp(finish, cycle.time, values) for values in cycle.running.T],
                [1 - survives, survives * np.interp(finish, cycle.time, cycle.busy) + lost @ busy[:count]],
            ]
        )
        # Restarts with the same work left (nothing saved) are summed at once; those nearer than a grid step lean on
        # the value that is being computed, which two rounds settle.
        position = np.maximum(left - work[1:count], 0.0) / width
        lower = np.minimum(position.astype(np.int64), node - 1)
        upward = position - lower
        again = max(1 - lost[0], 1e-300)
        totals[node] = totals[node - 1]
        for _ in range(2):
            later = lost[1:] @ (totals[lower] * (1 - upward)[:, None] + totals[lower + 1] * upward[:, None])
            totals[node] = (own + later) / again
    return totals[-1]
