"""The launcher asked to end, killed, frozen; its fork server killed: no orphan, and an exit status that tells."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.processes

ORPHAN_SECONDS = 5.0


def long_run(start: Any, **options: Any) -> Any:
    """A run that would go on for minutes."""
    return start(train__steps=100_000, checkpoint__every_steps=0, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_asked_to(start: Any, number: signal.Signals) -> None:
    run = long_run(start)
    run.until_step(2)
    os.kill(run.launcher, number)
    run.finish(status=128 + number, seconds=20)
    assert number.name in run.output
    assert run.summary["steps"] >= 2
    assert run.events("end")
    assert not (run.folder / "processes.json").exists()


def test_it_ends_when_asked_to_while_it_starts(start: Any) -> None:
    for pause in (0.05, 0.3, 0.6):
        run = long_run(start, run_dir=f"run-{pause}")
        time.sleep(pause)
        os.kill(run.launcher, signal.SIGINT)
        ended = run.status(20)
        assert ended in (128 + signal.SIGINT, -signal.SIGINT), (ended, run.output)
        run.until_gone()


def test_its_death_leaves_no_orphan(start: Any) -> None:
    run = long_run(start, parallel__tp=2)
    run.until_step(2)
    os.kill(run.launcher, signal.SIGKILL)
    run.finish(status=-signal.SIGKILL)
    run.until_gone(ORPHAN_SECONDS)


def test_the_death_of_the_fork_server_is_a_global_restart(start: Any, same: Any) -> None:
    run = start(train__steps=60, checkpoint__asynchronous=False)
    run.until_step(12)
    (server,) = psutil.Process(run.launcher).children()
    server.kill()
    run.finish()
    same(run, global_restarts=1)
    assert "fork server" in run.output


def test_a_frozen_launcher_comes_back(start: Any, same: Any) -> None:
    """Longer than a worker may be silent, at several moments: nobody is evicted for what the launcher did not hear."""
    run = start(
        train__steps=60,
        fault_tolerance__timeout_seconds=3.0,
        fault_tolerance__backend="spare",
        fault_tolerance__redundancy=2,
        fault_tolerance__exact=True,
    )
    for step in (2, 15, 30):
        run.until_step(step)
        os.kill(run.launcher, signal.SIGSTOP)
        time.sleep(1.6)
        os.kill(run.launcher, signal.SIGCONT)
    run.finish()
    same(run, failures=0, global_restarts=0)
