"""Time to train where lifetimes age: an estimate over cycles from one global restart to the next.

The published J(r) lets failures come at a constant rate. Real lifetimes do not: with a Weibull shape below 1 and ages
reset at a restart, failures come in a burst after it and thin out, so that a small r wipes out in half the time that
mu * MTBF says. Here each group is dead t seconds after the restart with probability q(t), the distribution of its
lifetime, so the number of failures k is binomial, and
- G(t) = sum over k of P(k) P(K > k): no wipe-out yet (`survival`); T_f = integral of G, the mean time to the wipe-out;
- a step with k failures behind it takes the seconds of its stacks (`stacks`) and of the all-reduce, and where it is
  struck those of patch, shrink and replanning;
- W(t) = integral of (steps per second) given no wipe-out yet, less the share T_s/T_c for saves: steps done by t;
- a wipe-out leaves what the last save holds, and the next cycle starts from there (`finite_run`).
Time to train is the expected uptime of the run plus T_r for each expected restart. Assumes that steps are short against
a period, and neither failures during a restart nor repairs. `scripts/bench_theory.py` prints how far it is from the
paper's table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.placement import check_sizes
from fault_tolerance.theory.finite_run import Cycle, expected_totals
from fault_tolerance.theory.stacks import least_load, least_stacks, patch_stacks
from fault_tolerance.theory.survival import Array, survival_after

METHODS = ("ckpt", "rep", "spare", "spare_micro_batch")
"""CKPT-only; replication (all r copies computed); SPARe with whole shards; SPARe with micro-batches."""

_POINTS = 251
"""Points in time of one cycle."""

_ENDED = 1e-8
"""Probability of no wipe-out yet at which a cycle is cut off."""


@dataclass(frozen=True)
class Estimate:
    """What one method needs, in the mean over runs of profile.steps steps.

    Attributes:
        wipe_out_s: T_f, seconds from a restart to the wipe-out.
        availability: uptime / wall-clock.
        productive_fraction: time in steps that counted / wall-clock.
        stacks: shard types that the busiest group computes per step, patches included.
        time_to_train_ratio: time to train / failure-free time; infinite if nothing ever gets past a checkpoint.
    """

    wipe_out_s: float
    availability: float
    productive_fraction: float
    stacks: float
    time_to_train_ratio: float


def estimate(
    profile: ClusterProfile,
    groups: int,
    redundancy: int,
    method: str,
    period_s: float,
    micro_batches: int = 1,
    placement: str = "cyclic",
    duplicates: bool = False,
) -> Estimate:
    """Estimate one method on a cluster; see the module's docstring for the model.

    Args:
        groups: N; replaces profile.groups.
        redundancy: r; 1 for ckpt.
        method: one of METHODS.
        period_s: checkpoint period T_c in seconds, the save included.
        micro_batches: m (spare_micro_batch).
        placement: cyclic, or partition (rep: teams of r).
        duplicates: spare: each group computes the first S types of its stack, as published, instead of each type once.

    Raises:
        ValueError: unknown method, sizes that do not fit, or a period not longer than a save.
    """
    check_sizes(groups, redundancy)
    if period_s <= profile.save_s:
        raise ValueError(f"checkpoint period {period_s:g} s: must be longer than cluster.save_s={profile.save_s:g}")
    cycle = _failures(profile, groups, redundancy, placement)
    time, alive, weights = cycle.time, cycle.alive, cycle.weights
    load, patch, longest = _work(groups, redundancy, method, micro_batches, duplicates, cycle.failures)
    masked = method != "ckpt" and redundancy > 1
    step_s = load * profile.compute_s + profile.all_reduce_seconds(groups)
    # Deaths in a step are noticed together and patched together; deaths in a patch ask for another one, and so on.
    needy = patch / np.maximum(longest, 1e-12)
    struck = np.outer(cycle.failure_rate, step_s)
    struck_again = np.outer(cycle.failure_rate, longest * profile.compute_s)
    patches = -np.expm1(-struck * needy) * np.exp(np.minimum(struck_again * needy, 50.0))
    replans = -np.expm1(-struck) - patches * np.expm1(-struck_again)
    patches *= longest
    mending_s = patches * profile.compute_s + replans * masked * (profile.shrink_s + profile.replan_s)
    steps_per_s = weights / (step_s + mending_s)

    training = 1 - profile.save_s / period_s
    rate = steps_per_s.sum(axis=1)
    computed = (steps_per_s * (load + patches)).sum(axis=1)
    running = np.stack([_sums(values, time) for values in (alive, alive * computed, alive * rate)], axis=1)
    busy = (steps_per_s * step_s).sum(axis=1)
    whole = Cycle(time, alive, training * _sums(rate, time), training * _sums(busy, time), running)
    uptime_s, stacks, steps, restarts, kept_s = expected_totals(whole, period_s, profile.steps).tolist()
    wall_s = uptime_s + restarts * profile.restart_s
    lasts = math.isfinite(wall_s)
    wipe_out_s = float(running[-1, 0])
    return Estimate(
        wipe_out_s=wipe_out_s,
        availability=uptime_s / wall_s if lasts else wipe_out_s / (wipe_out_s + profile.restart_s),
        productive_fraction=kept_s / wall_s if lasts else 0.0,
        stacks=stacks / steps if lasts else float(load[0]),
        time_to_train_ratio=wall_s / profile.failure_free_seconds(groups),
    )


@dataclass(frozen=True)
class _Failures:
    """From a restart on.

    Attributes:
        time: seconds, (T,).
        alive: P(no wipe-out yet), (T,).
        failures: values of k, (K,).
        failure_rate: failures per second, (T,).
        weights: probability of k failures given no wipe-out yet, (T, K).
    """

    time: Array
    alive: Array
    failures: npt.NDArray[np.int64]
    failure_rate: Array
    weights: Array


@lru_cache(maxsize=8)
def _failures_of(groups: int, redundancy: int, placement: str, mtbf_s: float, shape: float) -> _Failures:
    enduring = survival_after(groups, redundancy, placement)
    last = int(np.flatnonzero(enduring > 1e-9)[-1])
    # All small k, and beyond them enough to follow a smooth distribution, each standing for its neighbours.
    failures = np.unique(np.concatenate([np.arange(min(last, 100) + 1), np.linspace(0, last, 200).round()])).astype(int)
    borders = np.concatenate([[-0.5], (failures[1:] + failures[:-1]) / 2, [last + 0.5]])
    enduring = enduring[failures] * np.diff(borders)

    scale = groups * mtbf_s / math.gamma(1 + 1 / shape)
    time = scale * (-math.log1p(-_last_share(groups, failures, enduring))) ** (1 / shape)
    time = time * np.linspace(0, 1, _POINTS) ** 3
    dead_share = -np.expm1(-((time / scale) ** shape))
    joint = _binomial(groups, failures, dead_share) * enduring
    alive = joint.sum(axis=1)
    return _Failures(
        time=time,
        alive=alive,
        failures=failures,
        failure_rate=groups * np.gradient(dead_share, time),
        weights=joint / np.maximum(alive, 1e-300)[:, None],
    )


def _last_share(groups: int, failures: npt.NDArray[np.int64], enduring: Array) -> float:
    """The dead share at which a cycle has all but surely ended."""
    low, high = 0.0, 1.0 - 1e-12
    for _ in range(40):
        middle = (low + high) / 2
        lives = _binomial(groups, failures, np.array([middle])) @ enduring > _ENDED
        low, high = (middle, high) if lives else (low, middle)
    return high


def _binomial(groups: int, failures: npt.NDArray[np.int64], dead_share: Array) -> Array:
    """P(k of N groups are dead), (T, K)."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, groups + 1)))])
    ways = log_factorial[groups] - log_factorial[failures] - log_factorial[groups - failures]
    log_dead = np.log(np.maximum(dead_share, 1e-300))[:, None] * failures
    log_live = np.log1p(-dead_share)[:, None] * (groups - failures)
    return np.asarray(np.exp(ways + log_dead + log_live), dtype=np.float64)


def _failures(profile: ClusterProfile, groups: int, redundancy: int, placement: str) -> _Failures:
    return _failures_of(groups, redundancy, placement, profile.mtbf_s, profile.weibull_shape)


def _sums(rate: Array, time: Array) -> Array:
    """Integral of `rate` from 0 to each time."""
    return np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(time))])


def _work(
    groups: int, redundancy: int, method: str, micro_batches: int, duplicates: bool, failures: npt.NDArray[np.int64]
) -> tuple[Array, Array, Array]:
    """After each of `failures`: stacks per step, expected stacks of one failure's patch, and of the longest one."""
    if method in ("ckpt", "rep"):
        nothing = np.zeros(failures.shape)
        return np.full(failures.shape, float(redundancy)), nothing, nothing
    if method == "spare":
        patch = patch_stacks(groups, redundancy, failures, duplicates=duplicates)
        return np.minimum(least_stacks(groups, failures), redundancy), patch, np.ones(failures.shape)
    if method == "spare_micro_batch":
        patch = patch_stacks(groups, redundancy, failures, micro_batches)
        return np.minimum(least_load(groups, failures, micro_batches), redundancy), patch, patch
    raise ValueError(f"method {method} is unknown: choose one of {', '.join(METHODS)}")
