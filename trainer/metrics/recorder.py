"""RunRecorder: everything that is written, logged and shown about a run, behind four calls.

It lives in the launcher or controller and never in a worker, so a global restart goes on with the same files, the
same W&B run and the same sums. Its methods may be called from any thread and never wait for W&B, except `finish`.
"""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

from trainer.config import Config
from trainer.metrics.accounting import Accounting
from trainer.metrics.console import Console, emulation_line, failure_line, late_line, replan_line, restart_line
from trainer.metrics.files import JsonLines, write_json
from trainer.metrics.peak import run_peak
from trainer.metrics.wandb_sink import WandbSink
from trainer.model.size import flops_per_token, parameter_count
from trainer.run_folder import RunFolder

SUMMARY_KEYS = (
    "steps",
    "wall_seconds",
    "tokens",
    "tokens_per_second",
    "availability",
    "productive_fraction",
    "compute_overhead",
    "failures",
    "masked_failures",
    "global_restarts",
    "lost_steps",
    "final_loss",
    "validation_loss",
    "weights_sha256",
)
"""Keys of summary.json, in its order."""


class RunRecorder:
    """Metrics, events, accounting, W&B and console of one run.

    Args:
        config: the resolved config.
        run_dir: folder of the run; made if missing.
        console: where to show things (default: stdout).
    """

    def __init__(self, config: Config, run_dir: Path, console: Console | None = None) -> None:
        self._config = config
        self._run_dir = run_dir
        self._console = console or Console(config.train.steps, config.parallel.groups, config.logging.progress)
        self._metrics = JsonLines(run_dir / "metrics.jsonl", self._console.warning)
        self._events = JsonLines(run_dir / "events.jsonl", self._console.warning)
        self._accounting = Accounting()
        self._sink: WandbSink | None = None
        self._lock = threading.RLock()
        self._begin = time.monotonic()
        self._model: dict[str, float] = {}
        self._final_loss: float | None = None
        self._pending: list[dict[str, Any]] = []
        self._told = 0
        self._failed_checkpoints: set[int | None] = set()
        self._late: set[str] = set()
        self._summary: dict[str, Any] | None = None

    def start(self) -> None:
        """The run begins: time zero of all events, the progress bar, W&B; what MFU needs, unless `model` was called."""
        self._begin = time.monotonic()
        self._console.start()
        if self._config.emulate.is_on:
            self._console.line(emulation_line(self._config.emulate))
        if self._config.logging.wandb != "disabled":
            self._sink = WandbSink(self._config, self._run_dir, self._console.warning)
        if not self._model and self._config.model.hf is None:
            model, length = self._config.model, self._config.train.sequence_length
            self.model(flops_per_token(model, length), parameter_count(model), run_peak(self._config))

    def elapsed(self) -> float:
        """Seconds since `start`."""
        return time.monotonic() - self._begin

    def message(self, text: str) -> None:
        """Show lines for people (worker output) without harming the progress bar."""
        with self._lock:
            self._console.line(text)

    def warning(self, text: str) -> None:
        """Show one line that stands out."""
        with self._lock:
            self._console.warning(text)

    def model(self, flops_per_token: float, parameters: int, peak_flops: float | None = None) -> None:
        """What MFU needs.

        Args:
            flops_per_token: FLOPs of forward and backward per token of the batch, each counted once.
            parameters: number of parameters.
            peak_flops: FLOP/s of all devices of the run together; None: unknown, then no MFU is given.
        """
        with self._lock:
            self._model = {"flops_per_token": flops_per_token, "parameters": parameters}
            if peak_flops:
                self._model["peak_flops"] = peak_flops

    def event(self, kind: str, **fields: Any) -> None:
        """Append to events.jsonl, and keep the accounts.

        Args:
            kind: start, failure, replan, restart, checkpoint, join, end.
            fields: step, generation, groups and what the kind has; `time` (seconds since `start`) if it was before now.
        """
        with self._lock:
            entry = {"time": round(fields.pop("time", self.elapsed()), 6), "event": kind, **fields}
            self._events.append(entry)
            match kind:
                case "failure":
                    self._on_failure(entry)
                case "replan":
                    self._accounting.replan(entry.get("generation"))
                    self._console.line(replan_line(self._pending, entry))
                    self._pending, self._told = [], 0
                case "restart":
                    self._on_restart(entry)
                case "join":
                    names = ", ".join(map(str, entry.get("groups", ())))
                    self._console.line(f"group {names} joined, from step {entry.get('step')}")
                case "checkpoint" if entry.get("status") == "failed":
                    self._on_failed_checkpoint(entry)

    def step(self, record: dict[str, Any]) -> None:
        """A step was committed.

        Args:
            record: step, loss, lr, grad_norm, tokens, stacks, seconds {total, data, compute, reduce, commit,
                optimizer, checkpoint}, live_groups, generation, memory_bytes; skipped where the optimizer did not step;
                validation_loss where one was computed.
        """
        with self._lock:
            now = self.elapsed()
            seconds = float(record["seconds"]["total"])
            tokens = int(record.get("tokens", 0))
            stacks = float(record.get("stacks", 1.0))
            self._accounting.step(record["step"], now, seconds, tokens, stacks, record.get("generation"))
            if not record.get("skipped") and record.get("loss") is not None and math.isfinite(record["loss"]):
                self._final_loss = float(record["loss"])
            entry = {"time": round(now, 6), **record, **self._derived(now, seconds, tokens)}
            for part in ("compute", "reduce"):
                if late := record.get("emulated", {}).get(f"{part}_late"):
                    self._warn_late(part, late, record["step"])
            due = (record["step"] + 1) % self._config.train.log_every == 0
            if due or record["step"] + 1 == self._config.train.steps or record.get("validation_loss") is not None:
                self._metrics.append(entry)
                if self._sink is not None:
                    self._sink.log(_flat(entry))
            self._console.step(record["step"], entry)

    def finish(self, final: dict[str, Any]) -> dict[str, Any]:
        """The run is over, well or not: write summary.json, end W&B (bounded), show the table.

        Args:
            final: validation_loss and weights_sha256; any other summary key given here replaces the recorded value.
                Without weights_sha256 the run counts as broken off.

        Returns:
            What summary.json holds. A second call changes nothing.
        """
        with self._lock:
            if self._summary is not None:
                return self._summary
            self._tell_pending()
            self.event("end", step=self._accounting.steps - 1, groups=[])
            if "weights_sha256" in final:
                self._accounting.replan()  # deaths in the last moments, which the run did without
            else:
                self._accounting.give_up()
            self._summary = self._sum_up(final)
            try:
                write_json(RunFolder(self._run_dir).summary, self._summary)
            except OSError as error:
                self._console.warning(f"summary.json cannot be written ({error.strerror})")
            self._console.stop()
        if self._sink is not None:
            self._sink.finish(self._summary)
        self._metrics.close()
        self._events.close()
        self._console.summary(self._summary, {"run folder": str(self._run_dir)})
        return self._summary

    def _on_failure(self, entry: dict[str, Any]) -> None:
        self._accounting.failure(entry["time"], len(entry.get("groups", ())), entry.get("generation"))
        self._pending.append(entry)
        if self._sink is not None:
            self._sink.failure(entry)
        if self._config.fault_tolerance.backend == "ckpt":  # nothing is masked; a restart takes a while
            self._tell_pending()

    def _on_failed_checkpoint(self, entry: dict[str, Any]) -> None:
        """One warning per checkpoint: every group that took part reports its failure."""
        if entry.get("step") not in self._failed_checkpoints:
            self._failed_checkpoints.add(entry.get("step"))
            reason = entry.get("reason") or "the reason is in the worker's log"
            self._console.warning(f"checkpoint of step {entry.get('step')} failed: {reason}")

    def _on_restart(self, entry: dict[str, Any]) -> None:
        self._tell_pending()
        self._pending, self._told = [], 0
        seconds = entry.get("seconds")
        duration = float(seconds) if isinstance(seconds, int | float) else 0.0
        self._accounting.restart(entry["time"], entry.get("lost_steps"), duration)
        self._console.line(restart_line(entry))
        if entry.get("padding_seconds") == 0:
            self._warn_late("restart", duration - self._config.emulate.restart_seconds, entry.get("to_step"))

    def _warn_late(self, part: str, seconds: float, step: int | None) -> None:
        """Once per part: what really ran took longer than what it stands for."""
        if part not in self._late:
            self._late.add(part)
            self._console.warning(late_line(part, seconds, step))

    def _tell_pending(self) -> None:
        """Show failures that no replan has explained."""
        if untold := self._pending[self._told :]:
            self._console.line(failure_line(untold))
        self._told = len(self._pending)

    def _derived(self, now: float, seconds: float, tokens: int) -> dict[str, float]:
        """tokens/s and MFU of the step (MFU only where the peak is known), availability and stacks so far."""
        derived = {"availability": self._accounting.availability(now)}
        overhead = self._accounting.compute_overhead
        if overhead is not None:
            derived["compute_overhead"] = overhead
        if seconds > 0 and tokens:
            derived["tokens_per_second"] = tokens / seconds
            if "peak_flops" in self._model:
                rate = derived["tokens_per_second"] * self._model["flops_per_token"]
                derived["mfu"] = rate / self._model["peak_flops"]
        return derived

    def _sum_up(self, final: dict[str, Any]) -> dict[str, Any]:
        now = self.elapsed()
        accounting = self._accounting
        values: dict[str, Any] = {
            "steps": accounting.steps,
            "wall_seconds": now,
            "tokens": accounting.tokens,
            "tokens_per_second": accounting.tokens / now if now > 0 else 0.0,
            "availability": accounting.availability(now),
            "productive_fraction": accounting.productive_fraction(now),
            "compute_overhead": accounting.compute_overhead,
            "failures": accounting.failures,
            "masked_failures": accounting.masked_failures,
            "global_restarts": accounting.global_restarts,
            "lost_steps": accounting.lost_steps,
            "final_loss": self._final_loss,
        }
        values.update({key: value for key, value in final.items() if key in SUMMARY_KEYS})
        return {key: values.get(key) for key in SUMMARY_KEYS}


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    """Nested names joined by a slash, as W&B groups them; numbers only."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            flat.update({f"{key}/{name}": part for name, part in value.items()})
        elif isinstance(value, int | float):
            flat[key] = value
    return flat
