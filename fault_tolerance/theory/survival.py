"""How many failures a placement endures before a wipe-out (a shard type without a live host).

Groups die in a uniformly random order, as they do whenever their lifetimes are independent and alike, whatever the
lifetimes' distribution. K is the number of the failure that wipes out, so a run of failures to a wipe-out has mean
length E[K] = sum over k >= 0 of P(K > k): the finite sum of survival probabilities. The paper's mu replaces the sum
by an integral and the probabilities by exp(-N (k/N)^r).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fault_tolerance.placement import PLACEMENTS, check_sizes, make_placement

Array = npt.NDArray[np.float64]

_ENUMERATED = 16
"""Up to so many groups every set of dead groups is looked at."""


def mean_failures(groups: int, redundancy: int) -> float:
    """mu(N, r) = Gamma(1/r)/r * N^(1 - 1/r): mean failures up to the wipe-out, in closed form (the paper).

    Raises:
        ValueError: redundancy below 1 or above groups.
    """
    check_sizes(groups, redundancy)
    return math.gamma(1 / redundancy) / redundancy * groups ** (1 - 1 / redundancy)


def mean_failures_exact(groups: int, redundancy: int) -> float:
    """E[K] as the finite sum of `survival_after`: mean failures up to the wipe-out, cyclic placement.

    Raises:
        ValueError: redundancy below 1 or above groups.
    """
    return float(survival_after(groups, redundancy).sum())


def mean_failures_partition(groups: int, redundancy: int) -> float:
    """E[K] of partitioned replication (teams of r that host the same types): exact.

    Give each group an independent, uniform time of death on (0, 1). The wipe-out comes with the first team that is
    wholly dead, at time T with P(T > q) = (1 - q^r)^(N/r); and E[T] = E[K]/(N+1), because the K-th of N uniform times
    has mean K/(N+1). So E[K] = (N+1) * integral of (1 - q^r)^(N/r) dq = (N+1)/r * B(1/r, N/r + 1).

    Raises:
        ValueError: redundancy below 1 or above groups, or not a divisor of groups.
    """
    teams = _teams(groups, redundancy)
    exponent = 1 / redundancy
    log_beta = math.lgamma(exponent) + math.lgamma(teams + 1) - math.lgamma(teams + 1 + exponent)
    return (groups + 1) / redundancy * math.exp(log_beta)


def optimal_redundancy(groups: int) -> int:
    """r* = floor(log2 N + 0.833), at least 1 and at most N (the paper).

    Raises:
        ValueError: groups below 1.
    """
    check_sizes(groups, 1)
    return min(groups, max(1, math.floor(math.log2(groups) + 0.833)))


def survival_after(groups: int, redundancy: int, placement: str = "cyclic") -> Array:
    """P(K > k) for k = 0..N: no shard type has lost all its hosts after k deaths in random order.

    Let p_j = k(k-1)..(k-j+1) / N(N-1)..(N-j+1) be the probability that j given groups are among the k dead. A type is
    lost with p_r, two types that share s hosts are both lost with p_(2r-s). The probability that none is lost is
    taken as the product over types of P(not lost), corrected for each pair of types by P(neither lost) over the
    product: exact in pairs, approximate in triples. In a partition a team's types are one. It is exact up to 16 groups
    (all sets of dead groups) and for r = 2 (no two neighbours on the ring may be dead). Elsewhere its sum is
    within 2 % below 50 groups and within the sampling error of Monte Carlo from 200 on (`scripts/bench_theory.py`).

    Args:
        placement: cyclic or partition.

    Returns:
        Shape (N + 1,), falling from 1 to 0.

    Raises:
        ValueError: unknown placement, or sizes that do not fit.
    """
    check_sizes(groups, redundancy)
    if placement not in PLACEMENTS:
        raise ValueError(f"fault_tolerance.placement={placement} is unknown: choose {' or '.join(PLACEMENTS)}")
    if redundancy == 1:
        return np.array([1.0] + [0.0] * groups)
    if groups <= _ENUMERATED:
        return _enumerate(groups, make_placement(placement, groups, redundancy).hosts)
    if placement == "cyclic" and redundancy == 2:
        return _no_two_neighbours(groups)
    if placement == "cyclic":
        return _no_type_lost(groups, redundancy, groups, _shared_hosts(groups, redundancy))
    teams = _teams(groups, redundancy)
    return _no_type_lost(groups, redundancy, teams, {0: teams - 1})


def _no_two_neighbours(groups: int) -> Array:
    """P(K > k) for r = 2: N/(N-k) * C(N-k, k) of the C(N, k) sets have no two neighbours on a ring of N."""
    failures = np.arange(groups // 2 + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, groups + 1)))])
    left = groups - failures
    log_ways = math.log(groups) - np.log(left) + log_factorial[left] - log_factorial[left - failures]
    log_all = log_factorial[groups] - log_factorial[left]
    return np.concatenate([np.exp(log_ways - log_all), np.zeros(groups - groups // 2)])


def _no_type_lost(groups: int, redundancy: int, kinds: int, sharing: dict[int, int]) -> Array:
    """Pair approximation of `survival_after` for `kinds` equal types; `sharing` as `_shared_hosts` gives it."""
    failures = np.arange(groups + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(failures[1:]))])

    def all_dead(count: int) -> Array:
        """p_count for every k."""
        if count > groups:
            return np.zeros(groups + 1)
        rest = log_factorial[np.clip(failures - count, 0, None)]
        log_p = log_factorial - rest - log_factorial[groups] + log_factorial[groups - count]
        return np.where(failures >= count, np.exp(log_p), 0.0)

    lost = np.minimum(all_dead(redundancy), 1 - 1e-12)
    single = -kinds * np.log1p(-lost)
    pairs = np.zeros(groups + 1)
    for shared, others in sharing.items():
        neither = np.maximum(1 - 2 * lost + all_dead(2 * redundancy - shared), 1e-300)
        pairs += kinds * others * (np.log(neither) - 2 * np.log1p(-lost))
    # Where pairs outweigh single types the expansion has left its range; Janson's form continues it from there
    # (both are -single/2 where they meet), and the probability is next to nothing anyway.
    within = pairs <= single
    log_survival = np.where(within, pairs / 2 - single, -(single**2) / (2 * np.where(within, 1.0, pairs)))
    return np.where(lost >= 1 - 1e-12, 0.0, np.exp(np.minimum(log_survival, 0.0)))


def _shared_hosts(groups: int, redundancy: int) -> dict[int, int]:
    """For a type: with how many other types it shares how many hosts, {shared: types}.

    The r (r - 1) differences of the marks are spread over the N - 1 other types: each at most once where there is room
    (a Golomb ruler), else as evenly as can be, which is what the placement with the fewest repeats comes close to.
    """
    each, more = divmod(redundancy * (redundancy - 1), groups - 1)
    return {each: groups - 1 - more, each + 1: more}


def _enumerate(groups: int, hosts: Iterable[Iterable[int]]) -> Array:
    """P(K > k) by looking at all 2^N sets of dead groups; `hosts` of each type."""
    sets = np.arange(1 << groups, dtype=np.uint32)
    alive = np.ones(len(sets), dtype=bool)
    for mask in {sum(1 << host for host in set(those)) for those in hosts}:
        alive &= (sets & np.uint32(mask)) != mask
    size = np.zeros(len(sets), dtype=np.int64)
    for group in range(groups):
        size += (sets >> np.uint32(group)) & np.uint32(1)
    enduring = np.bincount(size[alive], minlength=groups + 1)
    return enduring / np.array([math.comb(groups, k) for k in range(groups + 1)], dtype=np.float64)


def _teams(groups: int, redundancy: int) -> int:
    check_sizes(groups, redundancy)
    if groups % redundancy:
        raise ValueError(
            f"fault_tolerance.placement=partition: fault_tolerance.redundancy={redundancy} does not divide "
            f"parallel.groups={groups}"
        )
    return groups // redundancy
