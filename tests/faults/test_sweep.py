"""SIGKILL from outside at any moment of a step: 40 offsets over eight runs of eight groups, each kill survived.

The steps of the tiny model take about as long as the membership's reactions, so the offsets fall into computing,
reducing, committing, the optimizer and into recoveries alike.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import pytest
from farm import Run, survivable

pytestmark = pytest.mark.processes

GROUPS, REDUNDANCY = 8, 5
PER_RUN = 5
OFFSETS = 40
FIRST_STEP = 3


def kill_at_offset(run: Run, group: int, offset: float) -> None:
    """Kills `group` at this share of a step after the next commit that the run reports."""
    seconds = statistics.median(line["seconds"]["total"] for line in run.lines("metrics.jsonl"))
    before = len(run.steps)
    run.until(lambda: len(run.steps) > before, "another step")
    time.sleep(offset * seconds)
    run.signal(group)


@pytest.mark.parametrize("number", range(8))
def test_killed_at_any_moment(start: Any, same: Any, number: int) -> None:
    backend = "rep" if number % 4 == 3 else "spare"
    order = random.Random(number).sample(range(GROUPS), GROUPS)
    dying = survivable("cyclic", GROUPS, REDUNDANCY, order, PER_RUN)
    run = start(
        parallel__groups=GROUPS,
        parallel__micro_batches=1,
        train__global_batch=GROUPS,
        train__steps=20,
        fault_tolerance__backend=backend,
        fault_tolerance__placement="cyclic",
        fault_tolerance__redundancy=REDUNDANCY,
        fault_tolerance__exact=True,
        checkpoint__every_steps=0,
    )
    run.until_step(FIRST_STEP)
    for kill, group in enumerate(dying):
        kill_at_offset(run, group, (kill * 8 + number) / OFFSETS)
    run.finish()
    same(run, failures=PER_RUN, masked_failures=PER_RUN, global_restarts=0, lost_steps=0)
    assert run.lines("metrics.jsonl")[-1]["live_groups"] == GROUPS - PER_RUN
