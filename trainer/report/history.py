"""The history of one run, read from its folder: commits, failures, restarts, and where the time went.

Time zero is the start of training, and the end is the last commit (or the last event of a run that was broken off), so
that start-up and shutdown, which a simulation does not have, count nowhere.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

from fault_tolerance.simulation.ledger import CAUSES
from trainer import config as configuration
from trainer.config import Config
from trainer.metrics.accounting import Accounting
from trainer.run_folder import RunFolder

Record = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """The time from one commit, start or restart to the next commit, and what fell into it."""

    begin: float
    record: Record
    """What the step that ended it recorded; `time` is the span's end."""
    first: bool
    """Whether it is the first of an epoch: communicators are built in it."""
    failures: tuple[Record, ...]
    replans: tuple[Record, ...]

    @property
    def end(self) -> float:
        return float(self.record["time"])

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def save_seconds(self) -> float:
        """How long the step stood still for a checkpoint."""
        return float(self.record["seconds"].get("checkpoint", 0.0))

    @property
    def stacks(self) -> float:
        return float(self.record.get("stacks", 1.0))

    @property
    def patch_stacks(self) -> float:
        """Stacks that were computed in this step for dead groups: all beyond the plan that it began with."""
        return max(self.stacks - float(self.replans[0]["stacks_before"]), 0.0) if self.replans else 0.0

    @property
    def is_quiet(self) -> bool:
        """Neither a failure nor a checkpoint nor the start of an epoch."""
        return not (self.first or self.failures or self.replans or self.save_seconds)


@dataclass(frozen=True)
class Overheads:
    """Mean seconds of a step beyond its stacks; None of what the run never had."""

    every: float
    """In every step: all-reduce, commit, optimizer."""
    recovery: float | None
    """More in a step in which deaths were masked: agreement, replan, new communicator."""
    save: float | None
    """More in a step that ends in a checkpoint."""


