"""The launcher's end of the fork server: start it, give it tasks, hear of ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Task = dict[str, Any]
"""What one worker is started with; `name`, `log` and `environment` are the server's, the rest is the module's."""


class ForkServerClient:
    """A running fork server.

    Args:
        module: module whose `run(task)` a worker runs; imported once in the server.
        on_message: called in a reader thread with the server's messages (ready, started, exited) and, at the end of
            its output, {"type": "gone"}.
    """

    def __init__(
        self, module: str, environment: Mapping[str, str], on_message: Callable[[dict[str, Any]], None]
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fault_tolerance.runtime.forkserver", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
        )
        self._lock = threading.Lock()
        self._on_message = on_message
        threading.Thread(target=self._read, name="fork server", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._on_message(json.loads(line))
        self._on_message({"type": "gone"})

    def _tell(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it is gone, and its workers with it: the reader says so

    def start(self, tasks: Sequence[Task]) -> None:
        """Forks one worker per task."""
        self._tell({"type": "start", "tasks": list(tasks)})

    def kill(self, names: Sequence[str] | None, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to the named tasks' workers, or to all."""
        self._tell({"type": "kill", "tasks": None if names is None else list(names), "signal": int(number)})

    def close(self, patience: float) -> None:
        """Ends the server and with it every worker; returns once it is gone (at the latest after `patience` s, killed)."""
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
