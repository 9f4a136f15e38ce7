"""Workers that stand still: nobody gets an error from them, so the heartbeats must notice."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from farm import strike

pytestmark = pytest.mark.processes

FREEZING = {
    "fault_tolerance__timeout_seconds": 6.0,  # silent for 2 s: frozen
    "fault_tolerance__backend": "spare",
    "fault_tolerance__redundancy": 2,
    "fault_tolerance__exact": True,
}


@pytest.mark.parametrize("phase", ["compute", "commit"])
def test_a_frozen_group_is_evicted(start: Any, same: Any, phase: str) -> None:
    run = start(parallel__groups=4, failures__events=[strike(3, 2, phase, "SIGSTOP")], **FREEZING).finish()
    same(run, failures=1, masked_failures=1, global_restarts=0)
    (failure,) = run.events("failure")
    assert "silent" in failure["cause"]


def test_a_frozen_rank_takes_its_group_along(start: Any, same: Any) -> None:
    events = [strike(3, 1, "reduce", "SIGSTOP", rank=1)]
    run = start(parallel__groups=2, parallel__tp=2, failures__events=events, **FREEZING).finish()
    same(run, failures=1, masked_failures=1, global_restarts=0)


def test_frozen_while_others_recover(start: Any, same: Any) -> None:
    events = [strike(3, 0), strike(3, 1, "recovery", "SIGSTOP")]
    run = start(
        parallel__groups=3, train__global_batch=6, failures__events=events,
        **{**FREEZING, "fault_tolerance__redundancy": 3},
    ).finish()  # fmt: skip
    same(run, failures=2, masked_failures=2, global_restarts=0)


def test_a_short_sleep_harms_nobody(start: Any, same: Any) -> None:
    run = start(parallel__groups=2, train__steps=60, **FREEZING)
    run.until_step(5)
    pid = run.signal(1, number=signal.SIGSTOP)
    run.until(lambda: not os.path.exists(f"/proc/{pid}") or _beats_missed(run), "it slept for a while")
    os.kill(pid, signal.SIGCONT)
    run.finish()
    same(run, failures=0, global_restarts=0)


def _beats_missed(run: Any) -> bool:
    before = len(run.steps)
    return run.status(0.5) is None and len(run.steps) == before
