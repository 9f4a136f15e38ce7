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
    first_step: float | None
    """The first step after the start or a restart, beyond what others take."""
    save: float | None
    """Training stands still this long for a checkpoint."""
    write: float | None
    """From then on until the checkpoint is whole."""

    @classmethod
    def measure(cls, history: History) -> Durations:
        """Measures a run."""
        return cls(
            unit=history.stack_seconds / history.config.parallel.micro_batches,
            other=history.overheads.every,
            recovery=_recovery(history),
            restart=_restart(history),
            first_step=_first_step(history),
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
        reduce_seconds=durations.other,
        restart_seconds=durations.restart,
        first_step_seconds=durations.first_step,
        save_seconds=durations.save,
        write_seconds=durations.write,
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


def _write(history: History) -> float | None:
    """Mean seconds from the end of a save's stall to the event that tells of the whole checkpoint."""
    ends = {
        (span.record["step"] + 1, span.record["generation"]): span.end for span in history.spans if span.save_seconds
    }
    seconds = [
        event["time"] - ends[key]
        for event in history.of("checkpoint")
        if event["status"] == "written" and (key := (event["step"], event["generation"])) in ends
    ]
    return max(statistics.fmean(seconds), 0.0) if seconds else None


def _restart(history: History) -> float | None:
    """Mean seconds of a restart until training has resumed."""
    seconds = [event["seconds"] for event in history.of("restart")]
    return statistics.fmean(seconds) if seconds else None


def _first_step(history: History) -> float | None:
    """Mean seconds by which the first steps of epochs took longer than others."""
    first = [span for span in history.spans if span.first]
    even = [span for span in first if not (span.failures or span.replans or span.save_seconds)]
    longer = [span.seconds - history.expected_seconds(span) for span in even]
    return max(statistics.fmean(longer), 0.0) if longer else None
