"""Durations of a live run as a simulation needs them, and replays of its deaths with them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import scipy.optimize

from fault_tolerance.failures import Failure, FailureProcess, Trace
from fault_tolerance.policies.base import Policy
from fault_tolerance.simulation.engine import simulate
from fault_tolerance.simulation.result import Result
from fault_tolerance.simulation.scenario import Scenario
from trainer.checkpoint.schedule import CheckpointSchedule
from trainer.config import Config
from trainer.report.history import History, Span

REPLAYS = 40
"""Replays whose mean is compared with a live run."""


VARIED = 0.5
"""Stacks by which the steps of a run must differ before the seconds of a stack can be told from the rest of a step."""


@dataclass(frozen=True)
class StepSeconds:
    """What a run's steps took on average, save and first steps of epochs apart: stacks * stack + other (+ recovery)."""

    stack: float
    other: float
    recovery: float | None
    """More in a step in which deaths were masked; None where none were."""

    @classmethod
    def of(cls, history: History) -> StepSeconds:
        """By least squares over all steps.

        Where the work of many groups outlasts its padding, steps of one stack take longer than their padding says and
        steps of two do not: what counts is what a further stack adds.
        """
        spans = [span for span in history.spans if not span.first]
        stacks = [span.stacks for span in spans]
        if not spans or max(stacks) - min(stacks) < VARIED:
            return cls(history.stack_seconds, history.overheads.every, history.overheads.recovery)
        kinds = [(span.stacks, 1.0, float(bool(span.replans))) for span in spans]
        seconds = [span.seconds - span.save_seconds for span in spans]
        stack, other, recovery = scipy.optimize.nnls(np.array(kinds), np.array(seconds))[0].tolist()
        return cls(stack, other, recovery if any(kind[2] for kind in kinds) else None)

    def with_at_least(self, other: float, stacks: float) -> StepSeconds:
        """As many seconds for a step of so many `stacks`, of which `other` or more are not its stacks'.

        Where all steps have the same stacks, their seconds do not say how they are divided.
        """
        short = min(max(other - self.other, 0.0), self.stack * stacks)
        return StepSeconds(self.stack - short / stacks, self.other + short, self.recovery)

    def expected(self, span: Span) -> float:
        """Seconds of a step with this span's stacks."""
        return span.stacks * self.stack + self.other

    def recovery_without_broken_reductions(self, history: History, reduce: float) -> float | None:
        """Without the all-reduces that deaths broke: the simulator breaks those of its own deaths itself.

        A death falls into the all-reduce by its share of a step, and costs half of it on average.
        """
        masked = [self.expected(span) for span in history.spans if span.replans]
        if self.recovery is None or not masked:
            return self.recovery
        return max(self.recovery - reduce * reduce / (2 * statistics.fmean(masked)), 0.0)


@dataclass(frozen=True)
class Durations:
    """Mean seconds, as measured in one live run; None where it had no such thing."""

    unit: float
    """Forward and backward of one unit."""
    wait: float
    """A step beyond its units until the last group is there for the all-reduce."""
    reduce: float
    """From then on: all-reduce, commit, optimizer."""
    recovery: float | None
    """A step with masked deaths beyond its stacks: agreement, replan, new communicator."""
    restart: float | None
    """A global restart, from the decision until training has resumed."""
    first_step: float | None
    """The first step after the start or a restart, beyond what others take."""
    save: float | None
    """Training stands still this long for a checkpoint."""
    write: float | None
    """From then on until the checkpoint is whole."""

    @classmethod
    def measure(cls, history: History) -> Durations:
        """Measures a run."""
        reduce = _reduce(history)
        steps = StepSeconds.of(history).with_at_least(reduce, statistics.fmean(span.stacks for span in history.spans))
        reduce = min(reduce, steps.other)
        return cls(
            unit=steps.stack / history.config.parallel.micro_batches,
            wait=steps.other - reduce,
            reduce=reduce,
            recovery=steps.recovery_without_broken_reductions(history, reduce),
            restart=_restart(history),
            first_step=_first_step(history, steps),
            save=history.overheads.save,
            write=_write(history),
        )

    def filled(self, others: Sequence[Durations]) -> Durations:
        """With the median of other rows where this one has measured nothing (0 where none has)."""
        values = asdict(self)
        for entry in fields(self):
            if values[entry.name] is None:
                known = [value for other in others if (value := getattr(other, entry.name)) is not None]
                values[entry.name] = statistics.median(known) if known else 0.0
        return Durations(**values)


