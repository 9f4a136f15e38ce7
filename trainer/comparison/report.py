"""The comparison's page and pictures: methods side by side, live and simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fault_tolerance.simulation.ledger import CAUSES
from fault_tolerance.simulation.plots import CAUSE_COLOURS, METHOD_COLOURS
from trainer.comparison.run import Outcome
from trainer.comparison.table import COLUMNS, LAST_HEADINGS, caption, cells, heading
from trainer.metrics.console import emulation_line
from trainer.report import page
from trainer.report.history import History
from trainer.report.pictures import DOTS, MEANING, availability, draw

LINES = ("-", "--", ":", "-.")
"""Line styles of the redundancies of one method."""


def write_report(folder: Path, outcomes: list[Outcome], summary: dict[str, Any]) -> Path:
    """Draws the pictures of all rows, and writes `folder/report.html`; returns its path."""
    styles = _styles(outcomes)
    pictures = {
        "Time to train, live and simulated": _ratios(summary),
        "Time by cause": _causes(summary),
        "Loss over time": _over_time(outcomes, styles, "loss per token", _loss),
        "Availability over time": _over_time(outcomes, styles, "availability so far [%]", _availability),
        "Stacks per step over time": _over_time(outcomes, styles, "stacks per step (mean of 5 steps)", _stacks),
    }
    parts = [page.paragraph(heading(summary))]
    if summary["emulated"]:
        parts.append(page.paragraph(emulation_line(outcomes[0].config.emulate), "emulated"))
    parts += [page.heading("Live / simulated"), _table(summary), page.paragraph(caption(summary))]
    parts.append(page.paragraph(verdict(summary)))
    for title, figure in pictures.items():
        path = folder / (title.lower().replace(",", "").replace(" ", "_") + ".png")
        figure.savefig(path, dpi=DOTS)
        parts.append(page.picture(path, title))
    parts.append(page.heading("Groups of each row over time"))
    for outcome in outcomes:
        own = draw(outcome.history, folder / "rows" / outcome.row.name / "report")
        parts.append(page.picture(own["Groups over time"], outcome.row.title))
    parts.append(page.folded("failure trace", (folder / "trace.jsonl").read_text(encoding="utf-8")[:20_000]))
    path = folder / "report.html"
    path.write_text(page.page("Fault-tolerance methods compared", parts), encoding="utf-8")
    return path


def verdict(summary: dict[str, Any]) -> str:
    """What the figures say, in a few words."""
    rows = summary["rows"]
    equal = [row["weights_equal"] for row in rows]
    weights = "all rows ended with the same weights" if all(equal) else "the rows' weights differ"
    return (
        f"Least time to train: {summary['best']}. The simulator is within "
        f"{100 * summary['worst_time_to_train_deviation']:.1f} % of the live time to train and "
        f"{100 * summary['worst_stacks_deviation']:.1f} % of the live stacks per step in every row; {weights}."
    )


def _table(summary: dict[str, Any]) -> str:
    rows = summary["rows"]
    best = next(number for number, row in enumerate(rows) if row["title"] == summary["best"])
    headings = ["method", *(name for _, name, _, _ in COLUMNS), *LAST_HEADINGS]
    return page.table(headings, [cells(row) for row in rows], best)


def _styles(outcomes: list[Outcome]) -> dict[str, dict[str, Any]]:
    """A method has its colour, its redundancies have line styles."""
    styles, seen = {}, dict.fromkeys(METHOD_COLOURS, 0)
    for outcome in outcomes:
        method = outcome.row.method
        line = LINES[seen[method] % len(LINES)]
        styles[outcome.row.name] = {"color": METHOD_COLOURS[method], "linestyle": line, "label": outcome.row.title}
        seen[method] += 1
    return styles


def _ratios(summary: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(10, 0.9 + 0.55 * len(summary["rows"])), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(summary["rows"]):
        colour = METHOD_COLOURS[row["method"]]
        for offset, side, alpha in ((-0.2, "live", 1.0), (0.2, "simulated", 0.45)):
            ratio = row[side]["time_to_train_ratio"]
            if ratio is not None:
                axes.barh(place + offset, ratio, height=0.38, color=colour, alpha=alpha)
                axes.text(ratio, place + offset, f" {ratio:.2f}", va="center", fontsize=8)
    _name_rows(axes, [row["title"] for row in summary["rows"]])
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("time to train / failure-free time (dark: live, light: simulated)")
    axes.margins(x=0.08)
    return figure


def _causes(summary: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(10, 1.4 + 0.55 * len(summary["rows"])), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(summary["rows"]):
        for offset, side in ((-0.2, "live"), (0.2, "simulated")):
            left = 0.0
            for cause in CAUSES:
                width = row[side]["seconds_by_cause"][cause] / summary["failure_free_seconds"]
                axes.barh(place + offset, width, left=left, height=0.38, color=CAUSE_COLOURS[cause])
                left += width
    _name_rows(axes, [row["title"] for row in summary["rows"]])
    axes.set_xlabel("time / failure-free time (upper bar: live, lower bar: simulated)")
    handles = [Patch(color=CAUSE_COLOURS[cause], label=f"{cause}: {MEANING[cause]}") for cause in CAUSES]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _name_rows(axes: Any, titles: list[str]) -> None:
    axes.set_yticks(range(len(titles)), titles, fontsize=9)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")


Series = Callable[[History], tuple[Any, Any]]


def _over_time(outcomes: list[Outcome], styles: dict[str, dict[str, Any]], label: str, series: Series) -> Figure:
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.subplots()
    for outcome in outcomes:
        axes.plot(*series(outcome.history), linewidth=1.4, **styles[outcome.row.name])
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _loss(history: History) -> tuple[list[float], list[float]]:
    """The loss of each step when it was last committed: redone steps do not run back."""
    last = {span.record["step"]: span for span in history.spans}
    return [span.end for span in last.values()], [span.record["loss"] for span in last.values()]


def _availability(history: History) -> tuple[np.ndarray, np.ndarray]:
    times = np.linspace(0, history.wall_seconds, 400)[1:]
    return times, 100 * availability(history, times)


def _stacks(history: History) -> tuple[list[float], list[float]]:
    ends = [span.end for span in history.spans]
    stacks = [span.stacks for span in history.spans]
    return ends, [float(np.mean(stacks[max(0, index - 4) : index + 1])) for index in range(len(stacks))]
