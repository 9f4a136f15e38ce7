"""Availability, productive fraction, stacks and counts on made-up runs whose figures are known."""

from __future__ import annotations

import pytest

from trainer.metrics.accounting import Accounting


def steps(accounting: Accounting, first: int, last: int, start: float, stacks: float = 1.0) -> float:
    """Commit steps first..last, one second and 10 tokens each; returns the time after them."""
    for step in range(first, last + 1):
        start += 1.0
        accounting.step(step, start, 1.0, 10, stacks)
    return start


def test_an_undisturbed_run() -> None:
    accounting = Accounting()
    end = steps(accounting, 0, 9, start=2.0)  # two seconds of start-up
    assert accounting.steps == 10 and accounting.tokens == 100
    assert accounting.availability(end) == 1.0
    assert accounting.productive_fraction(end) == pytest.approx(10 / 12)
    assert accounting.compute_overhead == 1.0
    assert (accounting.failures, accounting.global_restarts, accounting.lost_steps) == (0, 0, 0)


def test_a_restart_is_down_from_the_failure_to_the_first_new_step() -> None:
    accounting = Accounting()
    now = steps(accounting, 0, 7, start=0.0)
    accounting.failure(now + 0.5, groups=1)  # half of step 8 is lost too
    accounting.restart(now + 3.5, lost_steps=3, seconds=3.0)
    assert accounting.steps == 5  # the checkpoint holds steps 0 to 4
    assert accounting.availability(now + 4.0) == pytest.approx(1 - 3.5 / 12.0)  # still down
    end = steps(accounting, 5, 9, start=now + 4.5)
    assert end == 17.5
    assert accounting.availability(end) == pytest.approx(1 - 4.0 / 17.5)
    assert accounting.productive_fraction(end) == pytest.approx(10 / 17.5)
    assert accounting.tokens == 100
    assert (accounting.failures, accounting.masked_failures) == (1, 0)
    assert (accounting.global_restarts, accounting.lost_steps) == (1, 3)


def test_lost_steps_are_seen_when_they_come_again_if_the_restart_did_not_say() -> None:
    accounting = Accounting()
    now = steps(accounting, 0, 7, start=0.0)
    accounting.failure(now, groups=1)
    accounting.restart(now + 1.0, lost_steps=None)
    end = steps(accounting, 5, 9, start=now + 1.0)
    assert accounting.lost_steps == 3
    assert accounting.steps == 10 and accounting.tokens == 100
    assert accounting.productive_fraction(end) == pytest.approx(10 / 14)


def test_masked_failures_cost_stacks_not_availability() -> None:
    accounting = Accounting()
    now = steps(accounting, 0, 3, start=0.0)
    accounting.failure(now + 0.5, groups=2)
    accounting.replan()
    accounting.step(4, now + 2.0, 2.0, 10, 1.5)
    end = steps(accounting, 5, 9, start=now + 2.0, stacks=2.0)
    assert accounting.availability(end) == 1.0
    assert accounting.productive_fraction(end) == 1.0
    assert accounting.compute_overhead == pytest.approx((4 * 1.0 + 1.5 + 5 * 2.0) / 10)
    assert (accounting.failures, accounting.masked_failures, accounting.global_restarts) == (2, 2, 0)


def test_only_the_failures_that_lead_to_the_restart_are_not_masked() -> None:
    accounting = Accounting()
    accounting.failure(1.0, groups=1)
    accounting.replan()
    accounting.failure(2.0, groups=1)
    accounting.failure(2.5, groups=1)
    accounting.restart(4.0, lost_steps=0)
    accounting.step(0, 7.0, 1.0, 10, 1.0)
    assert (accounting.failures, accounting.masked_failures) == (3, 1)
    assert accounting.availability(8.0) == pytest.approx(1 - 4.0 / 8.0)  # from 2.0 to 6.0


def test_a_second_restart_before_any_step_is_one_stretch_of_down_time() -> None:
    accounting = Accounting()
    end = steps(accounting, 0, 1, start=0.0)
    accounting.failure(end, groups=1)
    accounting.restart(end + 2, lost_steps=1)
    accounting.failure(end + 3, groups=1)
    accounting.restart(end + 5, lost_steps=0)
    accounting.step(1, end + 8, 1.0, 10, 1.0)
    assert accounting.availability(10.0) == pytest.approx(1 - 7.0 / 10.0)
    assert (accounting.global_restarts, accounting.lost_steps) == (2, 1)


def test_a_restart_without_a_reported_failure_counts_its_own_seconds() -> None:
    accounting = Accounting()
    end = steps(accounting, 0, 1, start=0.0)
    accounting.restart(end + 3, lost_steps=0, seconds=3.0)
    assert accounting.availability(end + 3) == pytest.approx(2 / 5)


def test_undone_commits_still_count_for_stacks() -> None:
    accounting = Accounting()
    now = steps(accounting, 0, 1, start=0.0, stacks=3.0)
    accounting.restart(now, lost_steps=2)
    steps(accounting, 0, 1, start=now, stacks=1.0)
    assert accounting.compute_overhead == 2.0


def test_a_step_of_a_newer_generation_masks_what_no_replan_explained() -> None:
    accounting = Accounting()
    accounting.failure(1.0, groups=1, generation=4)
    accounting.step(0, 2.0, 1.0, 10, 1.0, generation=4)  # committed before the death was known
    assert accounting.masked_failures == 0
    accounting.step(1, 3.0, 1.0, 10, 1.0, generation=5)
    accounting.replan()
    assert accounting.masked_failures == 1


def test_a_run_that_is_given_up_was_down_since_its_last_failure() -> None:
    accounting = Accounting()
    end = steps(accounting, 0, 5, start=0.0)
    accounting.failure(end, groups=1)
    assert accounting.availability(end + 2) == 1.0  # it may yet be masked
    accounting.give_up()
    assert accounting.availability(end + 2) == pytest.approx(6 / 8)


def test_before_anything_happened() -> None:
    accounting = Accounting()
    assert accounting.steps == 0 and accounting.compute_overhead is None
    assert accounting.availability(0.0) == 1.0 and accounting.productive_fraction(0.0) == 0.0
