"""Pictures of simulated runs and sweeps (PNG). Colours and order of methods and causes are the same in all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fault_tolerance.simulation.cases import METHODS, Case
from fault_tolerance.simulation.ledger import CAUSES
from fault_tolerance.simulation.paper import PAPER, Published
from fault_tolerance.simulation.result import Result
from fault_tolerance.simulation.study import Study, crossovers
from fault_tolerance.simulation.sweep import Point, best_of
from fault_tolerance.theory.planner import plan_rows

matplotlib.use("Agg")

METHOD_COLOURS = {
    "ckpt": "#7f7f7f",
    "rep": "#d62728",
    "rep_partition": "#ff9896",
    "spare": "#1f77b4",
    "spare_duplicates": "#9ecae1",
    "spare_micro_batch": "#2ca02c",
}
CAUSE_COLOURS = {
    "compute": "#2ca02c",
    "redundant": "#98df8a",
    "reduce": "#1f77b4",
    "patch": "#9467bd",
    "shrink": "#e377c2",
    "save": "#bcbd22",
    "rework": "#ff7f0e",
    "down": "#d62728",
}
SHORT = {
    "ckpt": "CKPT",
    "rep": "Rep",
    "rep_partition": "Rep\nteams",
    "spare": "SPARe",
    "spare_duplicates": "SPARe\ndupl.",
    "spare_micro_batch": "SPARe\nmicro",
}
THEORY = {("spare", False): "spare", ("spare", True): "spare_duplicates"}
"""(planner's method, duplicates) -> our name, where the two differ."""


def plot_study(run_dir: Path, study: Study, points: Sequence[Point]) -> list[Path]:
    """All pictures of a sweep; returns their paths."""
    paths = [run_dir / "time_by_cause.png"]
    _time_by_cause(paths[0], points)
    if study.kind == "scaling":
        paths.append(run_dir / "scaling.png")
        _scaling(paths[-1], study, points)
        return paths
    published = PAPER if study.is_the_papers else {}
    theory = {groups: _theory(study, groups) for groups in dict.fromkeys(point.groups for point in points)}
    for name, quantity, label in (
        ("time_to_train", "ratio", "time to train / failure-free time"),
        ("availability", "availability", "availability"),
        ("stacks", "stacks", "stacks per step, patches included"),
    ):
        paths.append(run_dir / f"{name}.png")
        _over_redundancy(paths[-1], points, quantity, label, theory, published)
    paths.append(run_dir / "timeline.png")
    _best_timeline(paths[-1], study, points)
    return paths


def plot_run(path: Path, case: Case, result: Result) -> None:
    """Timeline of one run: live groups and stacks over time, with restarts; the result must have its events."""
    times, live, stacks = _history(case, result)
    figure = Figure(figsize=(11, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    hours = np.asarray(times) / 3600
    top.step(hours, live, where="post", color="#1f77b4", linewidth=1)
    top.set_ylabel("live groups")
    top.set_ylim(0, case.groups * 1.05)
    bottom.step(hours, stacks, where="post", color="#9467bd", linewidth=1)
    bottom.set_ylabel("stacks per step (S)")
    bottom.set_ylim(bottom=0)
    bottom.set_xlabel("hours since the start")
    restarts = [event for event in result.events if event["event"] == "restart"]
    down = [((event["time"] - event["seconds"]) / 3600, event["seconds"] / 3600) for event in restarts]
    saves = [event["time"] / 3600 for event in result.events if event["event"] == "checkpoint"]
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
        over_all_heights = axes.get_xaxis_transform()  # x in data, y in shares of the axes
        axes.broken_barh(down, (0, 1), color=CAUSE_COLOURS["down"], alpha=0.35, linewidth=0, transform=over_all_heights)
    bottom.plot(saves, [0.04] * len(saves), "|", color="black", markersize=6, transform=over_all_heights)
    top.set_title(
        f"{case.cluster.name}: N = {case.groups}, {case.method.title or case.method.backend}, r = {case.redundancy}; "
        f"{result.failures} failures, {result.global_restarts} global restarts (red), checkpoints (ticks)"
    )
    figure.savefig(path, dpi=130)


def _history(case: Case, result: Result) -> tuple[list[float], list[int], list[float]]:
    """Times of changes, live groups and planned stacks after each."""
    start = float(case.redundancy) if case.method.backend == "rep" else 1.0
    times, live, stacks = [0.0], [case.groups], [start]
    for event in result.events:
        if event["event"] == "failure":
            change = (live[-1] - len(event["groups"]), stacks[-1])
        elif event["event"] == "replan":
            change = (live[-1], event["stacks_after"])
        elif event["event"] == "join":
            change = (live[-1] + len(event["groups"]), event["stacks_after"])
        elif event["event"] == "restart":
            change = (case.groups, start)
        elif event["event"] == "end":
            change = (live[-1], stacks[-1])
        else:
            continue
        times.append(event["time"])
        live.append(change[0])
        stacks.append(change[1])
    return times, live, stacks


def _theory(study: Study, groups: int) -> dict[str, list[Any]]:
    """The planner's rows of the study's methods, by our names of them."""
    redundancies = [r for r in study.redundancies if 1 < r <= groups]
    kinds = dict.fromkeys((METHODS[name].placement, METHODS[name].duplicates) for name in study.methods)
    curves: dict[str, list[Any]] = {}
    for placement, duplicates in kinds:
        for row in plan_rows(study.cluster, groups, study.micro_batches, redundancies, placement, duplicates):
            name = THEORY.get((row.method, duplicates), row.method)
            if name == "rep" and placement == "partition":
                name = "rep_partition"
            rows = curves.setdefault(name, [])
            if all(row.redundancy != other.redundancy for other in rows):
                rows.append(row)
    return curves


def _over_redundancy(
    path: Path,
    points: Sequence[Point],
    quantity: str,
    label: str,
    theory: dict[int, dict[str, list[Any]]],
    papers: Mapping[tuple[str, int], Published],
) -> None:
    sizes = list(dict.fromkeys(point.groups for point in points))
    figure = Figure(figsize=(5 * len(sizes) + 1, 4.8), layout="constrained")
    for axes, groups in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        for method in dict.fromkeys(point.method for point in points):
            chosen = [p for p in points if p.method == method and p.groups == groups and p.redundancy > 1]
            if not chosen:
                continue
            redundancies = [point.redundancy for point in chosen]
            means = [getattr(point, quantity) for point in chosen]
            colour = METHOD_COLOURS[method]
            spreads = [0.0 if math.isnan(mean.half_width) else mean.half_width for mean in means]
            values = [mean.value for mean in means]
            axes.errorbar(redundancies, values, yerr=spreads, color=colour, marker="o", markersize=3.5, linewidth=1)
            rows = [row for row in theory[groups].get(method, []) if row.redundancy > 1]
            attribute = {"ratio": "time_to_train_ratio", "availability": "availability", "stacks": "s_bar"}[quantity]
            curve = [getattr(row, attribute) for row in rows]
            axes.plot([row.redundancy for row in rows], curve, color=colour, linestyle="--", linewidth=1, alpha=0.8)
            published = papers.get((method, groups))
            if published is not None and quantity != "stacks":
                value = published.ratio if quantity == "ratio" else published.availability
                axes.plot(published.redundancy, value, marker="*", color=colour, markersize=13, markeredgecolor="black")
        axes.set_title(f"N = {groups}")
        axes.set_xlabel("redundancy r")
        axes.grid(alpha=0.3)
        if quantity == "ratio":
            axes.set_ylim(1, 8)
        if quantity == "stacks":
            axes.set_ylim(1, 4)
    figure.axes[0].set_ylabel(label)
    methods = [m for m in dict.fromkeys(point.method for point in points) if m != "ckpt"]
    handles = [
        Line2D([], [], color=METHOD_COLOURS[m], marker="o", markersize=4, label=METHODS[m].title) for m in methods
    ]
    handles.append(Line2D([], [], color="black", linestyle="--", label="planner's estimate"))
    if quantity != "stacks" and any((point.method, point.groups) in papers for point in points):
        star = Line2D(
            [], [], color="white", marker="*", markersize=12, markeredgecolor="black", label="the paper's best"
        )
        handles.append(star)
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)


def _time_by_cause(path: Path, points: Sequence[Point]) -> None:
    """Stacked bars at the best redundancy, in units of the failure-free time; methods without progress have no bar."""
    sizes = list(dict.fromkeys(point.groups for point in points))
    figure = Figure(figsize=(max(8, 3.2 * len(sizes) + 2), 5), layout="constrained")
    axes = figure.subplots()
    ticks, labels, position = [], [], 0.0
    for groups in sizes:
        first = position
        for method in dict.fromkeys(point.method for point in points):
            best = best_of(points, method, groups)
            if best is None:
                continue
            bottom = 0.0
            total = sum(best.seconds_by_cause.values())
            for cause in CAUSES:
                height = best.seconds_by_cause[cause] / total * best.ratio.value
                axes.bar(position, height, bottom=bottom, color=CAUSE_COLOURS[cause], width=0.85)
                bottom += height
            axes.text(position, bottom + 0.05, f"{bottom:.2f}", ha="center", fontsize=7)
            ticks.append(position)
            labels.append(f"{SHORT[method]}\nr={best.redundancy}")
            position += 1
        middle = (first + position - 1) / 2
        axes.text(middle, 1.02, f"N = {groups}", ha="center", fontsize=10, transform=axes.get_xaxis_transform())
        position += 0.8
    axes.set_xticks(ticks, labels, fontsize=7)
    axes.set_ylabel("time / failure-free time")
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    handles = [Line2D([], [], color=CAUSE_COLOURS[c], linewidth=7, label=c) for c in CAUSES]
    figure.legend(handles=handles, loc="outside right center", frameon=False, reverse=True)
    figure.savefig(path, dpi=130)


def _scaling(path: Path, study: Study, points: Sequence[Point]) -> None:
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.subplots()
    sizes = list(dict.fromkeys(point.groups for point in points))
    for method in dict.fromkeys(point.method for point in points):
        bests = [best for size in sizes if (best := best_of(points, method, size)) is not None]
        gpus = [best.groups * study.gpus_per_group for best in bests]
        ratios = [best.ratio.value for best in bests]
        axes.plot(gpus, ratios, color=METHOD_COLOURS[method], marker="o", markersize=4, label=METHODS[method].title)
        for x, best in zip(gpus, bests, strict=True):
            if method != "ckpt":
                axes.annotate(
                    f"{best.redundancy}",
                    (x, best.ratio.value),
                    textcoords="offset points",
                    xytext=(0, 5),
                    fontsize=7,
                    ha="center",
                    color=METHOD_COLOURS[method],
                )
    for crossing in crossovers(points):
        if "ckpt" in (crossing.better, crossing.worse):
            axes.axvline(
                crossing.groups * study.gpus_per_group,
                color=METHOD_COLOURS[crossing.better],
                linestyle=":",
                linewidth=1,
            )
    axes.set_xscale("log")
    axes.set_ylim(0.9, 6)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("time to train / failure-free time at the best r")
    axes.set_title(f"{study.cluster.name}: numbers at the points: best r; dotted: a method overtakes CKPT-only")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def _best_timeline(path: Path, study: Study, points: Sequence[Point]) -> None:
    """One run of the method with the least time at the smallest size."""
    groups = points[0].groups
    bests = [best for name in study.methods if (best := best_of(points, name, groups)) is not None]
    if not bests:
        return
    best = min(bests, key=lambda point: point.ratio.value)
    jobs = study.jobs()
    case = next(
        case
        for name, case in jobs
        if (name, case.groups, case.redundancy) == (best.method, best.groups, best.redundancy)
    )
    plot_run(path, case, case.run(timeline=True))
