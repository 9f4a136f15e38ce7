"""What is simulated: durations, checkpoint rule and options of one run. Plain numbers, no decisions.

A scenario comes from a cluster profile (`Scenario.from_cluster`) or from measured durations of a live run (the
constructor): with `noise_std=0` and a recorded trace it replays that run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal

from fault_tolerance.cluster import ClusterProfile

PHASES: tuple[str, ...] = ("compute", "reduce", "commit", "recovery", "checkpoint")
"""Where in a step a failure can be placed by `StepFailure`; the names of the trainer's failure injection."""

REWRITE_AFTER_STEPS = 2
"""Steps from a save that a death made void to the next: the death is noticed in one, the missing part in another."""


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A failure that is bound to a step instead of a time; strikes once, also over restarts."""

    step: int
    """Step (from 0) in which it strikes."""
    group: int
    """Group that dies."""
    phase: str = "compute"
    """compute, reduce, commit (reduced, but in vain), recovery (while a failure of this step is dealt with; never where
    there is none) or checkpoint (the one written after this step)."""


@dataclass(frozen=True)
class Scenario:
    """One run. Durations are means in seconds; each is multiplied by a draw of N(1, noise_std^2)."""

    groups: int
    """Data-parallel groups (N)."""
    steps: int
    """Optimizer steps that have to be committed."""
    stack_seconds: float
    """Forward and backward of one shard type in one group: unit seconds x micro-batches."""
    reduce_seconds: float
    """Gradient all-reduce between groups."""
    restart_seconds: float
    """Global restart."""
    save_seconds: float
    """Training stands still this long for a checkpoint."""
    wait_seconds: float = 0.0
    """Of every step's compute phase, beside its stacks: data, and waiting for the slowest group. Booked as reduce, as a
    live run's report does."""
    write_seconds: float = 0.0
    """From then on until the checkpoint is whole, while training goes on: the parts of the groups become so one after
    another. A global restart in between finds the checkpoint before."""
    shrink_seconds: float = 0.0
    """Rebuilding the communicator over the survivors."""
    save_parts: int | None = None
    """Live groups that write a part of a save, the first ones; None: all of them."""
    first_step_seconds: float = 0.0
    """More in the first step after the start and after each global restart: communicators are built in it."""
    replan_seconds: float = 0.0
    """Deciding the new assignment."""
    repair_seconds: float | None = None
    """From a group's death until it rejoins; None: dead groups return only at a global restart."""
    join_seconds: float = 0.0
    """Training stands still this long while repaired groups take over the state of a survivor."""
    noise_std: float = 0.05
    """Relative standard deviation of every duration."""
    checkpoint_period_seconds: float | None = None
    """Seconds from the end of a save (or a restart) to the end of the next save; None: not by time."""
    checkpoint_every_steps: int | None = None
    """Steps between checkpoints; None: not by steps. Both None: no checkpoints, a restart goes back to step 0."""
    notice: Literal["synchronisation", "immediate"] = "synchronisation"
    """When a wipe-out in compute is acted on: at the step's all-reduce (as published) or when it happens."""
    failures_in_restart: bool = False
    """True: groups age during a global restart and those that die in it are dead when training resumes.
    False: all are new when training resumes (what reproduces the paper)."""
    masked_death_in_save: Literal["survived", "rewritten"] = "survived"
    """What a masked death in a save does to it: nothing, and the policy hears of it at once (as published), or the save
    is void if the dead group had not written its part, and survivors write another `REWRITE_AFTER_STEPS` later (as the
    trainer does, where a death in a save is noticed in the step that follows)."""
    step_failures: tuple[StepFailure, ...] = field(default=())
    """Failures bound to steps, beside those of the failure process."""
    max_restarts_without_progress: int = 100
    """Global restarts in a row without a new checkpoint between them, after which the run is given up."""
    max_time_ratio: float = 100.0
    """Wall-clock over failure-free time at which the run is given up."""

    def __post_init__(self) -> None:
        """Raises ValueError where a value makes no sense, naming it and what would fit."""
        for name in ("groups", "steps", "max_restarts_without_progress"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.save_parts is not None and self.save_parts < 1:
            raise ValueError(f"save_parts={self.save_parts}: must be at least 1, or None for all live groups")
        for name in ("stack_seconds", "max_time_ratio"):
            _check_seconds(name, getattr(self, name), positive=True)
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name.endswith("_seconds") and value is not None:
                _check_seconds(entry.name, value, positive=entry.name == "checkpoint_period_seconds")
        if not 0 <= self.noise_std < 0.3:
            raise ValueError(f"noise_std={self.noise_std}: must lie in [0, 0.3), or durations turn negative")
        if self.checkpoint_every_steps is not None and self.checkpoint_every_steps < 1:
            raise ValueError(f"checkpoint_every_steps={self.checkpoint_every_steps}: must be at least 1, or None")
        if self.notice not in ("synchronisation", "immediate"):
            raise ValueError(f"notice={self.notice}: must be synchronisation or immediate")
        if self.masked_death_in_save not in ("survived", "rewritten"):
            raise ValueError(f"masked_death_in_save={self.masked_death_in_save}: must be survived or rewritten")
        for failure in self.step_failures:
            if failure.phase not in PHASES or not 0 <= failure.group < self.groups or failure.step < 0:
                raise ValueError(
                    f"step failure {failure}: phase must be one of {', '.join(PHASES)}, "
                    f"the group in 0..{self.groups - 1} and the step at least 0"
                )

    @property
    def failure_free_seconds(self) -> float:
        """T_0: all steps at one stack each, without failures, checkpoints and redundancy."""
        return self.steps * (self.compute_seconds(1.0) + self.reduce_seconds)

    def compute_seconds(self, stacks: float) -> float:
        """A step's compute phase with so many stacks."""
        return self.wait_seconds + stacks * self.stack_seconds

    @classmethod
    def from_cluster(
        cls,
        cluster: ClusterProfile,
        groups: int | None = None,
        checkpoint_period_seconds: float | None = None,
        **options: object,
    ) -> Scenario:
        """Scenario of a cluster profile over `groups` groups (the profile's own number when None).

        Args:
            checkpoint_period_seconds: see the field; usually `fault_tolerance.theory`'s optimum for the method.
            options: other fields of Scenario, which replace the profile's.
        """
        count = cluster.groups if groups is None else groups
        values: dict[str, object] = {
            "groups": count,
            "steps": cluster.steps,
            "stack_seconds": cluster.compute_s,
            "reduce_seconds": cluster.all_reduce_seconds(count),
            "restart_seconds": cluster.restart_s,
            "save_seconds": cluster.save_s,
            "shrink_seconds": cluster.shrink_s,
            "replan_seconds": cluster.replan_s,
            "repair_seconds": cluster.repair_s,
            "noise_std": cluster.noise_std,
            "checkpoint_period_seconds": checkpoint_period_seconds,
        }
        return cls(**(values | options))  # type: ignore[arg-type]


def _check_seconds(name: str, value: float, positive: bool) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{name}={value}: must be a finite number {'above 0' if positive else 'of at least 0'}")
