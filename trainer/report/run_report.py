"""The report of one run: PNGs and report.html in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.metrics.console import emulation_line
from trainer.report import page
from trainer.report.history import History
from trainer.report.pictures import draw

FAILURE_HEADINGS = ("time [s]", "group", "step", "phase", "cause", "answer", "seconds")


def write_report(folder: Path) -> Path:
    """Draws a run's pictures into `folder/report` and writes `folder/report.html`; returns the page's path.

    Raises:
        ValueError: no run folder, or nothing was trained in it.
    """
    history = History.read(folder)
    pictures = draw(history, folder / "report")
    config = history.config
    parts = [page.paragraph(_what(history))]
    if config.emulate.is_on:
        parts.append(page.paragraph(emulation_line(config.emulate), "emulated"))
    parts += [page.pairs(_figures(history)), page.heading("Over time")]
    parts += [page.picture(path, title) for title, path in pictures.items()]
    if rows := [_failure_row(history, event) for event in history.of("failure")]:
        parts += [page.heading("Failures"), page.table(FAILURE_HEADINGS, rows)]
    parts.append(page.folded("configuration", (folder / "config.yaml").read_text(encoding="utf-8")))
    path = folder / "report.html"
    path.write_text(page.page(f"Run {folder.resolve().name}", parts), encoding="utf-8")
    return path


def _what(history: History) -> str:
    config = history.config
    chosen, parallel = config.fault_tolerance, config.parallel
    method = chosen.backend
    if method != "ckpt":
        method += f" (r = {chosen.redundancy}, {chosen.placement} placement"
        method += f", {chosen.granularity} granularity)" if chosen.backend == "spare" else ")"
    return (
        f"Model {config.model.name}, {parallel.groups} groups of {parallel.ranks_per_group} ranks, "
        f"{parallel.micro_batches} micro-batches, fault tolerance: {method}. Times count from the start of training."
    )


def _figures(history: History) -> dict[str, str]:
    accounting, wall = history.accounting, history.wall_seconds
    stall = history.stall_per_failure
    overhead = accounting.compute_overhead
    values: dict[str, Any] = {
        "steps": f"{accounting.steps} of {history.config.train.steps}",
        "wall-clock": f"{wall:.1f} s",
        "availability": f"{100 * accounting.availability(wall):.1f} %",
        "productive fraction": f"{100 * accounting.productive_fraction(wall):.1f} %",
        "stacks per step": "-" if overhead is None else f"{overhead:.3f}",
        "failures (masked)": f"{accounting.failures} ({accounting.masked_failures})",
        "global restarts": f"{accounting.global_restarts}",
        "lost steps": f"{accounting.lost_steps}",
        "stall per failure": "-" if stall is None else f"{stall:.2f} s",
    }
    for key in ("final_loss", "validation_loss"):
        if history.summary.get(key) is not None:
            values[key.replace("_", " ")] = f"{history.summary[key]:.4f}"
    if history.summary.get("weights_sha256"):
        values["weights"] = f"{history.summary['weights_sha256'][:16]}..."
    return values


def _failure_row(history: History, event: dict[str, Any]) -> list[str]:
    """A failure and what came of it: the replan or restart that followed."""
    answers = [after for after in history.of("replan", "restart") if after["time"] >= event["time"]]
    answer = answers[0] if answers else None
    text, seconds = "the run went on", ""
    if answer is not None and answer["event"] == "replan":
        text = f"S {answer['stacks_before']:.3g} -> {answer['stacks_after']:.3g}, {answer['moves']} moves"
        seconds = f"{answer['seconds']['total']:.2f}"
    elif answer is not None:
        text, seconds = f"restart at step {answer['to_step']}", f"{answer['seconds']:.2f}"
    groups = ", ".join(map(str, event["groups"]))
    cause = str(event.get("cause") or "")
    return [
        f"{event['time']:.2f}",
        groups,
        str(event.get("step", "")),
        str(event.get("phase", "")),
        cause,
        text,
        seconds,
    ]
