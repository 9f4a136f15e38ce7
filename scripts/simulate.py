"""Simulate a cluster of any size: time-to-train, availability and where the time goes, for each method and redundancy.

    python scripts/simulate.py cluster=paper_600k parallel.groups=600 fault_tolerance=spare fault_tolerance.redundancy=9
    python scripts/simulate.py ... fault_tolerance.granularity=shard output=json
    python scripts/simulate.py ... simulation.trace=runs/x/events.jsonl    recorded failures instead of drawn ones
    python scripts/simulate.py ... cluster.repair_s=3600                   dead groups come back after an hour
    python scripts/simulate.py experiment=paper_table                      the paper's table beside ours
    python scripts/simulate.py experiment=scaling                          which method at which size
    python scripts/simulate.py cluster=my.yaml sweep.kind=redundancy       your cluster over redundancies

With run_dir=FOLDER the summary, the timeline (events.jsonl, as a live run writes it) and pictures are kept.
torch is not needed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.simulation.cases import Case, Method
from fault_tolerance.simulation.report import print_result, run_study
from fault_tolerance.simulation.study import Study
from fault_tolerance.simulation.timeline import write_events
from trainer.cli import entry_point
from trainer.config import FaultToleranceConfig


@dataclass
class ParallelOptions:
    """Size of the data-parallel layer."""

    groups: int = MISSING
    """Data-parallel groups (N)."""
    micro_batches: int = MISSING
    """Micro-batches per shard type (m)."""


@dataclass
class FaultToleranceOptions(FaultToleranceConfig):
    """The trainer's options; exact, timeout_seconds and max_restarts_without_progress mean nothing here."""

    duplicates: bool = False
    """spare with whole shards: survivors compute the first S types of their stack, whoever else does so too."""


@dataclass
class SimulationOptions:
    """Options of every run."""

    checkpoint_period_s: float | None = None
    """Seconds from save to save, one save included; the planner's when empty."""
    checkpoint_every_steps: int | None = None
    """Steps from save to save, instead of a period in seconds."""
    trace: str | None = None
    """File of recorded failures (events.jsonl of a run, JSON lines or CSV) instead of drawn ones."""
    failures_in_restart: bool = False
    """Groups also die during a global restart; false: all are new when training resumes."""
    notice: str = "synchronisation"
    """When a wipe-out in compute is acted on: synchronisation or immediate."""
    masked_death_in_save: str = "survived"
    """What a masked death in a save costs: survived (nothing, as published) or rewritten (the save is void and another
    follows two steps later, as in the trainer)."""
    write_s: float = 0.0
    """A save is written beside training for so long after training has gone on (asynchronous checkpoints)."""
    first_step_s: float = 0.0
    """More in the first step after the start and after each global restart."""
    join_s: float = 0.0
    """Training stands still this long while repaired groups (cluster.repair_s) take over the state."""
    domain_size: int = 1
    """Consecutive groups that share a rack and die together."""
    domain_probability: float = 1.0
    """Share of failures that take the whole rack."""


@dataclass
class SweepOptions:
    """Many runs instead of one."""

    kind: str = "none"
    """none, redundancy (methods and redundancies at given sizes) or scaling (methods over cluster sizes)."""
    groups: list[int] = field(default_factory=list)
    """redundancy: sizes; parallel.groups when empty."""
    redundancies: list[int] = field(default_factory=lambda: [2, 3, 4, 5, 6, 8, 10, 12, 16, 20])
    """Redundancies to try."""
    methods: list[str] = field(default_factory=lambda: ["ckpt", "rep", "rep_partition", "spare", "spare_micro_batch"])
    """Of fault_tolerance.simulation.cases.METHODS."""
    seeds: int = 3
    """Runs per point, with the seeds seed, seed + 1, ..."""
    workers: int = 0
    """Processes; 0: the cores of this machine."""
    gpus: list[int] = field(default_factory=list)
    """scaling: cluster sizes."""
    gpus_per_group: int = 1000
    """scaling: GPUs of one group."""
    restart_base_s: float = 600.0
    """scaling: the part of the restart that does not grow with the cluster; the rest grows in proportion and reaches
    cluster.restart_s at cluster.groups groups."""


