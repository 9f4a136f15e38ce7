"""Which redundancy and checkpoint period to buy: a table of closed forms and estimates over r for one cluster.

    python scripts/plan.py cluster=paper_600k parallel.groups=600
    python scripts/plan.py cluster=my_cluster.yaml              a copy of conf/cluster/small.yaml with your numbers
    python scripts/plan.py cluster=small cluster.mtbf_s=7200    single values
    python scripts/plan.py fault_tolerance.redundancy=[4,8]     only these r
    python scripts/plan.py output=json                          one JSON object

Nothing is simulated and torch is not needed. The model: `fault_tolerance.theory.renewal`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.theory import Row, best_row, optimal_redundancy, plan_rows
from trainer.cli import entry_point

NO_PROGRESS = 100.0
"""Time-to-train ratios above this are shown as "no progress"."""

NAMES = {
    "ckpt": "checkpoints alone",
    "rep": "replication",
    "spare": "SPARe with whole shards",
    "spare_micro_batch": "SPARe with micro-batches",
}


@entry_point("plan")
def main(cfg: DictConfig) -> int:
    """Table of redundancies for a cluster: failures endured, work, checkpoint period, availability, time to train."""
    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    output = options["output"]
    if output not in ("table", "json"):
        raise ValueError(f"output={output} is unknown: choose table or json")
    parallel = _whole_numbers(options["parallel"])
    profile = ClusterProfile.from_mapping({**options["cluster"], **parallel})
    fault_tolerance = options["fault_tolerance"]
    if not isinstance(fault_tolerance["duplicates"], bool):
        raise ValueError(f"fault_tolerance.duplicates={fault_tolerance['duplicates']}: must be true or false")
    rows = plan_rows(
        profile,
        redundancies=_redundancies(fault_tolerance["redundancy"]),
        rep_placement=fault_tolerance["placement"],
        duplicates=fault_tolerance["duplicates"],
    )
    if output == "json":
        print(json.dumps(as_json(profile.groups, rows), indent=2, allow_nan=False))
    else:
        show(profile, rows)
    return 0


def as_json(groups: int, rows: list[Row]) -> dict[str, Any]:
    """The plan as plain values; a ratio without bound is null."""
    values = [asdict(row) for row in rows]
    for value in values:
        if not math.isfinite(value["time_to_train_ratio"]):
            value["time_to_train_ratio"] = None
    return {
        "groups": groups,
        "best_redundancy": best_row(rows).redundancy,
        "r_star": optimal_redundancy(groups),
        "rows": values,
    }


def show(profile: ClusterProfile, rows: list[Row]) -> None:
    """Print the table over r and the recommendation."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    best = best_row(rows)
    by_cell = {(row.method, row.redundancy): row for row in rows}
    title = f"{profile.name}: N = {profile.groups} groups, m = {profile.micro_batches} micro-batches per shard type"
    table = Table(title=title, caption="* best of its method, ** best of all; T_0 = failure-free time of the run")
    for heading in (
        "r", "failures\nendured mu", "period\nT_c* [s]", "availability\n[%]", "stacks/step\nshards",
        "stacks/step\nmicro-batch", "TTT/T_0\nckpt", "TTT/T_0\nrep", "TTT/T_0\nspare", "TTT/T_0\nspare micro-batch",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    best_of = {name: best_row(row for row in rows if row.method == name) for name in {row.method for row in rows}}
    for redundancy in sorted({row.redundancy for row in rows}):
        first = next(row for row in rows if row.redundancy == redundancy and row.method in ("ckpt", "spare"))
        cells = [
            f"{redundancy}",
            f"{first.mu:.1f}",
            f"{first.checkpoint_period_s:.0f}",
            f"{100 * first.availability:.2f}",
        ]
        for method in ("spare", "spare_micro_batch"):
            row = by_cell.get((method, redundancy))
            cells.append(f"{row.s_bar:.2f}" if row else "")
        for method in NAMES:
            row = by_cell.get((method, redundancy))
            cells.append(_ratio_cell(row, best_of[method], best) if row else "")
        table.add_row(*cells, style="bold green" if redundancy == best.redundancy else None)
    console.print(table)
    console.print(explain(profile, rows), highlight=False)


def explain(profile: ClusterProfile, rows: list[Row]) -> str:
    """The recommendation in two sentences."""
    best = best_row(rows)
    groups = profile.groups
    others = []
    for method, name in NAMES.items():
        candidates = [row for row in rows if row.method == method]
        if method != best.method and candidates:
            other = best_row(candidates)
            at = "" if method == "ckpt" else f" at r = {other.redundancy}"
            ratio = other.time_to_train_ratio
            others.append(f"{f'{ratio:.2f}' if ratio <= NO_PROGRESS else 'no progress'} with {name}{at}")
    days = profile.failure_free_seconds(groups) * best.time_to_train_ratio / 86400
    at = "" if best.method == "ckpt" else f" at r = {best.redundancy}"
    if best.time_to_train_ratio > NO_PROGRESS:
        first = "Nothing here makes progress: a larger r or fewer failures are needed."
    else:
        first = (
            f"Take {NAMES[best.method]}{at}: {profile.steps} steps take {best.time_to_train_ratio:.2f} times the "
            f"failure-free time, {days:.3g} days ({', '.join(others)})."
        )
    repair = "; repairs (cluster.repair_s) are not counted here" if profile.repair_s is not None else ""
    second = (
        f"A global restart comes with failure {best.mu:.0f} in the mean, and a checkpoint every "
        f"{best.checkpoint_period_s:.0f} s leaves {100 * best.availability:.1f} % availability (the paper's rule for "
        f"whole shards says r* = {optimal_redundancy(groups)}){repair}."
    )
    return f"{first} {second}"


def _ratio_cell(row: Row, best_of_method: Row, best: Row) -> str:
    mark = "**" if row == best else "*" if row == best_of_method else ""
    ratio = row.time_to_train_ratio
    return f"{f'{ratio:.2f}' if ratio <= NO_PROGRESS else 'no progress'}{mark}"


def _redundancies(value: Any) -> list[int] | None:
    if value is None:
        return None
    values = value if isinstance(value, list) else [value]
    if not values or any(not isinstance(entry, int) or isinstance(entry, bool) for entry in values):
        raise ValueError(f"fault_tolerance.redundancy={value}: must be a whole number or a list of them, as [4,8]")
    return sorted(set(values))


def _whole_numbers(parallel: dict[str, Any]) -> dict[str, int]:
    for name, value in parallel.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"parallel.{name}={value}: must be a whole number of at least 1")
    return parallel


if __name__ == "__main__":
    main()
