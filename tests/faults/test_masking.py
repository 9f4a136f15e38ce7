"""Deaths that SPARe and replication mask: the run goes on, and its bits do not tell that anything happened."""

from __future__ import annotations

import time
from typing import Any

import pytest
from farm import strike, survivable

pytestmark = pytest.mark.processes

BACKENDS: dict[str, dict[str, Any]] = {
    "spare": {"backend": "spare", "redundancy": 2},
    "spare-shard": {"backend": "spare", "redundancy": 2, "granularity": "shard"},
    "rep-cyclic": {"backend": "rep", "redundancy": 2, "placement": "cyclic"},
    "rep-partition": {"backend": "rep", "redundancy": 2, "placement": "partition"},
}


def options(backend: str, **more: Any) -> dict[str, Any]:
    settings = {f"fault_tolerance__{key}": value for key, value in BACKENDS[backend].items()}
    return {"parallel__groups": 4, "fault_tolerance__exact": True, **settings, **more}


@pytest.mark.parametrize("phase", ["compute", "reduce", "commit"])
@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_death_in_each_phase_is_masked(start: Any, same: Any, backend: str, phase: str) -> None:
    run = start(**options(backend, failures__events=[strike(3, 1, phase)])).finish()
    same(run, failures=1, masked_failures=1, global_restarts=0, lost_steps=0, steps=8)
    (failure,) = run.events("failure")
    assert (failure["step"], failure["groups"]) == (3, [1])
    assert "SIGKILL" in failure["cause"]


@pytest.mark.parametrize("phase", ["reduce", "commit"])
def test_a_death_is_masked_where_two_pipeline_stages_share_a_weight(start: Any, same: Any, phase: str) -> None:
    layout = {"parallel__groups": 2, "parallel__pp": 2, "model__tied_embeddings": True}
    run = start(**(options("spare", failures__events=[strike(3, 1, phase)]) | layout)).finish()
    same(run, failures=1, masked_failures=1, global_restarts=0)


@pytest.mark.parametrize("backend", ["spare", "rep-cyclic"])
def test_the_first_and_the_last_step(start: Any, same: Any, backend: str) -> None:
    events = [strike(0, 2, "commit"), strike(7, 0, "commit")]
    run = start(**options(backend, failures__events=events)).finish()
    same(run, failures=2, masked_failures=2, global_restarts=0)


def test_every_way_to_end(start: Any, same: Any) -> None:
    ways = ["exit", "exception", "SIGTERM"]
    dying = survivable("cyclic", 6, 3, range(6), 3)
    events = [strike(step, group, signal=way) for step, (group, way) in enumerate(zip(dying, ways, strict=True), 2)]
    run = start(
        parallel__groups=6,
        train__global_batch=12,
        fault_tolerance__backend="spare",
        fault_tolerance__redundancy=3,
        fault_tolerance__exact=True,
        failures__events=events,
    ).finish()
    same(run, failures=3, masked_failures=3, global_restarts=0)
    causes = {failure["groups"][0]: failure["cause"] for failure in run.events("failure")}
    assert "status 1" in causes[dying[0]]
    assert "SIGTERM" in causes[dying[2]]
    assert f"[group {dying[1]} rank 0] fault_tolerance.runtime.injection.InjectedFailure" in run.output


@pytest.mark.parametrize("backend", ["spare", "rep"])
def test_two_at_once_then_two_in_the_recovery_then_one_more(start: Any, same: Any, backend: str) -> None:
    dying = survivable("cyclic", 8, 4, (0, 5, 3, 6, 1, 2, 4, 7), 5)
    phases = ["compute", "compute", "recovery", "recovery"]
    events = [strike(3, group, phase) for group, phase in zip(dying, phases, strict=False)]
    events.append(strike(6, dying[4], "reduce"))
    run = start(
        parallel__groups=8,
        fault_tolerance__backend=backend,
        fault_tolerance__placement="cyclic",
        fault_tolerance__redundancy=4,
        fault_tolerance__exact=True,
        failures__events=events,
    ).finish()
    same(run, failures=5, masked_failures=5, global_restarts=0, lost_steps=0)
    assert sorted(group for event in run.events("replan") for group in event["groups"]) == sorted(dying)
    assert run.lines("metrics.jsonl")[-1]["live_groups"] == 3


def test_down_to_one_group(start: Any, same: Any) -> None:
    events = [strike(2, 1, "commit"), strike(4, 0, "reduce")]
    run = start(
        parallel__groups=3,
        train__global_batch=6,
        fault_tolerance__backend="spare",
        fault_tolerance__redundancy=3,
        fault_tolerance__exact=True,
        failures__events=events,
    ).finish()
    same(run, failures=2, masked_failures=2, global_restarts=0)
    assert run.lines("metrics.jsonl")[-1]["live_groups"] == 1


def test_without_exact_sums_the_loss_is_equal_to_rounding(start: Any, undisturbed: Any) -> None:
    events = [strike(2, 1, "compute"), strike(5, 3, "commit")]
    run = start(**options("spare", fault_tolerance__exact=False, failures__events=events)).finish()
    assert run.summary["masked_failures"] == 2
    assert run.losses == pytest.approx(undisturbed(run).losses, rel=1e-5)


def test_one_rank_takes_its_tensor_and_pipeline_parallel_group_along(start: Any, same: Any) -> None:
    run = start(
        parallel__groups=2,
        parallel__tp=2,
        parallel__pp=2,
        fault_tolerance__backend="spare",
        fault_tolerance__redundancy=2,
        fault_tolerance__exact=True,
        train__steps=30,
        checkpoint__every_steps=0,
    )
    run.until_step(4)
    peers = [pid for (group, _), pid in run.processes().items() if group == 1]
    run.signal(1, rank=3)
    killed = time.monotonic()
    run.until(lambda: not set(peers) & set(run.left()), "the whole group has left", seconds=5.0)
    assert time.monotonic() - killed < 1.0
    run.finish()
    same(run, failures=1, masked_failures=1, global_restarts=0)
