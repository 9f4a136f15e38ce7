"""Scenarios refuse nonsense with a line that names the value."""

from __future__ import annotations

import pytest
from scenarios import scenario

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.simulation.scenario import Scenario, StepFailure


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"steps": 0}, "steps=0"),
        ({"stack_seconds": 0.0}, "stack_seconds"),
        ({"save_seconds": -1.0}, "save_seconds=-1.0"),
        ({"restart_seconds": float("inf")}, "restart_seconds=inf"),
        ({"noise_std": 0.5}, "noise_std=0.5"),
        ({"checkpoint_every_steps": 0}, "checkpoint_every_steps=0"),
        ({"checkpoint_period_seconds": 0.0}, "checkpoint_period_seconds"),
        ({"notice": "never"}, "notice=never"),
        ({"masked_death_in_save": "ignored"}, "masked_death_in_save=ignored"),
        ({"step_failures": (StepFailure(1, 8),)}, "group in 0..7"),
        ({"step_failures": (StepFailure(1, 0, "lunch"),)}, "phase must be one of"),
    ],
)
def test_nonsense_is_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenario(**changes)


def test_from_cluster_takes_the_size_into_account() -> None:
    cluster = ClusterProfile()
    chosen = Scenario.from_cluster(cluster, groups=1000, checkpoint_every_steps=5, steps=7)
    assert (chosen.groups, chosen.steps, chosen.reduce_seconds) == (1000, 7, 10.0)
    assert chosen.failure_free_seconds == 7 * 74.0