class Struck(Trace):
    """Deaths that did strike: one that a simulated restart runs into strikes when training resumes, not never.

    In the live run training had resumed by then, perhaps by a hundredth of a second.
    """

    def reset(self, now: float) -> None:
        """Every group is live; no death is past."""
        self._dead.clear()


def struck(history: History) -> list[Failure]:
    """The deaths of a run until its last commit."""
    deaths = [event for event in history.of("failure") if event["time"] <= history.wall_seconds]
    return [(event["time"], tuple(event["groups"])) for event in deaths]


def moved(failures: Sequence[Failure], seconds: float, seed: int) -> list[Failure]:
    """Each failure up to `seconds` earlier or later (uniformly), in order of time."""
    random_numbers = random.Random(seed)
    times = [(max(time + random_numbers.uniform(-seconds, seconds), 0.0), groups) for time, groups in failures]
    return sorted(times)


def replays(
    config: Config,
    policy: Callable[[], Policy],
    durations: Durations,
    failures: Sequence[Failure],
    process: type[Trace],
    step_seconds: float,
) -> list[Result]:
    """Replays in which each failure falls up to half a step earlier or later.

    Whether a death falls into this step or the next, into a save or behind it, is decided by hundredths of a second
    that no model of mean durations has, and a single one may cost a global restart. The mean over all that could have
    happened is what a simulation can say; the spread says how much of a live run is such chance.

    Args:
        process: Trace, or Struck where the failures are those that did strike.
    """
    groups = config.parallel.groups
    return [
        replay(config, policy(), durations, process(groups, moved(failures, step_seconds / 2, seed)))
        for seed in range(REPLAYS)
    ]


def replay(config: Config, policy: Policy, durations: Durations, failures: FailureProcess) -> Result:
    """Simulates a run's configuration under recorded failures, without noise, with its timeline.

    Args:
        durations: without gaps (`Durations.filled`).
    """
    assert durations.recovery is not None and durations.restart is not None and durations.first_step is not None
    assert durations.save is not None and durations.write is not None
    scenario = Scenario(
        groups=config.parallel.groups,
        steps=config.train.steps,
        stack_seconds=durations.unit * config.parallel.micro_batches,
        wait_seconds=durations.wait,
        reduce_seconds=durations.reduce,
        restart_seconds=durations.restart,
        first_step_seconds=durations.first_step,
        save_seconds=durations.save,
        write_seconds=durations.write,
        save_parts=len(CheckpointSchedule(config).writers(range(config.parallel.groups))),
        shrink_seconds=durations.recovery,
        noise_std=0.0,
        checkpoint_period_seconds=config.checkpoint.every_seconds or None,
        checkpoint_every_steps=config.checkpoint.every_steps or None,
        notice="immediate",  # the controller asks its own policy as soon as a group is gone
        masked_death_in_save="rewritten",
        max_restarts_without_progress=1000,
        max_time_ratio=1000.0,
    )
    return simulate(scenario, policy, failures, timeline=True)


def _reduce(history: History) -> float:
    """Seconds of an all-reduce and what follows it, once all groups are there: the quickest tenth of quiet steps."""
    parts = [
        sum(span.record["seconds"].get(part, 0.0) for part in ("reduce", "commit", "optimizer"))
        for span in [span for span in history.spans if span.is_quiet] or history.spans
    ]
    return sorted(parts)[len(parts) // 10]


def _write(history: History) -> float | None:
    """Mean seconds from the end of a save's stall until the checkpoint is whole, by the clock of who made it so.

    The event itself comes later, with the writer's next step.
    """
    whole = [event["seconds"] for event in history.of("checkpoint") if event["status"] == "written"]
    return max(statistics.fmean(whole) - (history.overheads.save or 0.0), 0.0) if whole else None


def _restart(history: History) -> float | None:
    """Mean seconds of a restart until training has resumed."""
    seconds = [event["seconds"] for event in history.of("restart")]
    return statistics.fmean(seconds) if seconds else None


def _first_step(history: History, steps: StepSeconds) -> float | None:
    """Mean seconds by which the first steps of epochs took longer than others."""
    first = [span for span in history.spans if span.first]
    even = [span for span in first if not (span.failures or span.replans or span.save_seconds)]
    longer = [span.seconds - steps.expected(span) for span in even]
    return max(statistics.fmean(longer), 0.0) if longer else None
