"""Who writes a save, and who asks for one."""

from __future__ import annotations

import pytest

from trainer.checkpoint.schedule import STATE_BYTES, CheckpointSchedule
from trainer.config import Config
from trainer.model.size import parameter_count


def schedule(parts: float, **values: float) -> CheckpointSchedule:
    """Of four groups, with a state of so many smallest parts."""
    config = Config(run_dir="x")
    config.parallel.groups = 4
    config.checkpoint.smallest_part_mb = STATE_BYTES * parameter_count(config.model) / 1e6 / parts if parts else 0.0
    for name, value in values.items():
        setattr(config.checkpoint, name, value)
    return CheckpointSchedule(config)


@pytest.mark.parametrize(
    ("parts", "writers"), [(0, (0, 1, 3)), (0.5, (0,)), (1.5, (0,)), (2.5, (0, 1)), (9, (0, 1, 3))]
)
def test_parts_are_not_smaller_than_asked_for(parts: float, writers: tuple[int, ...]) -> None:
    assert schedule(parts).writers((0, 1, 3)) == writers


def test_only_a_writers_death_makes_a_save_doubtful() -> None:
    two = schedule(2.5, every_steps=10)
    two.saved(10, 0.1, two.writers((0, 1, 2, 3)))
    two.group_lost((0, 1, 2))
    assert not two.wants_one(lambda step: False)
    two.group_lost((0, 2))
    assert two.wants_one(lambda step: step != 10)
    assert not two.wants_one(lambda step: step != 10)  # asked once


def test_who_writes_nothing_does_not_plan_the_period() -> None:
    """It knows no save's cost, and a period planned from none is none."""
    planned = schedule(1.5, mtbf_seconds=600.0, restart_seconds=60.0, every_steps=0)
    planned.saved(1, 1e-4, (0,))
    planned._saved_at -= 30.0
    assert planned.wants_one(lambda step: True, writes=True)
    assert not planned.wants_one(lambda step: True, writes=False)
