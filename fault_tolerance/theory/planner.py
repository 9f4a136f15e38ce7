"""The planner: every method over a range of redundancies on one cluster, and which one to take."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.placement import check_sizes
from fault_tolerance.theory.checkpointing import checkpoint_period
from fault_tolerance.theory.renewal import METHODS, estimate
from fault_tolerance.theory.survival import mean_failures_exact, mean_failures_partition

__all__ = ["LARGEST_REDUNDANCY", "METHODS", "Row", "best_row", "plan_rows"]

LARGEST_REDUNDANCY = 20
"""Rows go up to this r where the user names none."""


@dataclass(frozen=True)
class Row:
    """One method at one redundancy.

    Attributes:
        method: one of METHODS.
        redundancy: r.
        mu: mean failures up to a wipe-out (finite sum).
        s_bar: stacks per step, patches included.
        checkpoint_period_s: T_c* for T_f = mu * MTBF.
        availability: uptime / wall-clock.
        time_to_train_ratio: time to train / failure-free time.
    """

    method: str
    redundancy: int
    mu: float
    s_bar: float
    checkpoint_period_s: float
    availability: float
    time_to_train_ratio: float


def plan_rows(
    profile: ClusterProfile,
    groups: int | None = None,
    micro_batches: int | None = None,
    redundancies: Iterable[int] | None = None,
    rep_placement: str = "cyclic",
    duplicates: bool = False,
) -> list[Row]:
    """CKPT-only, then for each r replication and SPARe with whole shards and with micro-batches.

    `mu` and the period follow the published model; availability, stacks and time to train come from the renewal
    estimate, whose lifetimes age (`renewal`). With the published period instead of the estimate's own best one a time
    to train is at most 2 % longer from r = 3 on.

    Args:
        groups, micro_batches: N and m; the profile's when None.
        redundancies: values of r; 2..20 (as far as N reaches) when None.
        duplicates: spare with whole shards computes duplicates, as published; False: each type once.
        rep_placement: cyclic (the paper's baseline) or partition (teams of r; left out where r does not divide N).

    Raises:
        ValueError: values that do not fit, each named.
    """
    profile = dataclasses.replace(
        profile,
        groups=profile.groups if groups is None else groups,
        micro_batches=profile.micro_batches if micro_batches is None else micro_batches,
    )
    groups = profile.groups
    chosen = list(range(2, min(groups, LARGEST_REDUNDANCY) + 1)) if redundancies is None else list(redundancies)
    for redundancy in chosen:
        check_sizes(groups, redundancy)
    rows = [_row(profile, "ckpt", 1)]
    for redundancy in chosen:
        if rep_placement != "partition" or groups % redundancy == 0:
            rows.append(_row(profile, "rep", redundancy, rep_placement))
        rows.append(_row(profile, "spare", redundancy, duplicates=duplicates))
        rows.append(_row(profile, "spare_micro_batch", redundancy))
    return rows


def best_row(rows: Iterable[Row]) -> Row:
    """The row with the least time to train; of equals the one with the smallest redundancy."""
    return min(rows, key=lambda row: (row.time_to_train_ratio, row.redundancy, METHODS.index(row.method)))


def _row(
    profile: ClusterProfile, method: str, redundancy: int, placement: str = "cyclic", duplicates: bool = False
) -> Row:
    groups = profile.groups
    if placement == "partition":
        mu = mean_failures_partition(groups, redundancy)
    else:
        mu = mean_failures_exact(groups, redundancy)
    period_s = max(
        checkpoint_period(profile.save_s, profile.restart_s, mu * profile.mtbf_s),
        profile.save_s + profile.step_seconds(groups, 1 if method == "ckpt" else redundancy),
    )
    result = estimate(profile, groups, redundancy, method, period_s, profile.micro_batches, placement, duplicates)
    return Row(method, redundancy, mu, result.stacks, period_s, result.availability, result.time_to_train_ratio)
