"""What cannot be masked: a global restart from the newest checkpoint, with the weights of the undisturbed run."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from farm import strike

from fault_tolerance.placement import make_placement

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("exact", [False, True])
def test_ckpt_killed_at_step_12_with_checkpoints_every_5(start: Any, same: Any, exact: bool) -> None:
    run = start(
        train__steps=16,
        fault_tolerance__exact=exact,
        checkpoint__asynchronous=False,
        failures__events=[strike(12, 1)],
    ).finish()
    same(run, failures=1, masked_failures=0, global_restarts=1, lost_steps=2, steps=16)
    (restart,) = run.events("restart")
    assert (restart["from_step"], restart["to_step"]) == (12, 10)
    assert 0 < run.summary["availability"] < 1
    assert run.steps == [*range(12), *range(10, 16)]


@pytest.mark.parametrize("phase", ["reduce", "commit", "checkpoint"])
def test_ckpt_killed_in_each_phase(start: Any, same: Any, phase: str) -> None:
    run = start(failures__events=[strike(4 if phase == "checkpoint" else 5, 0, phase)]).finish()
    same(run, failures=1, masked_failures=0, global_restarts=1)
    assert set(run.steps) == set(range(8))


SAVED_OFTEN = {
    "parallel__groups": 4,
    "fault_tolerance__backend": "spare",
    "fault_tolerance__redundancy": 2,
    "fault_tolerance__exact": True,
    "checkpoint__every_steps": 2,
}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_spare_killed_while_a_checkpoint_is_written(start: Any, same: Any, asynchronous: bool) -> None:
    run = start(
        **SAVED_OFTEN,
        checkpoint__asynchronous=asynchronous,
        failures__events=[strike(1, 1, "checkpoint"), strike(3, 3, "checkpoint")],
    ).finish()
    same(run, failures=2, masked_failures=2, global_restarts=0)
    assert max(event["step"] for event in run.events("checkpoint") if event["status"] == "written") == 8


def test_a_small_model_is_written_by_one_group_and_by_the_next_one_when_that_dies(start: Any, same: Any) -> None:
    run = start(
        **SAVED_OFTEN,
        checkpoint__asynchronous=False,  # what is written is told before the next step
        checkpoint__smallest_part_mb=1.0,
        failures__events=[strike(3, 0, "checkpoint"), strike(7, 3), strike(7, 1)],  # the last two: all hosts of a type
    ).finish()
    written = [event for event in run.events("checkpoint") if event["status"] == "written"]
    assert {event["parts"] for event in written} == {1}
    assert written[0]["groups"] == [0] and [1] in [event["groups"] for event in written]
    (restart,) = run.events("restart")
    assert restart["to_step"] == 6  # from what group 1 wrote
    same(run, failures=3, masked_failures=1, global_restarts=1)


@pytest.mark.parametrize(("backend", "placement"), [("spare", "cyclic"), ("rep", "partition")])
@pytest.mark.parametrize(("step", "resumed"), [(7, 5), (2, 0)])
def test_all_hosts_of_one_type(start: Any, same: Any, backend: str, placement: str, step: int, resumed: int) -> None:
    hosts = make_placement(placement, 4, 2).hosts[1]
    run = start(
        parallel__groups=4,
        train__steps=10,
        fault_tolerance__backend=backend,
        fault_tolerance__placement=placement,
        fault_tolerance__redundancy=2,
        fault_tolerance__exact=True,
        checkpoint__asynchronous=False,
        failures__events=[strike(step, group) for group in hosts],
    ).finish()
    same(run, failures=2, masked_failures=0, global_restarts=1, lost_steps=step - resumed)
    (restart,) = run.events("restart")
    assert "wipe-out" in restart["reason"]
    assert restart["to_step"] == resumed


def test_a_crash_that_repeats_itself_ends_the_run(start: Any) -> None:
    crash = [strike(2, 1, "compute", "exception") for _ in range(5)]
    run = start(failures__events=crash, fault_tolerance__max_restarts_without_progress=3).finish(status=1)
    assert "fault_tolerance.max_restarts_without_progress=3" in run.output
    assert "injected into group 1 in compute of step 2" in run.output
    summary = run.summary
    assert (summary["failures"], summary["global_restarts"]) == (4, 3)
    assert summary["weights_sha256"] is None


def test_workers_that_die_as_they_start_end_the_run(start: Any) -> None:
    run = start(fault_tolerance__max_restarts_without_progress=2)
    seen: set[int] = set()
    while run.status(0.001) is None:
        pid = run.processes().get((0, 0))
        if pid is not None and pid not in seen:
            seen.add(pid)
            os.kill(pid, signal.SIGKILL)
    run.finish(status=1)
    assert len(seen) == 3
    assert "fault_tolerance.max_restarts_without_progress=2" in run.output


def test_a_run_whose_launcher_was_killed_is_resumed(start: Any, same: Any) -> None:
    run = start(train__steps=16, checkpoint__asynchronous=False)
    run.until_step(12)
    os.kill(run.launcher, signal.SIGKILL)
    run.finish(status=-signal.SIGKILL)
    again = start(train__steps=16, checkpoint__asynchronous=False).finish()
    assert again.folder == run.folder
    same(again, failures=0, global_restarts=0, steps=16)
    assert again.events("start")[-1]["step"] in (10, 15)
