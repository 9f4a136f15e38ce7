"""Closed forms and finite sums against brute force, Monte Carlo and the real policy."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_tolerance import theory
from fault_tolerance.placement import make_placement
from fault_tolerance.policies.base import Restart
from fault_tolerance.policies.spare import Spare
from fault_tolerance.theory import survival
from fault_tolerance.theory.stacks import patch_stacks


def test_figures_of_the_paper():
    assert theory.mean_failures(600, 20) == pytest.approx(424.3, abs=0.1)
    assert theory.mean_failures_exact(600, 20) == pytest.approx(426, abs=2)
    assert theory.mean_stacks(600, 20) == pytest.approx(2.34, abs=0.005)
    # The paper says "2.8 with patches": between computing each type once and computing duplicates.
    patched = [theory.mean_stacks(600, 20, 64 / 300, 6 / 64, duplicates=copies) for copies in (True, False)]
    assert patched[0] < 2.8 < patched[1] and patched == pytest.approx([2.8, 2.8], abs=0.12)
    assert [theory.optimal_redundancy(n) for n in (200, 600, 1000)] == [8, 10, 10]
    assert theory.checkpoint_period(60, 3600, 254 * 300) == pytest.approx(60 + (3600 + 120 * 79800) ** 0.5)


def test_one_copy_endures_nothing():
    assert theory.mean_failures(50, 1) == 1
    assert theory.mean_failures_exact(50, 1) == 1
    assert theory.mean_stacks(50, 1) == theory.mean_stacks_exact(50, 1) == 1
    assert theory.mean_failures_partition(50, 1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("placement", "groups", "redundancy"), [("cyclic", 7, 3), ("cyclic", 6, 2), ("partition", 6, 3)]
)
def test_survival_against_every_order_of_deaths(placement, groups, redundancy):
    hosts = make_placement(placement, groups, redundancy).hosts
    alive = [
        np.mean(
            [all(set(those) - set(dead) for those in hosts) for dead in itertools.combinations(range(groups), failures)]
        )
        for failures in range(groups + 1)
    ]
    assert theory.survival_after(groups, redundancy, placement) == pytest.approx(alive)
    if placement == "cyclic":
        assert theory.mean_failures_exact(groups, redundancy) == pytest.approx(sum(alive))
    else:
        assert theory.mean_failures_partition(groups, redundancy) == pytest.approx(sum(alive))


@pytest.mark.parametrize(("groups", "redundancy"), [(16, 3), (16, 4), (16, 6)])
def test_pair_approximation_against_enumeration(groups, redundancy, monkeypatch):
    exact = theory.survival_after(groups, redundancy)
    monkeypatch.setattr(survival, "_ENUMERATED", 0)
    approximate = theory.survival_after(groups, redundancy)
    assert approximate.sum() == pytest.approx(exact.sum(), rel=0.025)
    assert np.abs(approximate - exact).max() < 0.06


def test_ring_of_two_copies_is_exact_with_and_without_enumeration(monkeypatch):
    exact = theory.survival_after(15, 2)
    monkeypatch.setattr(survival, "_ENUMERATED", 0)
    assert theory.survival_after(15, 2) == pytest.approx(exact)


@pytest.mark.parametrize(("groups", "redundancy"), [(200, 2), (600, 3), (1000, 10), (1000, 20)])
def test_partition_sum_agrees_with_its_closed_form(groups, redundancy):
    sum_of = theory.survival_after(groups, redundancy, "partition").sum()
    assert sum_of == pytest.approx(theory.mean_failures_partition(groups, redundancy), rel=0.01)
    assert sum_of > theory.mean_failures_exact(groups, redundancy)


@pytest.mark.parametrize(("groups", "redundancy", "trials"), [(200, 4, 20_000), (200, 20, 4_000), (600, 9, 4_000)])
def test_mu_within_one_per_cent_of_monte_carlo(groups, redundancy, trials):
    rng = np.random.default_rng(0)
    hosts = np.asarray(make_placement("cyclic", groups, redundancy).hosts)
    total = 0
    for _ in range(trials // 100):
        rank = rng.permuted(np.tile(np.arange(1, groups + 1), (100, 1)), axis=1)
        last = rank[:, hosts[:, 0]]
        for column in range(1, redundancy):
            last = np.maximum(last, rank[:, hosts[:, column]])
        total += last.min(axis=1).sum()
    assert theory.mean_failures_exact(groups, redundancy) == pytest.approx(total / trials, rel=0.01)
    assert theory.mean_failures(groups, redundancy) == pytest.approx(total / trials, rel=0.035)


@given(st.integers(1, 400), st.data())
def test_survival_falls_from_one_to_nought(groups, data):
    redundancy = data.draw(st.integers(1, min(groups, 40)))
    alive = theory.survival_after(groups, redundancy)
    assert alive.shape == (groups + 1,) and alive[0] == pytest.approx(1) and alive[-1] == 0
    assert np.isfinite(alive).all() and (alive >= 0).all() and (alive[:redundancy] > 0.999999).all()
    assert (np.diff(alive) <= 1e-9).all()
    assert redundancy - 1e-9 <= alive.sum() <= groups


@given(st.integers(1, 500), st.data(), st.integers(1, 40))
def test_load_is_the_least_that_covers_all_units(groups, data, micro_batches):
    failures = data.draw(st.integers(0, groups - 1))
    live = groups - failures
    units = round(float(theory.least_load(groups, failures, micro_batches)) * micro_batches)
    assert (units - 1) * live < micro_batches * groups <= units * live
    assert theory.least_load(groups, failures, 1) == theory.least_stacks(groups, failures)


def test_stacks_and_patches_of_the_real_policy():
    groups, redundancy = 200, 8
    rng = np.random.default_rng(0)
    policy = Spare(groups, redundancy, granularity="shard", duplicates=True)
    expected = patch_stacks(groups, redundancy, np.arange(groups), duplicates=True)
    seen, wanted = 0.0, 0.0
    for _ in range(8):
        policy.on_start()
        for failures, group in enumerate(rng.permutation(groups)):
            assert policy.plan_step(failures).stacks == theory.least_stacks(groups, failures)
            answer = policy.on_failure([int(group)])
            if isinstance(answer, Restart):
                break
            policy.on_commit()
            seen, wanted = seen + answer.patch_stacks, wanted + expected[failures]
    assert wanted == pytest.approx(seen, rel=0.12)


def test_micro_batch_patch_of_the_real_policy():
    groups, redundancy, micro_batches = 60, 5, 8
    rng = np.random.default_rng(1)
    policy = Spare(groups, redundancy, micro_batches, granularity="micro_batch")
    expected = patch_stacks(groups, redundancy, np.arange(groups), micro_batches)
    seen, wanted, loads = [], [], []
    for _ in range(4):
        policy.on_start()
        for failures, group in enumerate(rng.permutation(groups)[:16]):
            loads.append(policy.plan_step(failures).stacks / theory.least_load(groups, failures, micro_batches))
            answer = policy.on_failure([int(group)])
            if isinstance(answer, Restart):
                break
            policy.on_commit()
            seen.append(answer.patch_stacks)
            wanted.append(expected[failures])
    assert min(loads) >= 1 - 1e-9 and np.mean(loads) == pytest.approx(1, abs=0.03)
    assert np.mean(wanted) == pytest.approx(np.mean(seen), rel=0.2)


@given(st.floats(0.1, 500), st.floats(0, 1e5), st.floats(100, 1e7), st.floats(0.05, 20))
def test_no_period_beats_the_best_one(save_s, restart_s, wipe_out_s, factor):
    best = theory.checkpoint_period(save_s, restart_s, wipe_out_s)
    other = save_s + (best - save_s) * factor
    top = theory.availability(save_s, restart_s, wipe_out_s)
    assert theory.availability(save_s, restart_s, wipe_out_s, other) <= top * (1 + 1e-12)
    assert theory.normalised_time_to_train(2.0, save_s, restart_s, wipe_out_s) == pytest.approx(2 / top)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match=r"redundancy=9 exceeds parallel.groups=8"):
        theory.mean_failures(8, 9)
    with pytest.raises(ValueError, match="redundancy=0"):
        theory.survival_after(8, 0)
    with pytest.raises(ValueError, match="does not divide"):
        theory.mean_failures_partition(8, 3)
    with pytest.raises(ValueError, match="placement=ring"):
        theory.survival_after(8, 3, "ring")
    with pytest.raises(ValueError, match="must be above 0"):
        theory.checkpoint_period(60, 3600, 0)
    with pytest.raises(ValueError, match="at least 0"):
        theory.availability(-1, 3600, 100)
    with pytest.raises(ValueError, match="longer than a save"):
        theory.availability(60, 3600, 1e5, period_s=60)


def test_import_needs_neither_torch_nor_hydra_nor_scipy():
    code = (
        "import sys\n"
        "for name in ('torch', 'hydra', 'omegaconf', 'scipy'): sys.modules[name] = None\n"
        "import fault_tolerance.theory, fault_tolerance.failures, fault_tolerance.cluster\n"
        "fault_tolerance.theory.plan_rows(fault_tolerance.cluster.ClusterProfile(), 600, 16, [8])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