@dataclass
class SimulateConfig:
    """All of `conf/simulate.yaml`."""

    cluster: dict[str, Any] = field(default_factory=dict)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    fault_tolerance: FaultToleranceOptions = field(default_factory=FaultToleranceOptions)
    simulation: SimulationOptions = field(default_factory=SimulationOptions)
    sweep: SweepOptions = field(default_factory=SweepOptions)
    seed: int = 0
    """Seed of failures and noise."""
    output: str = "text"
    """text, or json: one object on stdout."""
    run_dir: str | None = None
    """Folder for results and pictures; none are kept when empty."""
    progress: bool = True
    """Progress bar of a sweep, on stderr."""


ConfigStore.instance().store(name="simulate_schema", node=SimulateConfig)


@entry_point("simulate")
def main(cfg: DictConfig) -> int:
    """Simulate a cluster under failures: one run, or a sweep over methods, redundancies and sizes."""
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, SimulateConfig)
    if config.output not in ("text", "json"):
        raise ValueError(f"output={config.output} is unknown: choose text or json")
    run_dir = None if config.run_dir is None else Path(config.run_dir)
    if config.sweep.kind == "none":
        return _single(config, run_dir)
    sweep = config.sweep
    study = Study(
        kind=sweep.kind,
        cluster=_cluster(config),
        groups=sweep.groups or [config.parallel.groups],
        redundancies=sweep.redundancies,
        methods=sweep.methods,
        seeds=range(config.seed, config.seed + sweep.seeds),
        micro_batches=config.parallel.micro_batches,
        shared=_shared(config),
        gpus=sweep.gpus,
        gpus_per_group=sweep.gpus_per_group,
        restart_base_s=sweep.restart_base_s,
    )
    summary = run_study(study, sweep.workers or None, run_dir, config.progress, quiet=config.output == "json")
    if config.output == "json":
        print(json.dumps(summary, allow_nan=False))
    return 0


def _single(config: SimulateConfig, run_dir: Path | None) -> int:
    chosen = config.fault_tolerance
    method = Method(chosen.backend, chosen.granularity, chosen.placement, chosen.duplicates, chosen.solver)
    case = Case(
        cluster=_cluster(config),
        groups=config.parallel.groups,
        method=method,
        redundancy=chosen.redundancy,
        seed=config.seed,
        micro_batches=config.parallel.micro_batches,
        **_shared(config),
    )
    result = case.run(timeline=run_dir is not None)
    if config.output == "json":
        print(json.dumps(result.summary(), allow_nan=False))
    else:
        print_result(case, result)
    if run_dir is not None:
        from fault_tolerance.simulation.plots import plot_run

        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "summary.json").write_text(json.dumps(result.summary(), indent=2) + "\n", encoding="utf-8")
        write_events(run_dir / "events.jsonl", result.events)
        plot_run(run_dir / "timeline.png", case, result)
        print(f"kept in {run_dir}", file=sys.stderr)
    return 0


def _cluster(config: SimulateConfig) -> ClusterProfile:
    values = {**config.cluster, "groups": config.parallel.groups, "micro_batches": config.parallel.micro_batches}
    return ClusterProfile.from_mapping(values)


def _shared(config: SimulateConfig) -> dict[str, Any]:
    """Fields of Case that all runs share."""
    simulation = config.simulation
    options: dict[str, Any] = {
        "failures_in_restart": simulation.failures_in_restart,
        "notice": simulation.notice,
        "masked_death_in_save": simulation.masked_death_in_save,
        "write_seconds": simulation.write_s,
        "first_step_seconds": simulation.first_step_s,
        "join_seconds": simulation.join_s,
    }
    if simulation.checkpoint_every_steps is not None:
        options["checkpoint_every_steps"] = simulation.checkpoint_every_steps
    if simulation.checkpoint_period_s is not None:
        options["checkpoint_period_seconds"] = simulation.checkpoint_period_s
    return {
        "trace": simulation.trace,
        "domain_size": simulation.domain_size,
        "domain_probability": simulation.domain_probability,
        "options": options,
    }


if __name__ == "__main__":
    main()
