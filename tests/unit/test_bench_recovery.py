"""What `scripts/bench_recovery.py` makes of a run's events and of torchft's commits."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fault_tolerance.placement import make_placement

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    return importlib.import_module("bench_recovery")


def replan(group: int, committed: float, total: float, patch: float) -> dict[str, Any]:
    parts = {"agree": 0.01, "take_up": 0.0, "tear_down": 0.0, "replan": 0.001, "rebuild": 0.03, "reduce": 0.02}
    seconds = {**parts, "patch": patch, "total": total, "detect": 0.5}
    return {"event": "replan", "groups": [group], "committed_unix_time": committed, "seconds": seconds}


def commit(step: int, time: float) -> dict[str, Any]:
    return {"step": step, "time": time}


def test_a_stall_is_from_the_kill_to_the_commit_less_the_patch_compute(bench: ModuleType) -> None:
    events = [
        {"event": "start"},
        replan(7, committed=1000.30, total=0.25, patch=0.1),
        replan(6, committed=1002.5, total=0.4, patch=0.2),
    ]
    first, second = bench.trainer_samples(events, [(7, 1000.0), (6, 1002.0)])
    assert first["in all"] == pytest.approx(0.30)
    assert first["stall"] == pytest.approx(0.20)
    assert first["notice"] == pytest.approx(0.05)
    assert first["replan"] == 0.001
    assert second["stall"] == pytest.approx(0.3)


def test_two_deaths_in_one_recovery_are_no_samples(bench: ModuleType) -> None:
    both = {**replan(7, 1000.3, 0.25, 0.1), "groups": [7, 6]}
    with pytest.raises(ValueError, match="group 7"):
        bench.trainer_samples([both], [(7, 1000.0), (6, 1000.1)])


def test_torchft_counts_from_the_kill_to_the_next_commit_of_those_who_live(bench: ModuleType) -> None:
    commits = {
        0: [commit(4, 10.1), commit(5, 10.5), commit(6, 11.9), commit(7, 12.4)],
        1: [commit(4, 9.8), commit(5, 10.8), commit(6, 11.8)],  # the second victim
        2: [commit(4, 9.9), commit(5, 10.6), commit(6, 12.1), commit(7, 12.7)],
        3: [commit(4, 9.9)],  # the first victim
    }
    first, second = bench.torchft_samples(commits, [(3, 10.0), (1, 12.0)])
    assert (first["first"], first["in all"]) == (pytest.approx(0.5), pytest.approx(0.8))
    assert (second["first"], second["in all"]) == (pytest.approx(0.4), pytest.approx(0.7))


def test_quorums_that_parted_before_the_kill_are_no_samples(bench: ModuleType) -> None:
    with pytest.raises(ValueError, match="group 1"):
        bench.torchft_samples({0: [commit(5, 9.0), commit(6, 10.5)], 1: [commit(4, 9.5)]}, [(1, 10.0)])


def test_a_survivor_of_torchft_that_never_commits_again_is_seen(bench: ModuleType) -> None:
    (sample,) = bench.torchft_samples({0: [commit(0, 1.5)], 1: [], 2: []}, [(2, 1.0)])
    assert sample["first"] == 0.5
    assert sample["in all"] == float("inf")


def test_the_time_of_a_kill_is_that_of_its_mark(bench: ModuleType, tmp_path: Path) -> None:
    mark = tmp_path / "struck-0"
    mark.touch()
    os.utime(mark, ns=(0, 1_795_968_000_123_456_789))
    assert bench.kill_time(mark) == pytest.approx(1_795_968_000.123457, abs=1e-5)


@pytest.mark.parametrize(("redundancy", "kills"), [(4, 3), (4, 5), (2, 3)])
def test_victims_leave_every_type_a_host(bench: ModuleType, redundancy: int, kills: int) -> None:
    dead = set(bench.victims(8, redundancy, kills))
    assert len(dead) == kills and 0 not in dead
    assert all(set(of) - dead for of in make_placement("cyclic", 8, redundancy).hosts)


def test_more_kills_than_redundancy_masks_are_refused(bench: ModuleType) -> None:
    with pytest.raises(ValueError, match="--kills 2"):
        bench.victims(4, 1, 2)
