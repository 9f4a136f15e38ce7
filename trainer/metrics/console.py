"""What a person sees: a progress bar on a terminal, plain lines elsewhere, one line per failure, a summary table."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from trainer.config import EmulateConfig

PLAIN_SECONDS = 5.0
"""Shortest time between plain lines of progress."""


class Console:
    """Prints to one stream (stdout), so that lines and the bar never mix.

    Args:
        steps: steps of the run.
        groups: groups of the run.
        progress: show progress and the table; failures and warnings are always shown.
    """

    def __init__(self, steps: int, groups: int, progress: bool, rich: RichConsole | None = None) -> None:
        self._rich = rich or RichConsole(highlight=False)
        self._steps = steps
        self._groups = groups
        self._shown = progress
        self._next_plain = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def start(self) -> None:
        """Show the bar, on a terminal."""
        if self._shown and self._rich.is_terminal:
            self._bar = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TimeRemainingColumn(),
                TextColumn("{task.fields[values]}", markup=False),
                console=self._rich,
            )
            self._task = self._bar.add_task("", total=self._steps, values="starting")
            self._bar.start()

    def line(self, text: str) -> None:
        """One or more lines, above the bar."""
        with contextlib.suppress(OSError):  # a closed terminal or pipe does not end training
            self._rich.print(text, markup=False, highlight=False, soft_wrap=True)

    def warning(self, text: str) -> None:
        """One line that stands out."""
        self.line(f"warning: {text}")

    def step(self, step: int, record: dict[str, Any]) -> None:
        """Progress after `step` (from 0) was committed."""
        if not self._shown:
            return
        values = progress_values(record, self._groups)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step + 1, values=values)
        elif time.monotonic() >= self._next_plain or step + 1 == self._steps:
            self._next_plain = time.monotonic() + PLAIN_SECONDS
            self.line(f"step {step + 1:>{len(str(self._steps))}}/{self._steps}  {values}")

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()
            self._bar = None

    def summary(self, summary: dict[str, Any], notes: dict[str, str]) -> None:
        """The table at the end.

        Args:
            notes: further rows (name to text), such as the run's folder.
        """
        self.stop()
        if not self._shown:
            return
        table = Table(title="summary", show_header=False, title_justify="left", min_width=40)
        table.add_column()
        table.add_column(justify="right", overflow="fold")
        for name, value in summary.items():
            table.add_row(name.replace("_", " "), _summary_value(name, value))
        for name, text in notes.items():
            table.add_row(name, text)
        with contextlib.suppress(OSError):
            self._rich.print(table)


def progress_values(record: dict[str, Any], groups: int) -> str:
    """The numbers behind the bar: loss, speed, MFU, memory, live groups, availability, S; unknown ones are left out."""
    parts = []
    if record.get("loss") is not None:
        parts.append(f"loss {record['loss']:.4f}" + (" (skipped)" if record.get("skipped") else ""))
    if record.get("tokens_per_second") is not None:
        parts.append(f"{quantity(record['tokens_per_second'])} tokens/s")
    if record.get("mfu") is not None:
        parts.append(f"MFU {100 * record['mfu']:.0f}%")
    if record.get("memory_bytes"):
        parts.append(f"{quantity(record['memory_bytes'])}B")
    if record.get("live_groups") is not None:
        parts.append(f"groups {record['live_groups']}/{groups}")
    parts.append(f"availability {100 * record['availability']:.1f}%")
    if record.get("stacks") is not None:
        parts.append(f"S {record['stacks']:.3g}")
    if record.get("emulated") is not None:
        parts.append("emulated")
    return "  ".join(parts)


def failure_line(failures: list[dict[str, Any]]) -> str:
    """ "group 3 lost in reduce, step 41 (SIGKILL)" for the failures that were handled together."""
    texts = []
    for event in failures:
        names = ", ".join(map(str, event.get("groups", ())))
        noun = "group" if len(event.get("groups", ())) == 1 else "groups"
        text = f"{noun} {names} lost"
        if event.get("phase"):
            text += f" in {event['phase']}"
        if event.get("step") is not None:
            text += f", step {event['step']}"
        if event.get("cause"):
            text += f" ({event['cause']})"
        texts.append(text)
    return "; ".join(texts)


def replan_line(failures: list[dict[str, Any]], event: dict[str, Any]) -> str:
    """The failures and how the step went on without them."""
    seconds = event.get("seconds") or {}
    parts = []
    if seconds.get("agree") is not None:
        parts.append(f"{seconds['agree']:.2f} s to agree")
    if event.get("moves") is not None:
        parts.append(f"{event['moves']} moves")
    if event.get("stacks_before") is not None and event.get("stacks_after") is not None:
        parts.append(f"S {event['stacks_before']:.3g} -> {event['stacks_after']:.3g}")
    if seconds.get("patch") is not None:
        parts.append(f"patch {seconds['patch']:.2f} s")
    if seconds.get("total") is not None:
        parts.append(f"{seconds['total']:.2f} s in all")
    return f"{failure_line(failures) or 'membership changed'}: {', '.join(parts) or 'goes on'}"


def restart_line(event: dict[str, Any]) -> str:
    """Where training resumes and what it cost."""
    where = f"from the checkpoint of step {event['to_step']}" if event.get("to_step") else "from the start"
    lost = event.get("lost_steps") or 0
    text = f"all groups restarted {where}: {lost} step{'' if lost == 1 else 's'} lost"
    if isinstance(event.get("seconds"), int | float):
        text += f", {event['seconds']:.1f} s"
    return text


def emulation_line(settings: EmulateConfig) -> str:
    """What is padded to which time; such a run tells nothing of this machine's speed."""
    times = {
        "a unit": settings.unit_seconds,
        "a reduction": settings.reduce_seconds,
        "a restart": settings.restart_seconds,
    }
    padded = ", ".join(f"{name} {seconds:g} s" for name, seconds in times.items() if seconds > 0)
    return f"emulated accelerators: {padded}; times and speeds are not those of this machine"


def late_line(part: str, seconds: float, step: int | None) -> str:
    """A real computation took longer than the time that it is padded to."""
    option = {"compute": "unit_seconds", "reduce": "reduce_seconds", "restart": "restart_seconds"}[part]
    return (
        f"emulated {part} of step {step} was {seconds:.2f} s late: the real one takes longer than emulate.{option}; "
        "set more, or a smaller model (told once; metrics.jsonl and events.jsonl have every one)"
    )


def quantity(number: float) -> str:
    """ "8.2k", "1.3G": three digits and a factor of 1000."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {letter}" if letter != "k" else f"{number / factor:.3g}k"
    return f"{number:.3g}"


def _summary_value(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("availability", "productive_fraction"):
        return f"{100 * value:.1f}%"
    if name == "weights_sha256":
        return f"{value[:16]}..."
    if isinstance(value, float):
        return f"{value:,.4f}" if abs(value) < 100 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