@dataclass
class History:
    """Everything recorded of one run; times in seconds since the start of training."""

    config: Config
    events: list[Record]
    steps: list[Record]
    summary: Record = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> History:
        """Reads a run folder.

        Raises:
            ValueError: it is none, or nothing was trained in it.
        """
        config_file = folder / "config.yaml"
        if not config_file.is_file():
            raise ValueError(f"{folder}: no run folder (config.yaml is missing)")
        events, steps = _lines(folder / "events.jsonl"), _lines(folder / "metrics.jsonl")
        starts = [index for index, event in enumerate(events) if event["event"] == "start"]
        if not starts or not steps:
            raise ValueError(f"{folder}: nothing was trained in this run yet")
        events = events[starts[-1] :]  # a run that was continued: its last stretch, as its summary has it
        began = float(events[0]["time"])
        steps = _last_stretch(steps)
        summary_file = RunFolder(folder).summary
        summary = json.loads(summary_file.read_text(encoding="utf-8")) if summary_file.is_file() else {}
        return cls(configuration.load(config_file), list(_since(began, events)), list(_since(began, steps)), summary)

    def of(self, *kinds: str) -> list[Record]:
        """Events of some kinds, in order of time."""
        return [event for event in self.events if event["event"] in kinds]

    @cached_property
    def wall_seconds(self) -> float:
        """From the start of training to its last commit; of a run that was broken off, to its end."""
        done = self.steps[-1]["step"] + 1 >= self.config.train.steps
        return float(self.steps[-1]["time"] if done else max(self.steps[-1]["time"], self.events[-1]["time"]))

    @cached_property
    def accounting(self) -> Accounting:
        """The run's accounts between start and end."""
        accounting = Accounting()
        merged = sorted([*self.events, *self.steps], key=lambda entry: entry["time"])
        for entry in merged:
            if entry["time"] > self.wall_seconds:
                break
            match entry.get("event"):
                case None:
                    seconds = entry["seconds"]["total"] - entry["seconds"].get("checkpoint", 0.0)
                    accounting.step(
                        entry["step"], entry["time"], seconds, entry["tokens"], entry["stacks"], entry["generation"]
                    )
                case "failure":
                    accounting.failure(entry["time"], len(entry["groups"]), entry.get("generation"))
                case "replan":
                    accounting.replan()
                case "restart":
                    accounting.restart(entry["time"], entry.get("lost_steps"), entry.get("seconds") or 0.0)
        return accounting

    @cached_property
    def spans(self) -> list[Span]:
        """One per commit, in order of time.

        A replan belongs to the step that it names: its event may arrive after the commit's.
        """
        replanned: dict[tuple[int, int], list[Record]] = {}
        for event in self.of("replan"):
            replanned.setdefault((event["generation"], event["step"]), []).append(event)
        spans: list[Span] = []
        failures: list[Record] = []
        begin, first = 0.0, True
        for entry in sorted([*self.events, *self.steps], key=lambda entry: entry["time"]):
            kind = entry.get("event")
            if kind == "failure":
                failures.append(entry)
            elif kind == "restart":
                begin, first, failures = entry["time"], True, []
            elif kind is None:
                replans = tuple(replanned.get((entry["generation"], entry["step"]), ()))
                spans.append(Span(begin, entry, first, tuple(failures), replans))
                begin, first, failures = entry["time"], False, []
        return spans

    @cached_property
    def stack_seconds(self) -> float:
        """Seconds of one shard type in one group: from steps in which every group computes the same number of them."""
        groups = self.config.parallel.groups
        even = [span for span in self.spans if span.is_quiet and span.record["live_groups"] == groups]
        even = even or [span for span in self.spans if span.record["live_groups"] == groups] or self.spans
        return statistics.median(span.record["seconds"]["compute"] / span.stacks for span in even)

    @cached_property
    def overheads(self) -> Overheads:
        """What steps took beyond their stacks, by least squares over all steps but those that begin an epoch.

        A save is what the step's fastest group recorded of it; what others took longer shows in the steps that follow.
        """
        spans = [span for span in self.spans if not span.first] or self.spans
        kinds = [(1.0, float(bool(span.replans))) for span in spans]
        beyond = [span.seconds - span.save_seconds - span.stacks * self.stack_seconds for span in spans]
        every, recovery = scipy.optimize.nnls(np.array(kinds), np.array(beyond))[0].tolist()
        saves = [span.save_seconds for span in self.spans if span.save_seconds]
        return Overheads(
            every,
            recovery if any(kind[1] for kind in kinds) else None,
            statistics.fmean(saves) if saves else None,
        )

    @property
    def other_seconds(self) -> float:
        """What every step takes beyond its stacks: all-reduce, commit, optimizer."""
        return self.overheads.every

    @cached_property
    def seconds_by_cause(self) -> dict[str, float]:
        """Wall-clock by the simulator's causes (`fault_tolerance.simulation.ledger`); they add up to it."""
        seconds = dict.fromkeys(CAUSES, 0.0)
        undone = self._undone()
        at = 0.0
        for span, is_undone in zip(self.spans, undone, strict=True):
            if span.begin > at:  # a restart lies between
                for cause, part in self._restart_parts(at, span.begin).items():
                    seconds[cause] += part
            parts = self._span_parts(span)
            if is_undone:
                seconds["rework"] += span.seconds - parts["save"] - parts["down"]
                parts = {"save": parts["save"], "down": parts["down"]}
            for cause, part in parts.items():
                seconds[cause] += part
            at = span.end
        for cause, part in self._restart_parts(at, self.wall_seconds).items():
            seconds[cause] += part
        return seconds

    @cached_property
    def downtimes(self) -> list[tuple[float, float]]:
        """(begin, end) of each stretch in which training was down: from the first failure that forced a restart."""
        stretches, at = [], 0.0
        for begin, end in [*((span.begin, span.end) for span in self.spans), (self.wall_seconds, self.wall_seconds)]:
            if begin > at:
                stretches.append((at + self._restart_parts(at, begin)["rework"], begin))
            at = max(at, end)
        return stretches

    def _undone(self) -> list[bool]:
        """For each span whether a later restart undid its step."""
        last = {span.record["step"]: index for index, span in enumerate(self.spans)}
        return [last[span.record["step"]] != index for index, span in enumerate(self.spans)]

    def _restart_parts(self, begin: float, end: float) -> dict[str, float]:
        """A stretch that ends in a restart (or in nothing): up to the first failure work that came to nothing."""
        deaths = [event["time"] for event in self.of("failure") if begin <= event["time"] <= end]
        failed = min(deaths, default=begin)
        return {"rework": failed - begin, "down": end - failed}

    def _span_parts(self, span: Span) -> dict[str, float]:
        save = min(span.save_seconds, span.seconds)
        left = span.seconds - save
        parts = dict.fromkeys(CAUSES, 0.0) | {"save": save}
        own = max(span.stacks - span.patch_stacks, 0.0)
        for cause, stacks in (
            ("compute", min(own, 1.0)),
            ("redundant", max(own - 1.0, 0.0)),
            ("patch", span.patch_stacks),
        ):
            parts[cause] = min(stacks * self.stack_seconds, left)
            left -= parts[cause]
        parts["reduce"] = min(left, self.other_seconds) if span.first or span.failures or span.replans else left
        extra = left - parts["reduce"]
        parts["down" if span.first and span.begin > 0 else "shrink"] += extra
        return parts

    @property
    def stall_per_failure(self) -> float | None:
        """Seconds that a failure costs beside the steps that follow: patch, shrink, rework and down."""
        return stall_per_failure(self.seconds_by_cause, self.accounting.failures)


def stall_per_failure(seconds_by_cause: dict[str, float], failures: int) -> float | None:
    """Mean seconds that a failure holds training up; None where there was none."""
    lost = sum(seconds_by_cause[cause] for cause in ("patch", "shrink", "rework", "down"))
    return lost / failures if failures else None


def _lines(path: Path) -> list[Record]:
    """Whole lines of a JSON lines file; none if there is no such file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _last_stretch(steps: list[Record]) -> list[Record]:
    """Records since the clock last began anew (each start of a launcher begins at zero)."""
    cuts = [index for index, (one, other) in enumerate(pairwise(steps), start=1) if other["time"] < one["time"]]
    return steps[cuts[-1] :] if cuts else steps


def _since(began: float, entries: Iterable[Record]) -> Iterator[Record]:
    for entry in entries:
        yield {**entry, "time": entry["time"] - began}
