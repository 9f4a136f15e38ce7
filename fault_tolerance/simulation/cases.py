"""A case: cluster, method, redundancy and seed in one picklable value, and the run that it stands for.

This is the only place that puts a policy, a failure process and a scenario together, so the command line, sweeps and
tests simulate the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.failures import Domains, FailureProcess, Trace, Weibull
from fault_tolerance.policies.base import Policy
from fault_tolerance.policies.factory import make_policy
from fault_tolerance.simulation.engine import simulate
from fault_tolerance.simulation.result import Result
from fault_tolerance.simulation.scenario import Scenario
from fault_tolerance.theory.checkpointing import checkpoint_period
from fault_tolerance.theory.survival import mean_failures_exact, mean_failures_partition


@dataclass(frozen=True)
class Method:
    """A fault-tolerance method, all but its redundancy."""

    backend: str
    """ckpt, rep or spare."""
    granularity: str = "shard"
    """shard or micro_batch (spare)."""
    placement: str = "cyclic"
    """cyclic or partition."""
    duplicates: bool = False
    """spare with shards: survivors compute the first S types of their stack, whoever else does so too."""
    solver: str = "incremental"
    """RECTLR solver of spare: incremental or networkx."""
    title: str = ""
    """Name for tables and plots."""


METHODS: dict[str, Method] = {
    "ckpt": Method("ckpt", title="CKPT-only"),
    "rep": Method("rep", title="Rep+CKPT cyclic"),
    "rep_partition": Method("rep", placement="partition", title="Rep+CKPT teams"),
    "spare": Method("spare", title="SPARe+CKPT shards"),
    "spare_duplicates": Method("spare", duplicates=True, title="SPARe+CKPT shards, duplicates"),
    "spare_micro_batch": Method("spare", granularity="micro_batch", title="SPARe+CKPT micro-batches"),
}
"""Methods by the names that sweeps use."""


@dataclass(frozen=True)
class Case:
    """One run of a sweep."""

    cluster: ClusterProfile
    groups: int
    method: Method
    redundancy: int
    seed: int
    micro_batches: int = 1
    """m; counts only where the granularity is micro_batch: whole shards move with all their micro-batches."""
    trace: str | None = None
    """File of recorded failures that replaces the cluster's failure process."""
    domain_size: int = 1
    """Consecutive groups that share a rack and die together; 1: each for itself."""
    domain_probability: float = 1.0
    """Share of failures that take the whole rack."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Scenario that replace the cluster's."""

    def policy(self) -> Policy:
        """A fresh policy. Raises ValueError where the sizes do not fit."""
        method = self.method
        return make_policy(
            method.backend,
            groups=self.groups,
            redundancy=self.redundancy,
            micro_batches=self.micro_batches if method.granularity == "micro_batch" else 1,
            granularity=method.granularity,
            placement=method.placement,
            solver=method.solver,
            duplicates=method.duplicates,
        )

    def failures(self) -> FailureProcess:
        """A fresh failure process. Raises ValueError for a trace that cannot be read."""
        process: FailureProcess
        if self.trace is not None:
            process = Trace.from_file(self.groups, self.trace)
        else:
            process = Weibull(self.groups, self.cluster.mtbf_s, self.cluster.weibull_shape, self.seed)
        if self.domain_size > 1:
            # Its own stream; from 1000 on, so that it is none of the noise of durations.
            process = Domains(process, self.domain_size, self.domain_probability, seed=[self.seed, 1000])  # type: ignore[arg-type]
        return process

    def scenario(self) -> Scenario:
        """The scenario, with the planned checkpoint period unless the options name a rule."""
        options = dict(self.options)
        if "checkpoint_every_steps" not in options and "checkpoint_period_seconds" not in options:
            options["checkpoint_period_seconds"] = planned_period(
                self.cluster, self.groups, self.method.backend, self.redundancy, self.method.placement
            )
        return Scenario.from_cluster(self.cluster, self.groups, **options)

    def run(self, timeline: bool = False) -> Result:
        """Simulate the case."""
        return simulate(self.scenario(), self.policy(), self.failures(), self.seed, timeline)


def planned_period(cluster: ClusterProfile, groups: int, backend: str, redundancy: int, placement: str) -> float:
    """The planner's checkpoint period in seconds, save included: the optimum for T_f = mu * MTBF, one step at least."""
    mu = _mean_failures(groups, redundancy if backend != "ckpt" else 1, placement)
    shortest = cluster.save_s + cluster.step_seconds(groups)
    return max(checkpoint_period(cluster.save_s, cluster.restart_s, mu * cluster.mtbf_s), shortest)


@lru_cache(maxsize=256)
def _mean_failures(groups: int, redundancy: int, placement: str) -> float:
    if redundancy == 1:
        return 1.0
    if placement == "partition":
        return mean_failures_partition(groups, redundancy)
    return mean_failures_exact(groups, redundancy)


def row_of(case: Case, name: str, result: Result) -> dict[str, Any]:
    """A flat row for CSV: what was simulated and what came out. Ratios of runs that were given up are nan."""
    summary = result.summary()
    causes = summary.pop("seconds_by_cause")
    ratio = summary.pop("time_to_train_ratio")
    return {
        "method": name,
        "groups": case.groups,
        "redundancy": case.redundancy,
        "micro_batches": case.micro_batches,
        "seed": case.seed,
        "time_to_train_ratio": math.nan if ratio is None else ratio,
        **summary,
        **{f"seconds_{cause}": seconds for cause, seconds in causes.items()},
    }
