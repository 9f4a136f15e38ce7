"""Durations of a live run as a simulation needs them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from fault_tolerance.failures import Failure, FailureProcess, Trace
from fault_tolerance.policies.base import Policy
from fault_tolerance.simulation.engine import simulate
from fault_tolerance.simulation.result import Result
from fault_tolerance.simulation.scenario import Scenario
from trainer.config import Config
from trainer.report.history import History


@dataclass(frozen=True)
class Durations:
    """Mean seconds, as measured in one live run; None where it had no such thing."""

    unit: float
    """Forward and backward of one unit."""
    other: float
    """A step beyond its units: all-reduce, commit, optimizer."""
    recovery: float | None
    """A step with masked deaths beyond its stacks: agreement, replan, new communicator."""
    restart: float | None
    """A global restart, from the decision until training has resumed."""
    save: float | None
    """Training stands still this long for a checkpoint."""

    @classmethod
    def measure(cls, history: History) -> Durations:
        """Measures a run."""
        return cls(
            unit=history.stack_seconds / history.config.parallel.micro_batches,
            other=history.overheads.every,
            recovery=_recovery(history),
            restart=_restart(history),
            save=history.overheads.save,
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


def replay(config: Config, policy: Policy, durations: Durations, failures: FailureProcess) -> Result:
    """Simulates a run's configuration under recorded failures, without noise, with its timeline.

    Args:
        durations: without gaps (`Durations.filled`).
    """
    assert durations.recovery is not None and durations.restart is not None and durations.save is not None
    scenario = Scenario(
        groups=config.parallel.groups,
        steps=config.train.steps,
        stack_seconds=durations.unit * config.parallel.micro_batches,
        reduce_seconds=durations.other,
        restart_seconds=durations.restart,
        save_seconds=durations.save,
        shrink_seconds=durations.recovery,
        noise_std=0.0,
        checkpoint_period_seconds=config.checkpoint.every_seconds or None,
        checkpoint_every_steps=config.checkpoint.every_steps or None,
        notice="immediate" if config.fault_tolerance.backend == "ckpt" else "synchronisation",
        masked_death_in_save="rewritten",
        max_restarts_without_progress=1000,
        max_time_ratio=1000.0,
    )
    return simulate(scenario, policy, failures, timeline=True)


def _recovery(history: History) -> float | None:
    """Without the all-reduces that deaths broke: the simulator breaks those of its own deaths itself.

    A death falls into the all-reduce by its share of a step, and costs half of it on average.
    """
    recovery, other = history.overheads.recovery, history.overheads.every
    if recovery is None:
        return None
    masked = [history.expected_seconds(span) for span in history.spans if span.replans]
    return max(recovery - other * other / (2 * statistics.fmean(masked)), 0.0)


def _restart(history: History) -> float | None:
    """Mean seconds of a restart, with what the first step after it took longer than others (communicators)."""
    first = {round(span.begin, 6): span for span in history.spans if span.first}
    seconds = []
    for event in history.of("restart"):
        span = first.get(round(event["time"], 6))
        if span is not None:
            disturbed = span.failures or span.replans or span.save_seconds
            seconds.append(event["seconds"] + (0.0 if disturbed else span.seconds - history.expected_seconds(span)))
    return max(statistics.fmean(seconds), 0.0) if seconds else None
