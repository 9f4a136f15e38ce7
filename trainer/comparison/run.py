"""Runs a comparison: every row live under one failure trace, then the simulator on the same deaths.

What a row has come to lies in its folder; a comparison that was broken off goes on with the rows that are missing.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from fault_tolerance.failures import Failure, Trace, Weibull, read_trace, write_trace
from fault_tolerance.simulation.ledger import CAUSES
from fault_tolerance.simulation.result import Result
from fault_tolerance.simulation.timeline import write_events
from trainer import config as configuration
from trainer.comparison.durations import Durations, Struck, replays, struck
from trainer.comparison.rows import Row
from trainer.config import Config
from trainer.farm_client import FarmClient, RunFailed
from trainer.metrics.files import write_json
from trainer.report.history import History, stall_per_failure
from trainer.validation import validate

TRACE_ROW_FACTOR = 60.0
"""The trace reaches this many failure-free times far: further than any row that makes progress."""


@dataclass
class Outcome:
    """A row that was run: live and simulated."""

    row: Row
    config: Config
    history: History
    durations: Durations
    simulated: list[Result]
    """Replays of the deaths that struck the live run, each a little earlier or later."""
    predicted: list[Result]
    """Replays of the whole trace: here a death that falls into a restart is lost, and a wipe-out that comes to pass in
    one of the two worlds alone sets them seconds apart."""

    @property
    def alike(self) -> list[Result]:
        """Replays in which as many groups died and as many restarts came as in the live run; may be none.

        A replay that ends just before the live run's last restart, or where two deaths change places and one of the
        groups is dead afterwards, is another history.
        """
        live = self.history.accounting.failures, self.history.accounting.global_restarts
        return [one for one in self.simulated if (one.failures, one.global_restarts) == live]

    @property
    def compared(self) -> list[Result]:
        """The replays that are set beside the live run: those alike, or all where none is."""
        return self.alike or self.simulated


class Comparison:
    """One comparison in its folder.

    Args:
        base: options of every run; what a row sets is replaced.
        row_seconds: longest time of one row.
        tell: shows one line of progress.

    Raises:
        ValueError: an option does not fit, or the folder holds a comparison with other options.
    """

    def __init__(
        self, base: Config, rows: list[Row], folder: Path, row_seconds: float, tell: Callable[[str], None]
    ) -> None:
        self.base, self.rows, self.folder = base, rows, folder.absolute()
        self._row_seconds, self._tell = row_seconds, tell
        if len(set(rows)) < len(rows) or not rows:
            raise ValueError("comparison.rows: each row once, and at least one")
        if base.checkpoint.mtbf_seconds > 0:
            raise ValueError(
                f"checkpoint.mtbf_seconds={base.checkpoint.mtbf_seconds:g}: a comparison needs the same period for "
                "all rows; use checkpoint.every_steps or checkpoint.every_seconds"
            )
        if base.train.log_every != 1:
            raise ValueError(f"train.log_every={base.train.log_every}: a comparison measures every step; use 1")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._claim()
        self.trace = self.folder / "trace.jsonl"
        if not self.trace.exists():
            write_trace(self.trace, self._draw())
        self.failures = read_trace(self.trace)
        for row in rows:
            validate(self.config(row))

    def config(self, row: Row) -> Config:
        """Configuration of a row's live run."""
        return row.config(self.base, self.folder / "rows" / row.name, self.trace)

    def run(self) -> list[Outcome]:
        """Runs the rows that are missing, then simulates all of them. Rows that fail are told and left out."""
        with FarmClient() as farm:
            for number, row in enumerate(self.rows, start=1):
                self._run_row(farm, row, f"row {number}/{len(self.rows)}, {row.title}")
        return self.outcomes()

    def outcomes(self) -> list[Outcome]:
        """The finished rows, and their simulations with the durations measured in each."""
        done = [(row, History.read(self.folder / "rows" / row.name)) for row in self.rows if self._is_done(row)]
        measured = [Durations.measure(history) for _, history in done]
        outcomes = []
        for (row, history), durations in zip(done, measured, strict=True):
            config, filled = self.config(row), durations.filled(measured)
            step = statistics.median(span.seconds for span in history.spans)
            policy = partial(row.policy, config)
            simulated = replays(config, policy, filled, struck(history), Struck, step)
            predicted = replays(config, policy, filled, self.failures, Trace, step)
            outcome = Outcome(row, config, history, filled, simulated, predicted)
            median = sorted(outcome.compared, key=lambda result: result.wall_seconds)[len(outcome.compared) // 2]
            write_events(self.folder / "rows" / row.name / "simulated_events.jsonl", median.events)
            outcomes.append(outcome)
        return outcomes

    def _is_done(self, row: Row) -> bool:
        return (self.folder / "rows" / row.name / "done.json").exists()

    def _run_row(self, farm: FarmClient, row: Row, title: str) -> None:
        if self._is_done(row):
            self._tell(f"{title}: kept")
            return
        config = self.config(row)
        shutil.rmtree(config.run_dir, ignore_errors=True)
        self._tell(f"{title}: running")
        try:
            farm.run(config, self._row_seconds)
        except RunFailed as error:
            self._tell(f"{title}: {error}")
            return
        history = History.read(Path(config.run_dir))
        accounting = history.accounting
        write_json(Path(config.run_dir) / "done.json", {"wall_seconds": history.wall_seconds})
        self._tell(
            f"{title}: {history.wall_seconds:.0f} s, {accounting.failures} failures, "
            f"{accounting.global_restarts} global restarts"
        )

    def _claim(self) -> None:
        """The folder's comparison has these options, or none yet; rows may be added."""
        path = self.folder / "comparison.json"
        mine = configuration.to_dict(Config(**{entry.name: getattr(self.base, entry.name) for entry in fields(Config)}))
        for name in ("run_dir", "fault_tolerance", "logging"):
            mine.pop(name)
        mine["exact"] = self.base.fault_tolerance.exact
        mine = json.loads(json.dumps(mine))
        if path.exists():
            other = json.loads(path.read_text(encoding="utf-8"))
            changed = sorted(key for key in {*mine, *other} if mine.get(key) != other.get(key))
            if changed:
                raise ValueError(
                    f"run_dir={self.folder}: holds a comparison with another {', '.join(changed)}; "
                    "choose another run_dir, or the options it was begun with"
                )
        else:
            write_json(path, mine)

    def _draw(self) -> list[Failure]:
        """The trace: the user's, or one whose groups are replaced by new ones the moment they die.

        A live run or a simulation that has not replaced a group yet leaves out what would strike it.
        """
        failures, groups = self.base.failures, self.base.parallel.groups
        if failures.file is not None:
            return read_trace(failures.file)
        if failures.kind != "weibull":
            raise ValueError(
                f"failures.kind={failures.kind}: a comparison needs failures=weibull, or failures=trace failures.file=F"
            )
        return list(drawn_failures(groups, failures.mtbf_seconds, failures.shape, self.base.seed, self._horizon()))

    def _horizon(self) -> float:
        emulate, steps = self.base.emulate, self.base.train.steps
        step = emulate.unit_seconds * self.base.parallel.micro_batches + emulate.reduce_seconds
        return max(TRACE_ROW_FACTOR * steps * step, self._row_seconds)


def drawn_failures(groups: int, mtbf: float, shape: float, seed: int, horizon: float) -> Iterator[Failure]:
    """Deaths until `horizon` (seconds) where each dead group is replaced by a new one at once."""
    process = Weibull(groups, mtbf, shape, seed)
    while (failure := process.pop()) is not None and failure[0] < horizon:
        yield failure
        for group in failure[1]:
            process.revive(group, failure[0])


def failure_free_seconds(outcomes: list[Outcome]) -> float:
    """T_0: all steps at one stack, as the rows' median step was measured; the same for all rows."""
    steps = [outcome.history.stack_seconds + outcome.history.other_seconds for outcome in outcomes]
    return outcomes[0].config.train.steps * statistics.median(steps)


def row_values(outcome: Outcome, failure_free: float, reference: str | None) -> dict[str, Any]:
    """One row of the table as plain values: live, simulated, and how far apart they are.

    Args:
        failure_free: T_0 in seconds.
        reference: hash of the weights that all rows should end with.
    """
    history = outcome.history
    accounting, wall = history.accounting, history.wall_seconds
    weights = history.summary.get("weights_sha256")
    live = {
        "time_to_train_seconds": wall,
        "time_to_train_ratio": wall / failure_free,
        "availability": accounting.availability(wall),
        "productive_fraction": accounting.productive_fraction(wall),
        "stacks_per_step": accounting.compute_overhead,
        "failures": accounting.failures,
        "masked_failures": accounting.masked_failures,
        "global_restarts": accounting.global_restarts,
        "lost_steps": accounting.lost_steps,
        "stall_per_failure": history.stall_per_failure,
        "seconds_by_cause": history.seconds_by_cause,
    }
    model, predicted = _mean(outcome.compared, failure_free), _mean(outcome.predicted, failure_free)
    return {
        "method": outcome.row.method,
        "redundancy": outcome.row.redundancy,
        "title": outcome.row.title,
        "live": live,
        "simulated": model,
        "time_to_train_deviation": model["time_to_train_seconds"] / wall - 1.0,
        "replays": len(outcome.simulated),
        "replays_alike": len(outcome.alike),
        "time_to_train_deviation_of_all": statistics.fmean(one.wall_seconds for one in outcome.simulated) / wall - 1.0,
        "time_to_train_spread": statistics.stdev(result.wall_seconds for result in outcome.simulated) / wall,
        "predicted_time_to_train_seconds": predicted["time_to_train_seconds"],
        "predicted_time_to_train_deviation": predicted["time_to_train_seconds"] / wall - 1.0,
        "stacks_deviation": model["stacks_per_step"] / (accounting.compute_overhead or 1.0) - 1.0,
        "final_loss": history.summary.get("final_loss"),
        "weights_sha256": weights,
        "weights_equal": None if reference is None or weights is None else weights == reference,
        "durations": asdict(outcome.durations),
    }


def _mean(results: list[Result], failure_free: float) -> dict[str, Any]:
    """Means over replays, by the names of the live values."""

    def mean(value: Callable[[Result], float]) -> float:
        return statistics.fmean(map(value, results))

    seconds = mean(lambda result: result.wall_seconds)
    causes = {cause: mean(lambda result: result.seconds_by_cause[cause]) for cause in CAUSES}  # noqa: B023
    failures = mean(lambda result: result.failures)
    return {
        "time_to_train_seconds": seconds,
        "time_to_train_ratio": seconds / failure_free if all(result.status == "done" for result in results) else None,
        "availability": mean(lambda result: result.availability),
        "productive_fraction": mean(lambda result: result.productive_fraction),
        "stacks_per_step": mean(lambda result: result.busiest_stacks),
        "failures": failures,
        "masked_failures": mean(lambda result: result.masked_failures),
        "global_restarts": mean(lambda result: result.global_restarts),
        "lost_steps": mean(lambda result: result.lost_steps),
        "stall_per_failure": stall_per_failure(causes, failures),
        "seconds_by_cause": causes,
    }
