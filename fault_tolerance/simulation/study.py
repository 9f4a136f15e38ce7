"""Studies: which cases answer a question. Over redundancies (which r?) and over cluster sizes (which method?)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.simulation.cases import METHODS, Case
from fault_tolerance.simulation.sweep import Job, Point, best_of

KINDS = ("redundancy", "scaling")


@dataclass(frozen=True)
class Study:
    """A sweep. Raises ValueError where a value does not fit, naming the option."""

    kind: str
    """redundancy or scaling."""
    cluster: ClusterProfile
    groups: Sequence[int]
    """redundancy: sizes."""
    redundancies: Sequence[int]
    """Redundancies to try; those that do not fit a size are left out there."""
    methods: Sequence[str]
    """Names in METHODS."""
    seeds: Sequence[int]
    """One run per seed and point."""
    micro_batches: int
    """m of spare_micro_batch."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Case that all runs share."""
    gpus: Sequence[int] = ()
    """scaling: cluster sizes."""
    gpus_per_group: int = 1000
    """scaling: GPUs of one group."""
    restart_base_s: float = 0.0
    """scaling: the part of the restart that does not grow with the cluster."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"sweep.kind={self.kind} is unknown: choose none, {' or '.join(KINDS)}")
        if unknown := sorted(set(self.methods) - set(METHODS)):
            raise ValueError(f"sweep.methods: {unknown[0]} is unknown: choose among {', '.join(METHODS)}")
        if not self.methods or not self.seeds or not self.redundancies:
            raise ValueError("sweep.methods, sweep.redundancies and sweep.seeds: each needs at least one")
        if min(self.redundancies) < 1:
            raise ValueError(f"sweep.redundancies={list(self.redundancies)}: each must be at least 1")
        if self.kind == "scaling":
            if not self.gpus:
                raise ValueError("sweep.gpus: a scaling sweep needs cluster sizes, for example [10000,100000,600000]")
            if bad := [count for count in self.gpus if count % self.gpus_per_group or count < self.gpus_per_group]:
                raise ValueError(
                    f"sweep.gpus: {bad[0]} is not a multiple of sweep.gpus_per_group={self.gpus_per_group}"
                )

    @property
    def is_the_papers(self) -> bool:
        """Are its points those of the paper's table?"""
        return self.kind == "redundancy" and self.cluster.name == "paper_600k"

    def jobs(self) -> list[Job]:
        """All runs."""
        if self.kind == "redundancy":
            return [job for count in self.groups for job in self._jobs_at(self.cluster, count)]
        jobs = []
        for gpus in self.gpus:
            count = gpus // self.gpus_per_group
            jobs += self._jobs_at(self.cluster_at(count), count)
        return jobs

    def cluster_at(self, groups: int) -> ClusterProfile:
        """scaling: the cluster at another size. Failures come in proportion to machines; the growing part of the
        restart grows in proportion to the groups that have to start."""
        share = groups / self.cluster.groups
        growing = max(self.cluster.restart_s - self.restart_base_s, 0.0)
        return dataclasses.replace(
            self.cluster,
            groups=groups,
            mtbf_s=self.cluster.mtbf_s / share,
            restart_s=min(self.restart_base_s, self.cluster.restart_s) + growing * share,
        )

    def _jobs_at(self, cluster: ClusterProfile, groups: int) -> list[Job]:
        jobs = []
        for name in self.methods:
            method = METHODS[name]
            for redundancy in [1] if method.backend == "ckpt" else self.redundancies:
                if redundancy > groups or (method.placement == "partition" and groups % redundancy):
                    continue
                jobs += [
                    (name, Case(cluster, groups, method, redundancy, seed, self.micro_batches, **self.shared))
                    for seed in self.seeds
                ]
        return jobs


@dataclass(frozen=True)
class Crossover:
    """From about this size on, `better` needs less time than `worse`."""

    better: str
    worse: str
    groups: float


def crossovers(points: Sequence[Point]) -> list[Crossover]:
    """Sizes at which one method, at its best redundancy, overtakes another; interpolated in log(size)."""
    sizes = sorted({point.groups for point in points})
    methods = list(dict.fromkeys(point.method for point in points))
    found = []
    for first in range(len(methods)):
        for second in range(first + 1, len(methods)):
            gaps = []  # positive: the second needs less
            for size in sizes:
                ratios = [_ratio(best_of(points, methods[index], size)) for index in (first, second)]
                if all(map(math.isinf, ratios)):
                    continue
                if ratios[0] != ratios[1]:
                    gaps.append((size, ratios[0] - ratios[1]))
            for (small, before), (large, after) in itertools.pairwise(gaps):
                if (before > 0) != (after > 0):
                    share = before / (before - after) if math.isfinite(before - after) else 1.0
                    meeting = math.exp(math.log(small) + share * (math.log(large) - math.log(small)))
                    better, worse = (second, first) if after > 0 else (first, second)
                    found.append(Crossover(methods[better], methods[worse], meeting))
    return found


def _ratio(point: Point | None) -> float:
    return math.inf if point is None else point.ratio.value
