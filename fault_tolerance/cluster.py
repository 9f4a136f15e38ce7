"""A cluster in a dozen numbers: what planner, closed forms and simulator need to know of the machines.

One profile serves all three, so that a plan and its simulation speak of the same cluster. `conf/cluster/*.yaml` are
profiles; a user's own is a copy of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

REQUIRED = ("groups", "micro_batches", "mtbf_s", "restart_s", "save_s", "compute_s", "all_reduce_s")
"""What a cluster file must say; the rest has defaults."""


@dataclass(frozen=True)
class ClusterProfile:
    """Durations in seconds, all means. Failures hit groups (whole model replicas)."""

    name: str = "cluster"
    """Name for tables and plots."""
    groups: int = 600
    """Data-parallel groups (N) unless the command says otherwise."""
    micro_batches: int = 16
    """Micro-batches per shard type (m) unless the command says otherwise."""
    steps: int = 10_000
    """Optimizer steps of the run."""
    mtbf_s: float = 300.0
    """Mean time between failures of the whole system."""
    weibull_shape: float = 0.78
    """Shape of a group's lifetime, whose mean is groups x mtbf_s; 1 is exponential."""
    restart_s: float = 3600.0
    """Global restart: from the failure until training resumes at the checkpoint."""
    save_s: float = 60.0
    """Checkpoint save: how long training stands still for it."""
    compute_s: float = 64.0
    """Forward and backward of one shard type in one group (one stack)."""
    all_reduce_s: float | list[list[float]] = field(default_factory=lambda: [[200.0, 2.0], [1000.0, 10.0]])
    """Gradient all-reduce between groups: seconds, or points [groups, seconds] that are joined by straight lines
    (constant beyond the first and the last point)."""
    shrink_s: float = 0.1
    """Rebuilding the communicator over the survivors."""
    replan_s: float = 0.1
    """Deciding the new assignment (RECTLR)."""
    repair_s: float | None = None
    """From a group's death until it can rejoin; null: dead groups return only at a global restart."""
    noise_std: float = 0.05
    """Relative standard deviation of every duration in the simulator."""

    def __post_init__(self) -> None:
        """Raises ValueError where a value makes no sense, naming it and what would fit."""
        for name in ("groups", "micro_batches", "steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"cluster.{name}={value}: must be a whole number of at least 1")
        for name in ("mtbf_s", "weibull_shape", "compute_s"):
            _check_number(name, getattr(self, name), positive=True)
        for name in ("restart_s", "save_s", "shrink_s", "replan_s", "noise_std"):
            _check_number(name, getattr(self, name), positive=False)
        if self.repair_s is not None:
            _check_number("repair_s", self.repair_s, positive=False)
        if self.noise_std >= 0.3:
            raise ValueError(f"cluster.noise_std={self.noise_std}: must be below 0.3, or durations turn negative")
        self._check_all_reduce()
        step_s = self.compute_s + self.all_reduce_seconds(self.groups)
        if self.mtbf_s <= step_s:
            raise ValueError(
                f"cluster.mtbf_s={self.mtbf_s:g} is not longer than a step (compute_s + all_reduce_s = {step_s:g} s): "
                "hardly a step would end without a failure; check the units (seconds)"
            )

    def all_reduce_seconds(self, groups: int) -> float:
        """Seconds of one gradient all-reduce over `groups` groups.

        Points are joined by straight lines and the outer ones hold beyond them. The paper says only "2 to 10 s, rising
        with N" for N from 200 to 1000: joining (200, 2) and (1000, 10) linearly is this project's reading.
        """
        if not isinstance(self.all_reduce_s, list):
            return float(self.all_reduce_s)
        points = self.all_reduce_s
        if groups <= points[0][0]:
            return float(points[0][1])
        for (left_n, left_s), (right_n, right_s) in pairwise(points):
            if groups <= right_n:
                return float(left_s + (right_s - left_s) * (groups - left_n) / (right_n - left_n))
        return float(points[-1][1])

    def step_seconds(self, groups: int, stacks: float = 1.0) -> float:
        """Seconds of one step without failures in which the busiest group computes `stacks` shard types."""
        return stacks * self.compute_s + self.all_reduce_seconds(groups)

    def failure_free_seconds(self, groups: int) -> float:
        """T_0: seconds of the whole run with neither failures nor checkpoints nor redundancy."""
        return self.steps * self.step_seconds(groups)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ClusterProfile:
        """A profile from a parsed YAML mapping. What REQUIRED does not name may be left out and keeps its default.

        Raises:
            ValueError: an unknown or missing name, or a value that makes no sense.
        """
        known = [entry.name for entry in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"cluster.{unknown[0]}: no such value; a cluster has {', '.join(known)}")
        if missing := [name for name in REQUIRED if name not in values]:
            raise ValueError(f"cluster.{missing[0]} is missing: a cluster needs {', '.join(REQUIRED)}")
        return cls(**{str(name): value for name, value in values.items()})

    def _check_all_reduce(self) -> None:
        if not isinstance(self.all_reduce_s, list):
            _check_number("all_reduce_s", self.all_reduce_s, positive=False)
            return
        if not self.all_reduce_s or any(not isinstance(p, list) or len(p) != 2 for p in self.all_reduce_s):
            raise ValueError(
                f"cluster.all_reduce_s={self.all_reduce_s}: must be seconds or points [[groups, seconds], ...]"
            )
        for point in self.all_reduce_s:
            _check_number("all_reduce_s", point[0], positive=True)
            _check_number("all_reduce_s", point[1], positive=False)
        if any(left[0] >= right[0] for left, right in pairwise(self.all_reduce_s)):
            raise ValueError(f"cluster.all_reduce_s={self.all_reduce_s}: the points' groups must rise")


def _check_number(name: str, value: object, positive: bool) -> None:
    bound = "above 0" if positive else "of at least 0"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (positive and value == 0):  # type: ignore[arg-type, operator]
        raise ValueError(f"cluster.{name}={value}: must be a number {bound}")
