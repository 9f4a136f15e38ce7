"""Pictures of one run (PNG): loss, availability, stacks, groups over time, and where the time went.

Colours of causes and methods are those of the simulator's pictures, so that both can be laid side by side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fault_tolerance.simulation.ledger import CAUSES
from fault_tolerance.simulation.plots import CAUSE_COLOURS
from trainer.report.history import History

DOTS = 110
"""Dots per inch."""
DOWN = CAUSE_COLOURS["down"]
STATE_COLOURS = {"alive": "#a8d5a2", "patching": CAUSE_COLOURS["patch"], "dead": "#d9d9d9", "down": DOWN}
MEANING = {
    "compute": "one stack per step",
    "redundant": "further stacks per step",
    "reduce": "all-reduce, commit, optimizer, waiting",
    "patch": "work of dead groups, done again",
    "shrink": "agreement, replan, new communicator",
    "save": "checkpoints",
    "rework": "steps that a restart undid",
    "down": "global restarts",
}
"""What each cause holds, for readers."""


def draw(history: History, folder: Path) -> dict[str, Path]:
    """All pictures of a run, by their titles."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for title, name, make in (
        ("Loss, with failures and restarts", "loss", _loss),
        ("Groups over time", "groups", _groups),
        ("Stacks per step over time", "stacks", _stacks),
        ("Availability over time", "availability", _availability),
        ("Time by cause", "time_by_cause", _time_by_cause),
    ):
        paths[title] = folder / f"{name}.png"
        make(history).savefig(paths[title], dpi=DOTS)
    return paths


def _over_time(history: History, label: str) -> tuple[Figure, Any]:
    """An empty picture over the run's time, with its downtimes in red."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, history.wall_seconds)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    for begin, end in history.downtimes:
        axes.axvspan(begin, end, color=DOWN, alpha=0.25, linewidth=0)
    return figure, axes


def _mark_failures(history: History, axes: Any) -> None:
    """A triangle at the lower edge for each failure."""
    times = [event["time"] for event in history.of("failure")]
    axes.plot(times, [0.0] * len(times), "^", color="black", markersize=5, clip_on=False, transform=_edge(axes))


def _edge(axes: Any) -> Any:
    """x in data, y in shares of the axes."""
    return axes.get_xaxis_transform()


def _loss(history: History) -> Figure:
    figure, axes = _over_time(history, "loss per token")
    times, losses = _with_gaps(history, "loss")
    axes.plot(times, losses, color="#1f77b4", linewidth=1.2)
    points = [(step["time"], step["validation_loss"]) for step in history.steps if step.get("validation_loss")]
    if points:
        axes.plot(*zip(*points, strict=True), "o", color="#ff7f0e", markersize=4, label="validation")
        axes.legend(frameon=False)
    _mark_failures(history, axes)
    axes.set_title(f"{len(history.of('failure'))} failures (triangles), {len(history.downtimes)} restarts (red)")
    return figure


def _with_gaps(history: History, key: str) -> tuple[list[float], list[float]]:
    """A quantity of each commit over time; lines break where training was down."""
    times: list[float] = []
    values: list[float] = []
    for span in history.spans:
        if span.first and times:
            times.append(span.begin)
            values.append(np.nan)
        times.append(span.end)
        values.append(float(np.nan if span.record.get(key) is None else span.record[key]))
    return times, values


def _availability(history: History) -> Figure:
    figure, axes = _over_time(history, "availability so far [%]")
    times = np.linspace(0, history.wall_seconds, 400)[1:]
    axes.plot(times, 100 * availability(history, times), color="#1f77b4")
    axes.set_ylim(0, 102)
    _mark_failures(history, axes)
    axes.set_title(f"{100 * history.accounting.availability(history.wall_seconds):.1f} % over the run")
    return figure


def availability(history: History, times: np.ndarray) -> np.ndarray:
    """Share of the time until each of `times` (seconds above 0) in which training was up."""
    down = sum(
        (np.clip(times, begin, end) - begin for begin, end in history.downtimes),
        start=np.zeros_like(times, dtype=float),
    )
    return 1.0 - down / times


def _stacks(history: History) -> Figure:
    figure, axes = _over_time(history, "stacks per step")
    times, stacks = _with_gaps(history, "stacks")
    axes.step(times, stacks, where="pre", color=CAUSE_COLOURS["patch"], linewidth=1.2)
    axes.set_ylim(bottom=0)
    _mark_failures(history, axes)
    axes.set_title(f"mean {history.accounting.compute_overhead or 0:.2f}, patches included (1: no redundant work)")
    return figure


def _time_by_cause(history: History) -> Figure:
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    axes = figure.subplots()
    left = 0.0
    for cause in CAUSES:
        seconds = history.seconds_by_cause[cause]
        axes.barh(0, seconds, left=left, color=CAUSE_COLOURS[cause], label=f"{cause}: {MEANING[cause]}")
        share = seconds / history.wall_seconds
        if share > 0.04:
            axes.text(left + seconds / 2, 0, f"{100 * share:.0f} %", ha="center", va="center", fontsize=8)
        left += seconds
    axes.set_xlim(0, history.wall_seconds)
    axes.set_yticks([])
    axes.set_xlabel("seconds")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _groups(history: History) -> Figure:
    count = history.config.parallel.groups
    figure = Figure(figsize=(10, max(2.2, min(8.0, 0.8 + 0.22 * count))), layout="constrained")
    axes = figure.subplots()
    for group, states in enumerate(group_states(history)):
        for state, begin, end in states:
            axes.barh(group, end - begin, left=begin, height=0.85, color=STATE_COLOURS[state], linewidth=0)
    for event in history.of("failure"):
        axes.plot([event["time"]] * len(event["groups"]), event["groups"], "x", color="black", markersize=4)
    axes.set_xlim(0, history.wall_seconds)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_ylabel("group")
    axes.set_xlabel("seconds of training")
    handles = [Patch(color=colour, label=state) for state, colour in STATE_COLOURS.items()]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    return figure


def group_states(history: History) -> list[list[tuple[str, float, float]]]:
    """For each group (state, begin, end): alive, patching (a step is completed without the dead), dead, or down."""
    states: list[list[tuple[str, float, float]]] = [[] for _ in range(history.config.parallel.groups)]
    deaths: list[float | None] = [None] * len(states)
    since = 0.0
    for end, resume in [*history.downtimes, (history.wall_seconds, history.wall_seconds)]:
        for event in history.of("failure"):
            if since <= event["time"] < resume:
                for group in event["groups"]:
                    deaths[group] = event["time"] if deaths[group] is None else deaths[group]
        for group, died in enumerate(deaths):
            until = end if died is None else min(died, end)
            states[group].append(("alive", since, until))
            if until < end:
                states[group].append(("dead", until, end))
            if resume > end:
                states[group].append(("down", end, resume))
        for event in history.of("replan"):
            begin = max(event["time"] - event["seconds"]["total"], since)
            if since <= event["time"] <= end:
                for group, died in enumerate(deaths):
                    if died is None or died > event["time"]:
                        states[group].append(("patching", begin, event["time"]))
        deaths, since = [None] * len(states), resume
    return states
