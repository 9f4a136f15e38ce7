"""Failures from outside: recorded deaths strike at their times, and not while groups are being started anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fault_tolerance.failures import write_trace
from trainer.config import Config, FailuresConfig
from trainer.failure_driver import FailureDriver

Killed = list[tuple[float, int]]


def driver(
    tmp_path: Path, failures: list[tuple[float, tuple[int, ...]]], unit: str = "seconds"
) -> tuple[FailureDriver, Killed]:
    """A driver of a trace, and what it has killed: (seconds since now, group)."""
    path = tmp_path / "trace.jsonl"
    write_trace(path, failures)
    config = Config(run_dir="x", failures=FailuresConfig(kind="trace", file=str(path), unit=unit))
    config.parallel.groups, config.train.steps = 4, 10
    killed: Killed = []
    began = time.monotonic()
    made = FailureDriver.of(config, lambda group: killed.append((time.monotonic() - began, group)))
    assert made is not None
    return made, killed


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_there_is_no_driver_without_failures_from_outside() -> None:
    assert FailureDriver.of(Config(run_dir="x"), lambda group: None) is None


def test_times_count_from_the_start_of_training(tmp_path: Path) -> None:
    strikes, killed = driver(tmp_path, [(0.1, (2,)), (0.3, (1,))])
    time.sleep(0.2)
    assert not killed
    strikes.begin(0)
    wait_for(lambda: len(killed) == 2)
    assert [group for _, group in killed] == [2, 1]
    assert killed[0][0] >= 0.3 and killed[1][0] >= 0.5


def test_what_falls_into_a_restart_is_past(tmp_path: Path) -> None:
    strikes, killed = driver(tmp_path, [(0.05, (0,)), (0.15, (3,)), (0.3, (0,))])
    strikes.begin(0)
    wait_for(lambda: len(killed) == 1)
    strikes.died([0])
    strikes.pause()
    time.sleep(0.2)
    strikes.begin(4)  # all live again: group 0 can die once more
    wait_for(lambda: len(killed) == 2)
    assert [group for _, group in killed] == [0, 0]


def test_steps_instead_of_seconds_and_dead_groups_are_left_out(tmp_path: Path) -> None:
    strikes, killed = driver(tmp_path, [(3, (1,)), (3, (2,)), (5, (1, 3)), (10, (0,))], unit="steps")
    strikes.begin(0)
    strikes.step(2)
    assert not killed
    strikes.step(3)
    strikes.died([1, 2])
    strikes.step(5)
    assert [group for _, group in killed] == [1, 2, 3]


@pytest.mark.parametrize("unit", ["steps", "seconds"])
def test_nothing_is_killed_after_the_last_step(tmp_path: Path, unit: str) -> None:
    strikes, killed = driver(tmp_path, [(0.05, (0,))], unit)
    strikes.begin(0)
    strikes.step(10)
    time.sleep(0.15)
    assert not killed
