"""Many runs on all cores, and their means with confidence intervals.

Rows do not depend on the number of workers or on who finishes first: each run has its own seed.
"""

from __future__ import annotations

import csv
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fault_tolerance.simulation.cases import Case, row_of

Row = dict[str, Any]
Job = tuple[str, Case]
"""(name of the method, case)."""


@dataclass(frozen=True)
class Mean:
    """Mean over seeds with the half width of its 95 % confidence interval (Student's t; nan for a single seed)."""

    value: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """From one value per seed; nan where any is nan (a run that was given up)."""
        count = len(values)
        if count < 2:
            return cls(float(values[0]), math.nan)
        spread = float(np.std(values, ddof=1)) / math.sqrt(count)
        return cls(float(np.mean(values)), float(stats.t.ppf(0.975, count - 1)) * spread)


@dataclass(frozen=True)
class Point:
    """One method at one size and redundancy, over all seeds."""

    method: str
    groups: int
    redundancy: int
    ratio: Mean
    availability: Mean
    from_notice: Mean
    """Availability, down only from the synchronisation at which a failure is seen."""
    productive: Mean
    stacks: Mean
    seconds_by_cause: dict[str, float]
    """Mean seconds per run."""
    given_up: int
    """Seeds without progress."""
    reason: str
    """Of a seed that was given up."""


def run_jobs(
    jobs: Sequence[Job], workers: int | None = None, on_done: Callable[[int], None] | None = None
) -> list[Row]:
    """Run all jobs in their own processes; rows in the order of the jobs.

    Args:
        workers: processes; None: the cores that this process may use.
        on_done: called with the number of finished jobs after each.
    """
    workers = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    rows: list[Row | None] = [None] * len(jobs)
    if workers <= 1:
        for index, job in enumerate(jobs):
            rows[index] = _run(job)
            if on_done:
                on_done(index + 1)
        return [row for row in rows if row is not None]
    # The costly ones first, so that no core idles at the end.
    order = sorted(range(len(jobs)), key=lambda index: -jobs[index][1].groups)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        finished = pool.imap_unordered(_run_indexed, [(index, jobs[index]) for index in order])
        for done, (index, row) in enumerate(finished, start=1):
            rows[index] = row
            if on_done:
                on_done(done)
    return [row for row in rows if row is not None]


def points_of(rows: Iterable[Row]) -> list[Point]:
    """Means over seeds, in the order in which method, size and redundancy first appear."""
    gathered: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        gathered.setdefault((row["method"], row["groups"], row["redundancy"]), []).append(row)
    points = []
    for (method, groups, redundancy), seeds in gathered.items():
        causes = [name for name in seeds[0] if name.startswith("seconds_")]
        points.append(
            Point(
                method=method,
                groups=groups,
                redundancy=redundancy,
                ratio=Mean.of([row["time_to_train_ratio"] for row in seeds]),
                availability=Mean.of([row["availability"] for row in seeds]),
                from_notice=Mean.of([row["availability_from_notice"] for row in seeds]),
                productive=Mean.of([row["productive_fraction"] for row in seeds]),
                stacks=Mean.of([row["compute_overhead"] for row in seeds]),
                seconds_by_cause={
                    name.removeprefix("seconds_"): float(np.mean([row[name] for row in seeds])) for name in causes
                },
                given_up=sum(row["status"] != "done" for row in seeds),
                reason=next((row["reason"] for row in seeds if row["reason"]), ""),
            )
        )
    return points


def best_of(points: Iterable[Point], method: str, groups: int) -> Point | None:
    """The redundancy with the least mean time-to-train; None where the method makes no progress at any."""
    able = [p for p in points if p.method == method and p.groups == groups and not math.isnan(p.ratio.value)]
    return min(able, key=lambda point: point.ratio.value, default=None)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows with a header; all rows must have the same names."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _run(job: Job) -> Row:
    name, case = job
    return row_of(case, name, case.run())


def _run_indexed(indexed: tuple[int, Job]) -> tuple[int, Row]:
    index, job = indexed
    return index, _run(job)
