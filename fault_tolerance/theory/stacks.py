"""How much a group computes per step (in shard types, "stacks") after k failures, and what patches add.

Two granularities. Whole shards, as published: S steps from 1 to 2 with the first failure. Micro-batches: a shard type
is m units, and a lost type's units are spread over all its hosts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fault_tolerance.placement import check_sizes
from fault_tolerance.theory.survival import Array, mean_failures, survival_after


def least_stacks(groups: int, failures: npt.ArrayLike) -> Array:
    """c(k) = ceil(N / (N - k)): the least S with which the N - k survivors can cover N types (the paper).

    Args:
        failures: k in 0..N-1, any shape.
    """
    return np.ceil(groups / (groups - np.asarray(failures)))


def least_load(groups: int, failures: npt.ArrayLike, micro_batches: int) -> Array:
    """ceil(m N / (N - k)) / m: the same with micro-batches as units, in shard types.

    Assumes that the m N units can be spread evenly over the survivors. That fails only shortly before a wipe-out, when
    one group is the last host of two types; whole shards (m = 1) give `least_stacks`.

    Args:
        failures: k in 0..N-1, any shape.
    """
    units = micro_batches * groups / (groups - np.asarray(failures))
    return np.ceil(units - 1e-9) / micro_batches


def patch_stacks(
    groups: int,
    redundancy: int,
    failures: npt.ArrayLike,
    micro_batches: int | None = None,
    duplicates: bool = False,
) -> Array:
    """Expected length of the patch (in shard types) that the next failure after k causes in the step in flight.

    Whole shards (`micro_batches` None): what is missing goes to different survivors, one type each, so a patch is one
    stack long. With `duplicates`, as published, every group computes the first S types of its stack, and there is no
    patch if all S types of the dead group are computed by others too. One is not with probability
    u = (1 - p)^(S-1), if each of a type's S first places is live with probability p, given that one is. The N - k
    survivors fill S (N - k) places over N types, so p / (1 - (1 - p)^S) = (N - k)/N. A patch is needed with
    1 - (1 - u)^S. This holds at both ends: nothing computed twice (p = 0: always), all S hosts live (p = 1: never).
    Without duplicates every failure needs a patch.

    Micro-batches: nothing is computed twice, so every failure needs a patch: the m N/(N - k) units of the dead group
    are divided among all N - k survivors.

    Args:
        failures: k in 0..N-1, any shape.
    """
    live = (groups - np.asarray(failures, dtype=np.float64)) / groups
    if micro_batches is not None:
        return np.ceil(micro_batches / (live * live * groups) - 1e-9) / micro_batches
    if not duplicates:
        return np.ones_like(live)
    stacks = np.minimum(least_stacks(groups, failures), redundancy)
    low, high = np.zeros_like(live), np.ones_like(live)
    for _ in range(50):  # p / (1 - (1 - p)^S) rises from 1/S to 1
        middle = (low + high) / 2
        below = middle < live * -np.expm1(stacks * np.log1p(-np.minimum(middle, 1 - 1e-15)))
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    alone = np.where(stacks > 1, (1 - low) ** (stacks - 1), 1.0)
    return 1 - (1 - alone) ** stacks


def patch_share(
    groups: int,
    redundancy: int,
    failures: npt.ArrayLike,
    failures_per_stack: float,
    reduce_stacks: float = 0.0,
    micro_batches: int | None = None,
    duplicates: bool = False,
) -> Array:
    """rho_k: stacks per step that patches add after k failures = patch length x failures per step.

    The paper names rho_k without a formula that could be checked; this one is derived here (see `patch_stacks`).

    Args:
        failures: k in 0..N-1, any shape.
        failures_per_stack: failures of the system during the computation of one stack: compute seconds / MTBF.
        reduce_stacks: all-reduce seconds / compute seconds of one stack.
        micro_batches: m, or None for whole shards.
        duplicates: see `patch_stacks`.
    """
    load = _load(groups, redundancy, failures, micro_batches)
    patch = patch_stacks(groups, redundancy, failures, micro_batches, duplicates)
    return patch * (load + reduce_stacks) * failures_per_stack


def mean_stacks(
    groups: int,
    redundancy: int,
    failures_per_stack: float = 0.0,
    reduce_stacks: float = 0.0,
    micro_batches: int | None = None,
    duplicates: bool = False,
) -> float:
    """S_bar(N, r) = 1/floor(mu) * sum over k < floor(mu) of (c(k) + rho_k): average stacks per step (the paper).

    Without `failures_per_stack` the patch share is left out: the paper's lower bound. See `patch_share` for the rest.

    Raises:
        ValueError: redundancy below 1 or above groups.
    """
    failures = np.arange(max(1, int(mean_failures(groups, redundancy))))
    load = _load(groups, redundancy, failures, micro_batches)
    share = patch_share(groups, redundancy, failures, failures_per_stack, reduce_stacks, micro_batches, duplicates)
    return float((load + share).mean())


def mean_stacks_exact(
    groups: int,
    redundancy: int,
    failures_per_stack: float = 0.0,
    reduce_stacks: float = 0.0,
    micro_batches: int | None = None,
    duplicates: bool = False,
) -> float:
    """S_bar as the finite sum over all k, each with the probability that the run gets so far: sum (c + rho) P / sum P.

    P = P(K > k) of `survival_after`. Arguments as for `mean_stacks`.

    Raises:
        ValueError: redundancy below 1 or above groups.
    """
    weights = survival_after(groups, redundancy)[:groups]
    failures = np.arange(groups)
    load = _load(groups, redundancy, failures, micro_batches)
    share = patch_share(groups, redundancy, failures, failures_per_stack, reduce_stacks, micro_batches, duplicates)
    return float(((load + share) * weights).sum() / weights.sum())


def _load(groups: int, redundancy: int, failures: npt.ArrayLike, micro_batches: int | None) -> Array:
    """Stacks per step after k failures; a group hosts r types, so it never computes more."""
    check_sizes(groups, redundancy)
    whole = micro_batches is None
    load = least_stacks(groups, failures) if whole else least_load(groups, failures, micro_batches or 1)
    return np.minimum(load, redundancy)
