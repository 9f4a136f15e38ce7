"""The client of `trainer.farm`: whole runs from one warm fork server, each waited for, none left behind."""

from __future__ import annotations

import os
import queue
import time
from pathlib import Path
from typing import Any

from fault_tolerance.runtime.forkclient import ForkServerClient
from trainer import config as configuration
from trainer.config import Config

SHUTDOWN_SECONDS = 10.0


class RunFailed(RuntimeError):
    """A run that did not end well; carries what its launcher has said."""


class FarmClient:
    """A fork server that has imported the trainer; it starts with the first run. Use as a context manager."""

    def __init__(self) -> None:
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self._server: ForkServerClient | None = None
        self._count = 0

    def __enter__(self) -> FarmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, config: Config, patience_seconds: float) -> None:
        """Runs a checked configuration in its `run_dir` and returns when it is done.

        Raises:
            RunFailed: it ended with another status than 0, or not within `patience_seconds` (its processes are killed).
        """
        if self._server is None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
            self._messages = queue.Queue()  # none of a server that was closed
            self._server = ForkServerClient("trainer.farm", environment, self._messages.put)
        folder = Path(config.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        wanted, log = folder / "wanted.yaml", folder / "launcher.log"
        configuration.save(config, wanted)
        self._count += 1
        name = f"run {self._count}"
        self._server.start([{"name": name, "log": str(log), "environment": {}, "config": str(wanted)}])
        status = self._await(name, patience_seconds)
        if status is None:
            self.close()  # ends the launcher; its workers see their controller go and leave
            raise RunFailed(f"{folder}: not done within {patience_seconds:.0f} s")
        if status != 0:
            raise RunFailed(f"{folder}: ended with status {status}\n{_tail(log)}")

    def close(self) -> None:
        """Ends the fork server and all that runs."""
        if self._server is not None:
            self._server.close(SHUTDOWN_SECONDS)
            self._server = None

    def _await(self, name: str, seconds: float) -> int | None:
        """Exit status of a run, or None if it has not ended in time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                message = self._messages.get(timeout=left)
            except queue.Empty:
                return None
            if message["type"] == "exited" and message["task"] == name:
                return int(message["status"])
            if message["type"] == "gone":
                raise RunFailed("the fork server of the runs died")
        return None


def _tail(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return "\n".join(text.splitlines()[-8:])
