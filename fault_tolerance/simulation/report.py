"""What people read of simulated runs: tables on the console, and the files of a sweep."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fault_tolerance.simulation.cases import METHODS, Case
from fault_tolerance.simulation.ledger import CAUSES
from fault_tolerance.simulation.paper import Comparison, compare
from fault_tolerance.simulation.result import Result
from fault_tolerance.simulation.study import Study, crossovers
from fault_tolerance.simulation.sweep import Mean, Point, best_of, points_of, run_jobs, write_csv


def run_study(study: Study, workers: int | None, run_dir: Path | None, progress: bool, quiet: bool) -> dict[str, Any]:
    """Run a sweep, print its table (unless `quiet`) and keep rows and pictures in `run_dir`; returns plain values."""
    jobs = study.jobs()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("simulating", total=len(jobs))
        rows = run_jobs(jobs, workers, lambda done: bar.update(task, completed=done))
    points = points_of(rows)
    lines = compare(points, study.is_the_papers)
    if not quiet:
        print_sweep(study, points, lines)
    if run_dir is not None:
        from fault_tolerance.simulation.plots import plot_study

        run_dir.mkdir(parents=True, exist_ok=True)
        write_csv(run_dir / "rows.csv", rows)
        summary = as_json(study, points, lines)
        (run_dir / "summary.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        plot_study(run_dir, study, points)
        if not quiet:
            _console().print(f"rows, summary and pictures: {run_dir}", highlight=False)
    return as_json(study, points, lines)


def print_result(case: Case, result: Result) -> None:
    """Summary of one run."""
    console = _console()
    name = case.method.backend if case.method.backend != "spare" else f"spare ({case.method.granularity})"
    table = Table(title=f"{case.cluster.name}: N = {case.groups}, {name}, r = {case.redundancy}, seed {case.seed}")
    table.add_column("")
    table.add_column("", justify="right")
    if result.time_to_train_ratio is not None:
        table.add_row("time to train / failure-free time", f"{result.time_to_train_ratio:.3f}")
    table.add_row("wall-clock", f"{result.wall_seconds / 86400:.2f} days")
    table.add_row("availability", f"{100 * result.availability:.2f} %")
    table.add_row("productive fraction", f"{100 * result.productive_fraction:.2f} %")
    table.add_row("stacks per step (compute overhead)", f"{result.mean_stacks:.3f}")
    table.add_row("failures (masked)", f"{result.failures} ({result.masked_failures})")
    table.add_row("global restarts", f"{result.global_restarts}")
    table.add_row("lost steps", f"{result.lost_steps}")
    if result.joins:
        table.add_row("repaired groups that came back", f"{result.joins}")
    for cause in CAUSES:
        table.add_row(f"  {cause}", f"{100 * result.seconds_by_cause[cause] / result.wall_seconds:.2f} % of the time")
    console.print(table)
    if result.status != "done":
        console.print(result.reason, style="bold red", highlight=False)


def print_sweep(study: Study, points: list[Point], lines: list[Comparison]) -> None:
    """Best redundancy of each method at each size, beside the paper's where it has one."""
    console = _console()
    with_paper = any(line.published for line in lines)
    table = Table(
        title=f"{study.cluster.name}: best redundancy of each method, {len(study.seeds)} seeds",
        caption="TTT/T_0: time to train over failure-free time, ± half of the 95 % confidence interval. Availability: "
        "down from the failure on; in its deviation from the paper: from the synchronisation that sees it.",
    )
    for heading in ("N", "method", "r", "TTT/T_0", "availability\n[%]", "productive\n[%]", "stacks\nper step"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    if with_paper:
        for heading in (
            "paper\nr",
            "paper\nTTT/T_0",
            "deviation\n[%]",
            "paper\navail.",
            "deviation\n(points)",
            "at the\npaper's r",
        ):
            table.add_column(heading, justify="right")
    previous = None
    for line in lines:
        if previous is not None and line.groups != previous:
            table.add_section()
        previous = line.groups
        cells = [f"{line.groups}", METHODS[line.method].title]
        if line.best is None:
            reason = next(p.reason for p in points if (p.method, p.groups) == (line.method, line.groups))
            cells += ["", reason.split(":")[0], "", "", ""]
        else:
            best = line.best
            cells += [f"{best.redundancy}", _mean(best.ratio, 3), _mean(best.availability, 2, 100)]
            cells += [_mean(best.productive, 2, 100), _mean(best.stacks, 3)]
        if with_paper:
            cells += _paper_cells(line)
        table.add_row(*cells)
    console.print(table)
    for crossing in crossovers(points) if study.kind == "scaling" else []:
        gpus = crossing.groups * study.gpus_per_group
        console.print(
            f"from about {gpus:,.0f} GPUs ({crossing.groups:.0f} groups) on: "
            f"{METHODS[crossing.better].title} needs less time than {METHODS[crossing.worse].title}",
            highlight=False,
        )


def as_json(study: Study, points: list[Point], lines: list[Comparison]) -> dict[str, Any]:
    """The sweep as plain values; what is unknown is null."""
    best = {(point.groups, point.method) for point in points}
    return {
        "cluster": study.cluster.name,
        "kind": study.kind,
        "seeds": list(study.seeds),
        "points": [
            {
                "method": point.method,
                "groups": point.groups,
                "redundancy": point.redundancy,
                "best": point == best_of(points, point.method, point.groups),
                "time_to_train_ratio": _number(point.ratio.value),
                "time_to_train_ratio_half_width": _number(point.ratio.half_width),
                "availability": _number(point.availability.value),
                "availability_from_notice": _number(point.from_notice.value),
                "productive_fraction": _number(point.productive.value),
                "compute_overhead": _number(point.stacks.value),
                "seconds_by_cause": point.seconds_by_cause,
                "given_up": point.given_up,
            }
            for point in points
        ],
        "paper": [
            {
                "method": line.method,
                "groups": line.groups,
                "redundancy": line.best.redundancy if line.best else None,
                "paper_redundancy": line.published.redundancy,
                "paper_time_to_train_ratio": line.published.ratio,
                "time_to_train_ratio_deviation": line.ratio_deviation,
                "paper_availability": line.published.availability,
                "availability_deviation": line.availability_deviation,
            }
            for line in lines
            if line.published and (line.groups, line.method) in best
        ],
        "crossovers": [vars(crossing) for crossing in crossovers(points)] if study.kind == "scaling" else [],
    }


def _paper_cells(line: Comparison) -> list[str]:
    if line.published is None or line.best is None:
        return ["", "", "", "", "", ""]
    assert line.ratio_deviation is not None and line.availability_deviation is not None
    return [
        f"{line.published.redundancy}",
        f"{line.published.ratio:.2f}",
        f"{100 * line.ratio_deviation:+.1f}",
        f"{100 * line.published.availability:.1f}",
        f"{100 * line.availability_deviation:+.1f}",
        f"{line.at_paper.ratio.value:.3f}" if line.at_paper else "",
    ]


def _mean(mean: Mean, digits: int, scale: float = 1.0) -> str:
    spread = "" if math.isnan(mean.half_width) else f" ± {scale * mean.half_width:.{digits}f}"
    return f"{scale * mean.value:.{digits}f}{spread}"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=170)
