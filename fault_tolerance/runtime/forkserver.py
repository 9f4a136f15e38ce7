"""The fork server: a process of its own, single-threaded, that imports the heavy modules once and forks workers.

A process with threads must not fork (children can inherit a lock that nobody will release), so neither the launcher
nor whoever hosts the store does. It is driven by JSON lines on stdin and answers on stdout; the end of its stdin ends
it and every worker, and a worker dies with its server.

Run as `python -m fault_tolerance.runtime.forkserver MODULE[,MODULE...]`: the first one's run(task: dict) is what a
worker runs, the others are only imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from types import ModuleType
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when process `parent` dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)


def _run_worker(module: ModuleType, task: dict[str, Any]) -> None:
    """In the child: own session, own log file, then the task. Never returns."""
    status = 1
    try:
        os.setsid()  # a Ctrl-C at the terminal is the launcher's affair
        log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # closefd: a worker may itself fork workers, whose new objects must not close the descriptors with the old ones
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        faulthandler.enable(sys.stderr)
        os.environ.update(task["environment"])
        status = int(module.run(task) or 0)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # no exit handlers: threads left behind by lost collectives must not hold the process


class ForkServer:
    """State of the server: its children and the two pipes to the launcher."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._children: dict[int, dict[str, Any]] = {}
        self._buffer = b""

    def _tell(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]

    def _start(self, task: dict[str, Any]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            die_with_parent(server)
            _run_worker(self._module, task)
        self._children[pid] = task
        self._tell({"type": "started", "pid": pid, "task": task["name"]})

    def _kill(self, names: list[str] | None, signal_number: int) -> None:
        for pid, task in self._children.items():
            if names is None or task["name"] in names:
                os.kill(pid, signal_number)  # not yet reaped, so the pid is still this child's

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            task = self._children.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            self._tell({"type": "exited", "pid": pid, "task": task["name"], "status": code})

    def _handle(self, command: dict[str, Any]) -> None:
        if command["type"] == "start":
            for task in command["tasks"]:
                self._start(task)
        elif command["type"] == "kill":
            self._kill(command["tasks"], command["signal"])
        else:
            raise ValueError(f"unknown command {command['type']!r}")

    def serve(self) -> None:
        """Until stdin ends; then every child is killed and reaped."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._tell({"type": "ready", "pid": os.getpid()})
        try:
            while True:
                readable, _, _ = select.select([0, wake_read], [], [])
                if wake_read in readable:
                    os.read(wake_read, 4096)
                self._reap()
                if 0 in readable:
                    data = os.read(0, 1 << 16)
                    if not data:
                        return
                    *lines, self._buffer = (self._buffer + data).split(b"\n")
                    for line in lines:
                        self._handle(json.loads(line))
        finally:
            self._kill(None, signal.SIGKILL)
            deadline = time.monotonic() + 10
            while self._children and time.monotonic() < deadline:
                with contextlib.suppress(OSError):  # the launcher no longer reads
                    self._reap()
                time.sleep(0.01)


def main(modules: str) -> None:
    """Serves until stdin ends. `modules`: comma-separated; the first one's `run` is what workers run."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a signal to the process group: the launcher decides
    die_with_parent(os.getppid())
    imported = [importlib.import_module(module) for module in modules.split(",")]
    gc.freeze()  # a worker's full collection would walk all of it (0.3 s) and so copy its pages (80 MB)
    ForkServer(imported[0]).serve()


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
