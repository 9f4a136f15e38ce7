"""What a simulated run came to: summary and timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fault_tolerance.simulation.ledger import STEP_CAUSES


@dataclass(frozen=True)
class Result:
    """Summary of one run. `status` is done, or no_progress where the run was given up (then `reason` says why)."""

    status: str
    """done or no_progress."""
    reason: str
    """Why a run was given up; empty where it was done."""
    steps: int
    """Steps that count at the end."""
    wall_seconds: float
    """Simulated wall-clock."""
    failure_free_seconds: float
    """T_0 of all steps that were asked for."""
    seconds_by_cause: dict[str, float]
    """Seconds under each of `ledger.CAUSES`; they add up to wall_seconds."""
    unnoticed_seconds: float
    """Part of down: from a failure that forces a restart to the synchronisation at which it is seen."""
    mean_stacks: float
    """Mean stacks per committed step on its critical path, patches included; steps that were undone later count too."""
    busiest_stacks: float
    """Mean of the largest planned load plus the longest patch of one group: patches that follow each other in a step on
    different groups do not add up. This is what a live run measures."""
    failures: int
    """Groups that died while training was up (and during restarts where the scenario says so)."""
    masked_failures: int
    """Of these, deaths that forced no global restart."""
    global_restarts: int
    """Wipe-outs, or every failure where the policy masks none."""
    lost_steps: int
    """Committed steps that restarts undid."""
    checkpoints: int
    """Checkpoints written."""
    joins: int
    """Repaired groups that came back without a restart."""
    events: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Timeline in the schema of a live run's events.jsonl; empty unless it was asked for."""

    @property
    def time_to_train_ratio(self) -> float | None:
        """TTT / T_0; None where the run was given up."""
        return self.wall_seconds / self.failure_free_seconds if self.status == "done" else None

    @property
    def availability(self) -> float:
        """(wall-clock - down) / wall-clock."""
        return 1.0 - self.seconds_by_cause["down"] / self.wall_seconds

    @property
    def availability_from_notice(self) -> float:
        """As `availability`, but down only from the synchronisation at which the failure is seen (as published)."""
        return self.availability + self.unnoticed_seconds / self.wall_seconds

    @property
    def productive_fraction(self) -> float:
        """Time in steps that count at the end / wall-clock."""
        return sum(self.seconds_by_cause[cause] for cause in STEP_CAUSES) / self.wall_seconds

    def summary(self) -> dict[str, Any]:
        """One flat object for JSON: the names of a live run's summary.json, and the time by cause."""
        return {
            "status": self.status,
            "reason": self.reason,
            "time_to_train_ratio": self.time_to_train_ratio,
            "availability": self.availability,
            "availability_from_notice": self.availability_from_notice,
            "productive_fraction": self.productive_fraction,
            "compute_overhead": self.mean_stacks,
            "busiest_stacks": self.busiest_stacks,
            "failures": self.failures,
            "masked_failures": self.masked_failures,
            "global_restarts": self.global_restarts,
            "lost_steps": self.lost_steps,
            "checkpoints": self.checkpoints,
            "joins": self.joins,
            "steps": self.steps,
            "wall_seconds": self.wall_seconds,
            "failure_free_seconds": self.failure_free_seconds,
            "seconds_by_cause": dict(self.seconds_by_cause),
        }
