"""Small scenarios with round numbers, and invariants that hold for every result."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from fault_tolerance.failures import Trace
from fault_tolerance.policies.factory import make_policy
from fault_tolerance.simulation.engine import simulate
from fault_tolerance.simulation.ledger import STEP_CAUSES
from fault_tolerance.simulation.result import Result
from fault_tolerance.simulation.scenario import Scenario

STACK, REDUCE, SHRINK, REPLAN, SAVE, RESTART = 10.0, 2.0, 0.5, 0.25, 5.0, 100.0


def scenario(**values: Any) -> Scenario:
    """8 groups, 20 steps of 12 s, no noise, checkpoints every 5 steps."""
    defaults: dict[str, Any] = {
        "groups": 8,
        "steps": 20,
        "stack_seconds": STACK,
        "reduce_seconds": REDUCE,
        "restart_seconds": RESTART,
        "save_seconds": SAVE,
        "shrink_seconds": SHRINK,
        "replan_seconds": REPLAN,
        "noise_std": 0.0,
        "checkpoint_every_steps": 5,
    }
    return Scenario(**(defaults | values))


def run(
    backend: str,
    deaths: Iterable[tuple[float, tuple[int, ...]]] = (),
    redundancy: int = 3,
    granularity: str = "shard",
    micro_batches: int = 1,
    seed: int = 0,
    **values: Any,
) -> Result:
    """Simulate with recorded deaths and check what holds for every result."""
    chosen = scenario(**values)
    policy = make_policy(
        backend,
        groups=chosen.groups,
        redundancy=redundancy,
        micro_batches=micro_batches,
        granularity=granularity,
    )
    result = simulate(chosen, policy, Trace(chosen.groups, deaths), seed=seed, timeline=True)
    check(result)
    return result


def check(result: Result) -> None:
    """The causes add up to the wall-clock, and counts and events agree with each other."""
    causes = result.seconds_by_cause
    assert math.fsum(causes.values()) == pytest.approx(result.wall_seconds, rel=1e-9)
    assert min(causes.values()) >= -1e-9 * result.wall_seconds
    assert 0 <= result.availability <= 1
    assert 0 <= result.productive_fraction <= 1 + 1e-12
    assert 0 <= result.masked_failures <= result.failures
    productive = sum(causes[cause] for cause in STEP_CAUSES)
    assert result.productive_fraction == pytest.approx(productive / result.wall_seconds)
    if result.events:
        events = result.events
        assert events[0]["event"] == "start" and events[-1]["event"] == "end"
        assert events[-1]["time"] == result.wall_seconds
        assert sum(len(event["groups"]) for event in events if event["event"] == "failure") == result.failures
        restarts = [event for event in events if event["event"] == "restart"]
        assert len(restarts) == result.global_restarts
        assert sum(event["lost_steps"] for event in restarts) == result.lost_steps
        assert sum(event["seconds"] for event in restarts) == pytest.approx(causes["down"], abs=1e-6)
        generations = [event["generation"] for event in events]
        assert generations == sorted(generations)
        times = [event["time"] for event in events]
        assert times == sorted(times)
