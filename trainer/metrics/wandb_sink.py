"""The launcher's end of Weights & Biases: a queue and a pipe to `wandb_process`; no call here waits for wandb.

Only `finish` waits, for a bounded time. Whatever goes wrong is one warning line, and training goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.config import Config, to_dict
from trainer.metrics.files import plain

QUEUE_LENGTH = 10_000
"""Records that may wait for a slow wandb; more are dropped."""

FAILURE_COLUMNS = ("time", "step", "generation", "groups", "phase", "cause")


class WandbSink:
    """One W&B run, fed by `log` and ended by `finish`."""

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        warn: Callable[[str], None],
        init_seconds: float = 20.0,
        finish_seconds: float = 45.0,
    ) -> None:
        """Start the process.

        Args:
            warn: takes one line for the user; called from other threads.
            init_seconds: how long a server may take to answer before the run goes offline.
            finish_seconds: how long `finish` may take.
        """
        self._warn = warn
        self._warned = False
        self._finish_seconds = finish_seconds
        self._failures: list[list[Any]] = []
        self._queue: queue.Queue[str | None] = queue.Queue(QUEUE_LENGTH)
        self._process = self._spawn(run_dir)
        if self._process is None:
            return
        self._writer = threading.Thread(target=self._write, name="wandb-writer", daemon=True)
        self._reader = threading.Thread(target=self._read, name="wandb-reader", daemon=True)
        self._writer.start()
        self._reader.start()
        self._put(_init_record(config, run_dir, init_seconds, finish_seconds))

    def log(self, data: dict[str, Any]) -> None:
        """Hand over one step's values (flat names to numbers)."""
        self._put({"type": "log", "data": data})

    def failure(self, event: dict[str, Any]) -> None:
        """Remember a failure for the table."""
        row = [event.get(column) for column in FAILURE_COLUMNS]
        self._failures.append([str(entry) if isinstance(entry, list | tuple) else entry for entry in row])

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary and the failures, and wait for the process, at most `finish_seconds`."""
        if self._process is None:
            return
        end = time.monotonic() + self._finish_seconds
        self._put({"type": "finish", "summary": summary, "columns": FAILURE_COLUMNS, "rows": self._failures})
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=1.0)
        try:
            self._process.wait(timeout=max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self._tell(
                f"Weights & Biases did not finish within {self._finish_seconds:g} s; metrics.jsonl has everything"
            )
        self._kill()
        self._reader.join(timeout=2.0)
        self._process = None

    def _spawn(self, run_dir: Path) -> subprocess.Popen[str] | None:
        """The process in a session of its own: Ctrl-C is the launcher's to handle, and its children end with it."""
        log: Any = subprocess.DEVNULL
        try:
            (run_dir / "logs").mkdir(parents=True, exist_ok=True)
            log = (run_dir / "logs" / "wandb.log").open("a")
        except OSError as error:
            self._tell(f"logs/wandb.log cannot be written ({error.strerror})")
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "trainer.metrics.wandb_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            self._tell(f"Weights & Biases did not start ({error.strerror})")
            return None
        finally:
            if log is not subprocess.DEVNULL:
                log.close()

    def _put(self, record: dict[str, Any]) -> None:
        if self._process is None:
            return
        try:
            self._queue.put_nowait(json.dumps(plain(record)) + "\n")
        except queue.Full:
            self._tell("Weights & Biases is too slow, values are dropped; metrics.jsonl has everything")

    def _write(self) -> None:
        """Thread: queue to pipe."""
        assert self._process is not None and self._process.stdin is not None
        pipe = self._process.stdin
        try:
            while (line := self._queue.get()) is not None:
                pipe.write(line)
                pipe.flush()
            pipe.close()
        except (OSError, ValueError):  # the process is gone; the reader tells why
            return

    def _read(self) -> None:
        """Thread: the process's warnings, and its unexpected end."""
        process = self._process
        assert process is not None and process.stdout is not None
        for line in process.stdout:
            self._tell(line.strip())
        status = process.wait()
        if status:
            self._tell(f"Weights & Biases ended with status {status} (logs/wandb.log); metrics.jsonl has everything")

    def _tell(self, text: str) -> None:
        """The first problem is told; what follows from it is not."""
        if not self._warned:
            self._warned = True
            self._warn(text)

    def _kill(self) -> None:
        """End what is left of the process's session (wandb has helpers of its own)."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _init_record(config: Config, run_dir: Path, init_seconds: float, finish_seconds: float) -> dict[str, Any]:
    return {
        "type": "init",
        "mode": config.logging.wandb,
        "project": config.logging.wandb_project,
        "group": config.logging.wandb_group,
        "tags": config.logging.wandb_tags,
        "job_type": config.fault_tolerance.backend,
        "name": run_dir.name,
        "config": to_dict(config),
        "dir": str(run_dir.resolve()),
        "init_seconds": init_seconds,
        "finish_seconds": finish_seconds,
    }
