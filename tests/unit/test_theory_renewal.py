"""The renewal estimate: where it can be solved by hand, against the paper's table, against the simulator."""

from __future__ import annotations

import dataclasses
import math
import warnings
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.failures import Weibull
from fault_tolerance.policies.spare import Spare
from fault_tolerance.simulation.engine import simulate
from fault_tolerance.simulation.scenario import Scenario
from fault_tolerance.theory import Row, best_row, estimate, plan_rows

PAPER_TABLE = {
    (200, "rep"): (6.07, 3, 0.6174),
    (600, "rep"): (4.27, 3, 0.7989),
    (1000, "rep"): (3.88, 3, 0.8441),
    (200, "spare"): (2.92, 9, 0.8700),
    (600, "spare"): (2.49, 8, 0.9390),
    (1000, "spare"): (2.34, 9, 0.9654),
}


@lru_cache
def paper_rows(groups: int) -> list[Row]:
    return plan_rows(ClusterProfile(), groups, redundancies=[2, 3, 4, 7, 8, 9, 10, 11])


def test_exponential_ckpt_is_dalys_formula():
    profile = ClusterProfile(groups=64, mtbf_s=7200, weibull_shape=1.0, all_reduce_s=6.0)
    result = estimate(profile, 64, 1, "ckpt", period_s=1000.0)
    assert result.wipe_out_s == pytest.approx(7200, rel=2e-3)
    assert result.availability == pytest.approx(7200 / 10800, rel=5e-3)
    kept = 940 / math.expm1(1000 / 7200)  # seconds of steps kept per cycle: periods survived x useful seconds
    assert result.time_to_train_ratio == pytest.approx(10800 / kept, rel=5e-3)
    assert result.productive_fraction == pytest.approx(kept / 10800, rel=5e-3)
    assert result.stacks == pytest.approx(1)


@pytest.mark.parametrize(("groups", "method"), list(PAPER_TABLE))
def test_paper_table(groups, method):
    ratio, redundancy, availability = PAPER_TABLE[groups, method]
    best = best_row(
        row for row in plan_rows(ClusterProfile(), groups, redundancies=range(2, 15)) if row.method == method
    )
    assert best.time_to_train_ratio == pytest.approx(ratio, rel=0.08)
    assert abs(best.redundancy - redundancy) <= (0 if method == "rep" else 1)
    assert best.availability == pytest.approx(availability, abs=0.07)


@pytest.mark.parametrize(("groups", "redundancy", "shape"), [(64, 2, 0.78), (64, 2, 1.0), (16, 2, 0.78), (300, 3, 0.6)])
def test_many_saves_per_cycle_cost_saves_and_half_a_period(groups, redundancy, shape):
    profile = ClusterProfile(
        groups=groups, mtbf_s=50_000, weibull_shape=shape, compute_s=9, all_reduce_s=1, steps=10**7
    )
    result = estimate(profile, groups, redundancy, "rep", period_s=3000.0)
    kept_s = (result.wipe_out_s - 1500) * (1 - 60 / 3000)
    expected = (result.wipe_out_s + 3600) / kept_s * (9 * redundancy + 1) / 10
    assert result.time_to_train_ratio == pytest.approx(expected, rel=0.01)


def test_short_run_without_a_save_is_geometric():
    """A run that is shorter than a period finishes in one go or starts again from nothing."""
    profile = ClusterProfile(
        groups=8, mtbf_s=600, weibull_shape=1.0, compute_s=9, all_reduce_s=1.0, steps=60, save_s=1e-6
    )
    result = estimate(profile, 8, 1, "ckpt", period_s=1e5)
    survives = math.exp(-1)
    tries = 1 / survives
    uptime = 600 * (1 - survives) * tries
    wall = uptime + (tries - 1) * 3600
    assert result.time_to_train_ratio == pytest.approx(wall / 600, rel=5e-3)
    assert result.availability == pytest.approx(uptime / wall, rel=5e-3)


def test_ckpt_makes_no_progress_in_the_papers_setting():
    assert plan_rows(ClusterProfile(), 600, redundancies=[])[0].time_to_train_ratio > 100


@pytest.mark.parametrize(("granularity", "method"), [("shard", "spare"), ("micro_batch", "spare_micro_batch")])
def test_simulated_time_to_train(granularity, method):
    profile = ClusterProfile(groups=48, micro_batches=4, steps=12_000, restart_s=1800, all_reduce_s=4.0, mtbf_s=600)
    row = next(row for row in plan_rows(profile, redundancies=[4]) if row.method == method)
    result = simulate(
        Scenario.from_cluster(profile, checkpoint_period_seconds=row.checkpoint_period_s),
        Spare(48, 4, 4, granularity=granularity),
        Weibull(48, 600, 0.78, seed=0),
    )
    assert result.global_restarts > 60
    assert row.time_to_train_ratio == pytest.approx(result.time_to_train_ratio, rel=0.05)
    assert row.availability == pytest.approx(result.availability, abs=0.02)
    assert row.s_bar == pytest.approx(result.mean_stacks, rel=0.05)


def test_more_failures_cost_more():
    profile = ClusterProfile()
    for method in ("rep", "spare", "spare_micro_batch"):
        ratios = [
            next(
                row.time_to_train_ratio
                for row in plan_rows(dataclasses.replace(profile, mtbf_s=mtbf), 200, redundancies=[6])
                if row.method == method
            )
            for mtbf in (300.0, 600.0, 3600.0, 1e6)
        ]
        assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 1.05  # hardly a failure in such a run, although groups that die in it stay dead


@settings(max_examples=15)
@given(
    st.sampled_from([1, 2, 3, 17, 300]),
    st.integers(1, 6),
    st.floats(0.3, 3.0),
    st.sampled_from([10.0, 300.0, 1e5, 1e9]),
    st.sampled_from([0.0, 5.0, 1e5]),
    st.sampled_from([1, 50, 10**6]),
)
def test_any_cluster_gets_a_sensible_row(groups, redundancy, shape, mtbf_s, other_s, steps):
    profile = ClusterProfile(
        groups=groups,
        micro_batches=3,
        steps=steps,
        mtbf_s=mtbf_s,
        weibull_shape=shape,
        restart_s=other_s,
        save_s=other_s / 100,
        compute_s=2.0,
        all_reduce_s=0.5,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = plan_rows(profile, redundancies=[min(redundancy, groups)])
    for row in rows:
        assert row.time_to_train_ratio >= 0.98 and 0 <= row.availability <= 1 + 1e-9
        assert row.s_bar >= 1 - 1e-6 and row.mu >= 1 - 1e-9 and row.checkpoint_period_s > profile.save_s


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="method none"):
        estimate(ClusterProfile(), 60, 3, "none", 1000.0)
    with pytest.raises(ValueError, match="longer than"):
        estimate(ClusterProfile(), 60, 3, "rep", 60.0)
