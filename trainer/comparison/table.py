"""The comparison's table: live and simulated side by side, for a terminal and as plain values."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from trainer.comparison.run import Outcome, failure_free_seconds, row_values
from trainer.config import Config

COLUMNS: tuple[tuple[str, str, int, float], ...] = (
    ("time_to_train_ratio", "TTT / T_0", 3, 1.0),
    ("availability", "availability\n[%]", 1, 100.0),
    ("productive_fraction", "productive\n[%]", 1, 100.0),
    ("stacks_per_step", "stacks\nper step", 3, 1.0),
    ("failures", "failures", 0, 1.0),
    ("masked_failures", "masked", 0, 1.0),
    ("global_restarts", "restarts", 0, 1.0),
    ("lost_steps", "lost\nsteps", 0, 1.0),
    ("stall_per_failure", "stall per\nfailure [s]", 2, 1.0),
)
"""Quantities that are live and simulated: (key, heading, digits, factor)."""

LAST_HEADINGS = (
    "simulated\n- live [%]",
    "of all\nreplays [%]",
    "chance\n± [%]",
    "replays\nalike",
    "from trace\nalone [%]",
    "final loss",
    "weights",
)


def summarise(outcomes: list[Outcome], base: Config) -> dict[str, Any]:
    """The whole comparison as plain values.

    Raises:
        ValueError: no row has been finished.
    """
    if not outcomes:
        raise ValueError("no row of the comparison has been finished")
    failure_free = failure_free_seconds(outcomes)
    hashes = Counter(outcome.history.summary.get("weights_sha256") for outcome in outcomes)
    reference = hashes.most_common(1)[0][0]
    rows = [row_values(outcome, failure_free, reference) for outcome in outcomes]
    return {
        "groups": base.parallel.groups,
        "micro_batches": base.parallel.micro_batches,
        "steps": base.train.steps,
        "failure_free_seconds": failure_free,
        "emulated": base.emulate.is_on,
        "emulate": {name: getattr(base.emulate, name) for name in base.emulate.__dataclass_fields__},
        "exact": base.fault_tolerance.exact,
        "mtbf_seconds": base.failures.mtbf_seconds,
        "checkpoint_every_steps": base.checkpoint.every_steps,
        "worst_time_to_train_deviation": max((abs(row["time_to_train_deviation"]) for row in rows), default=0.0),
        "worst_stacks_deviation": max((abs(row["stacks_deviation"]) for row in rows), default=0.0),
        "best": min(rows, key=lambda row: row["live"]["time_to_train_ratio"])["title"],
        "rows": rows,
    }


def print_table(summary: dict[str, Any]) -> None:
    """Shows the table; each cell is live / simulated."""
    console = Console()
    console = console if console.is_terminal else Console(width=190)
    table = Table(title=heading(summary), caption=caption(summary), title_justify="left", caption_justify="left")
    table.add_column("live / simulated")
    for _, name, _, _ in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for name in LAST_HEADINGS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary["rows"]:
        table.add_row(*cells(row))
    console.print(table)


def cells(row: dict[str, Any]) -> list[str]:
    """The texts of one row."""
    texts = [row["title"]]
    for key, _, digits, factor in COLUMNS:
        live, simulated = (number(row[side][key], digits, factor) for side in ("live", "simulated"))
        texts.append(f"{live} / {simulated}")
    texts.append(f"{100 * row['time_to_train_deviation']:+.1f}")
    texts.append(f"{100 * row['time_to_train_deviation_of_all']:+.1f}")
    texts.append(f"{100 * row['time_to_train_spread']:.1f}")
    texts.append(f"{row['replays_alike']}/{row['replays']}")
    texts.append(f"{100 * row['predicted_time_to_train_deviation']:+.1f}")
    texts.append(number(row["final_loss"], 4))
    texts.append({True: "equal", False: "differ", None: "-"}[row["weights_equal"]])
    return texts


def heading(summary: dict[str, Any]) -> str:
    """What was compared."""
    emulated = " on emulated accelerators" if summary["emulated"] else ""
    return (
        f"{summary['groups']} groups x {summary['micro_batches']} micro-batches, {summary['steps']} steps{emulated}; "
        f"T_0 = {summary['failure_free_seconds']:.1f} s"
    )


def caption(summary: dict[str, Any]) -> str:
    """How to read it."""
    exact = "" if summary["exact"] else "; weights differ by rounding unless fault_tolerance.exact=true"
    return (
        "TTT / T_0: time to train over failure-free time at one stack per step. stall: patch, recovery, redone work "
        "and downtime per failure. simulated: the deaths that struck the live row, each up to half a step earlier or "
        "later, with durations fitted to that very row; the mean of the replays alike, which had as many failures and "
        "restarts (of all, where none had). chance: standard deviation of all replays. "
        f"from trace alone: the mean under the whole trace{exact}"
    )


def number(value: float | None, digits: int, factor: float = 1.0) -> str:
    """A number for people; a dash for none."""
    return "-" if value is None else f"{factor * value:.{digits}f}"
