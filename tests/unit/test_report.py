"""A run's history out of its folder: accounts, causes and states of a run that was written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer import config as configuration
from trainer.config import Config, EmulateConfig
from trainer.report.history import History
from trainer.report.pictures import availability, group_states
from trainer.report.run_report import write_report

START = 3.0
"""Seconds from the launcher's start to that of training."""
STACK, OTHER, RECOVERY, SAVE, RESTART = 0.4, 0.1, 0.3, 0.2, 5.0


class Writer:
    """Writes the files of a run with two micro-batches and four groups, whose steps take the seconds above."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.generation, self.live = folder, START, 1, 4
        config = Config(run_dir=str(folder), emulate=EmulateConfig(unit_seconds=STACK / 2))
        config.parallel.groups, config.train.steps, config.fault_tolerance.backend = 4, 6, "spare"
        configuration.save(config, folder / "config.yaml")
        self.event("start", step=0)

    def write(self, name: str, entry: dict[str, Any]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": self.now, "generation": self.generation, **entry}) + "\n")

    def event(self, kind: str, **fields: Any) -> None:
        self.write("events.jsonl", {"event": kind, "groups": [], **fields})

    def step(self, step: int, stacks: float = 1.0, extra: float = 0.0, save: float = 0.0) -> None:
        seconds = stacks * STACK + OTHER + extra + save
        self.now += seconds
        parts = {"total": seconds, "compute": stacks * STACK, "reduce": OTHER, **({"checkpoint": save} if save else {})}
        values = {"loss": 5.0 - step, "tokens": 64, "live_groups": self.live, "memory_bytes": 0, "seconds": parts}
        self.write("metrics.jsonl", {"step": step, "stacks": stacks, **values})

    def death(self, group: int, step: int) -> None:
        self.live -= 1
        self.event("failure", groups=[group], step=step, phase="compute", cause="SIGKILL")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two steps, a masked death in step 2, a save after step 2, a wipe-out in step 4 that undoes step 3."""
    writer = Writer(tmp_path)
    writer.step(0)
    writer.step(1)
    began = writer.now
    writer.now = began + 0.2
    writer.death(3, step=2)
    writer.now, writer.generation = began, 2
    writer.step(2, stacks=1.5, extra=RECOVERY, save=SAVE)
    writer.event(
        "replan",
        step=2,
        groups=[3],
        phase=2,
        moves=2,
        stacks_before=1.0,
        stacks_after=1.5,
        patch_stacks=0.5,
        seconds={"total": 0.8, "patch": 0.2},
    )
    writer.step(3, stacks=1.5)
    writer.now += 0.25
    writer.death(0, step=4)
    writer.now += RESTART
    writer.generation, writer.live = 4, 4
    writer.event("restart", step=3, from_step=4, to_step=3, lost_steps=1, seconds=RESTART)
    for step in (3, 4, 5):
        writer.step(step)
    writer.now += 1.0
    writer.event("end", step=5)
    return tmp_path


def test_accounts_count_from_the_start_of_training_to_the_last_commit(run: Path) -> None:
    history = History.read(run)
    wall = 2 * 0.5 + (0.7 + RECOVERY + SAVE) + 0.7 + 0.25 + RESTART + 3 * 0.5
    assert history.wall_seconds == pytest.approx(wall)
    accounting = history.accounting
    assert (accounting.failures, accounting.masked_failures, accounting.global_restarts) == (2, 1, 1)
    assert (accounting.steps, accounting.lost_steps) == (6, 1)
    assert accounting.compute_overhead == pytest.approx((5 * 1.0 + 2 * 1.5) / 7)
    assert accounting.availability(wall) == pytest.approx(1 - RESTART / wall)
    assert accounting.productive_fraction(wall) == pytest.approx((5 * 0.5 + 0.7 + RECOVERY) / wall)


def test_durations_are_those_that_the_run_was_made_of(run: Path) -> None:
    history = History.read(run)
    assert history.stack_seconds == pytest.approx(STACK)
    assert history.overheads.every == pytest.approx(OTHER)
    assert history.overheads.recovery == pytest.approx(RECOVERY)
    assert history.overheads.save == pytest.approx(SAVE)


def test_every_second_has_one_cause(run: Path) -> None:
    history = History.read(run)
    seconds = history.seconds_by_cause
    assert sum(seconds.values()) == pytest.approx(history.wall_seconds)
    assert seconds["compute"] == pytest.approx(6 * STACK)
    assert seconds["patch"] == pytest.approx(0.5 * STACK)
    assert seconds["redundant"] == pytest.approx(0.0)
    assert seconds["reduce"] == pytest.approx(6 * OTHER)
    assert seconds["shrink"] == pytest.approx(RECOVERY)
    assert seconds["save"] == pytest.approx(SAVE)
    assert seconds["rework"] == pytest.approx(0.7 + 0.25)
    assert seconds["down"] == pytest.approx(RESTART)
    assert history.stall_per_failure == pytest.approx((0.5 * STACK + RECOVERY + 0.95 + RESTART) / 2)


def test_downtimes_and_availability_over_time(run: Path) -> None:
    history = History.read(run)
    ((begin, end),) = history.downtimes
    assert end - begin == pytest.approx(RESTART)
    shares = availability(history, np.array([begin, end, history.wall_seconds]))
    assert shares == pytest.approx([1.0, begin / end, 1 - RESTART / history.wall_seconds])


def test_states_of_groups(run: Path) -> None:
    states = group_states(History.read(run))
    assert [state for state, *_ in states[3]] == ["alive", "dead", "down", "alive"]
    assert [state for state, *_ in states[1]] == ["alive", "down", "patching", "alive"]
    assert states[0][:2] == states[1][:2]  # its death is what the downtime begins with


def test_the_page_holds_everything_itself_and_says_that_it_is_emulated(run: Path) -> None:
    page = write_report(run).read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 5
    assert "http:" not in page and "https:" not in page
    assert "emulated accelerators: a unit 0.2 s" in page
    assert "restart at step 3" in page and "1 -&gt; 1.5" in page


def test_a_run_that_goes_on_can_be_looked_at(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    with pytest.raises(ValueError, match="nothing was trained"):
        History.read(tmp_path)
    writer.step(0)
    assert write_report(tmp_path).exists()
    with pytest.raises(ValueError, match="no run folder"):
        History.read(tmp_path / "report")


def test_a_continued_run_is_read_from_its_last_start(run: Path) -> None:
    (run / "metrics.jsonl").open("a").close()
    writer = Writer(run)
    writer.step(4)
    writer.step(5)
    history = History.read(run)
    assert [step["step"] for step in history.steps] == [4, 5]
    assert history.accounting.failures == 0
