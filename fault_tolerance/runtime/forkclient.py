"""The launcher's end of the fork server: start it, give it tasks, hear of ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fault_tolerance.runtime import forkserver

Task = dict[str, Any]
"""What one worker is started with; `name`, `log` and `environment` are the server's, the rest is the module's."""


class ForkServerClient:
    """A running fork server.

    Args:
        modules: imported once in the server, comma-separated; the first one's `run(task)` is what a worker runs.
        on_message: called in a reader thread with the server's messages (ready, started, exited) and, at the end of
            its output, {"type": "gone"}.
        inherit: the server is forked from this process instead of started afresh, so that it need not import what this
            process has imported. Only for a process with a single thread.
    """

    def __init__(
        self,
        modules: str,
        environment: Mapping[str, str],
        on_message: Callable[[dict[str, Any]], None],
        inherit: bool = False,
    ) -> None:
        self._process: _Server = _forked(modules, environment) if inherit else _spawned(modules, environment)
        self._lock = threading.Lock()
        self._on_message = on_message
        self.is_gone = False
        """The server has ended, and every worker with it."""
        self._reader = threading.Thread(target=self._read, name="fork server", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for line in self._process.output:
                self._on_message(json.loads(line))
        finally:  # whoever listens failed: without a reader this server is of no more use
            self.is_gone = True
            self._on_message({"type": "gone"})

    def _tell(self, command: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):  # it is gone: the reader says so
            self._process.input.write(json.dumps(command).encode() + b"\n")
            self._process.input.flush()

    def start(self, tasks: Sequence[Task]) -> None:
        """Forks one worker per task."""
        self._tell({"type": "start", "tasks": list(tasks)})

    def kill(self, names: Sequence[str] | None, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to the named tasks' workers, or to all."""
        self._tell({"type": "kill", "tasks": None if names is None else list(names), "signal": int(number)})

    def close(self, patience: float) -> None:
        """Ends the server and every worker; returns once it is gone, killed after `patience` seconds.

        Nothing is told to `on_message` afterwards.
        """
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._process.input.close()
        if not self._process.wait(patience):
            self._process.kill()
            self._process.wait(None)
        self._reader.join(patience)


class _Server:
    """A server process by its pid and pipes; this process is its parent and the only one to reap it."""

    def __init__(self, pid: int, to_server: int, from_server: int) -> None:
        self.pid = pid
        self.input = os.fdopen(to_server, "wb")
        self.output = os.fdopen(from_server, "rb")
        self._reaped = False

    def wait(self, timeout: float | None) -> bool:
        """Whether it has ended within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._reaped:
            self._reaped = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
            if not self._reaped:
                if deadline is not None and time.monotonic() > deadline:
                    return False
                time.sleep(0.005)
        return True

    def kill(self) -> None:
        if not self._reaped:
            os.kill(self.pid, signal.SIGKILL)


def _pipes() -> tuple[int, int, int, int]:
    """(server's stdin, ours to it, ours from it, server's stdout)."""
    return (*os.pipe(), *os.pipe())


def _spawned(modules: str, environment: Mapping[str, str]) -> _Server:
    server_in, to_server, from_server, server_out = _pipes()
    command = [sys.executable, "-m", "fault_tolerance.runtime.forkserver", modules]
    actions = [(os.POSIX_SPAWN_DUP2, server_in, 0), (os.POSIX_SPAWN_DUP2, server_out, 1)]
    pid = os.posix_spawn(sys.executable, command, dict(environment), file_actions=actions)
    os.close(server_in)
    os.close(server_out)
    return _Server(pid, to_server, from_server)


def _forked(modules: str, environment: Mapping[str, str]) -> _Server:
    assert threading.active_count() == 1, "a process with threads must not fork"
    server_in, to_server, from_server, server_out = _pipes()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(to_server)
            os.close(from_server)
            os.dup2(server_in, 0)
            os.dup2(server_out, 1)
            os.environ.update(environment)
            forkserver.main(modules)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(server_in)
    os.close(server_out)
    return _Server(pid, to_server, from_server)
