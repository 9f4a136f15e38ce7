"""Whole runs for tests, each a forked launcher with its own fork server and workers; torch is imported once a session.

A run is bounded in time, shows its logs when something is wrong, and must leave no process behind. Its processes are
known by their standard error, which is a file in the run folder, so orphans are found whoever their parent is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fault_tolerance.placement import make_placement
from fault_tolerance.runtime.forkclient import ForkServerClient
from trainer import config as configuration
from trainer.config import Config, FailureEvent
from trainer.validation import validate

VOCABULARY = 256
SEQUENCE = 16
RUN_SECONDS = 120.0
"""Longest time of a run in a test; ten times what it takes on an idle machine."""
IMPORT_SECONDS = 150.0
"""Longest time until the farm has imported torch, on a busy machine with a cold cache."""
GONE_SECONDS = 10.0
"""Longest time from the end of a launcher to the end of its last process."""


def tokens_file(folder: Path) -> Path:
    """A token file of a sequence that can be learned."""
    path = folder / "tokens.bin"
    steps = np.random.default_rng(0).integers(1, 4, 40_000)
    (np.cumsum(steps) % VOCABULARY).astype(np.uint16).tofile(path)
    return path


def tiny_config(run_dir: Path, tokens: Path, **options: Any) -> Config:
    """A checked configuration of a run whose step takes milliseconds.

    Args:
        options: values by their dotted name, a double underscore standing for the dot (`train__steps=6`).
    """
    config = Config(run_dir=str(run_dir), device="cpu")
    values = {
        "model__vocab_size": VOCABULARY,
        "model__hidden_size": 32,
        "model__intermediate_size": 64,
        "model__layers": 2,
        "data__source": "tokens",
        "data__paths": [str(tokens)],
        "data__cache_dir": str(tokens.parent / "cache"),
        "data__validation_fraction": 0.0,
        "optim__warmup_steps": 2,
        "train__steps": 8,
        "train__sequence_length": SEQUENCE,
        "checkpoint__every_steps": 5,
        "logging__wandb": "disabled",
        "logging__progress": False,
        "launch__threads_per_worker": 1,
    }
    for name, value in {**values, **options}.items():
        *path, last = name.split("__")
        node: Any = config
        for part in path:
            node = getattr(node, part)
        assert hasattr(node, last), name
        setattr(node, last, value)
    if config.failures.events:
        config.failures.kind = "trace"
    validate(config)
    return config


def strike(step: int, group: int, phase: str = "compute", signal: str = "SIGKILL", rank: int = 0) -> FailureEvent:
    """An injected failure."""
    return FailureEvent(step, group, phase, signal, rank)


class Farm:
    """The fork server that all runs of a session start from."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pids: dict[str, int] = {}
        self._statuses: dict[str, int] = {}
        self._gone = False
        self._count = 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._server = ForkServerClient("trainer.farm", environment, self._heard)

    def _heard(self, message: dict[str, Any]) -> None:
        with self._changed:
            if message["type"] == "started":
                self._pids[message["task"]] = message["pid"]
            elif message["type"] == "exited":
                self._statuses[message["task"]] = message["status"]
            elif message["type"] == "gone":
                self._gone = True
            self._changed.notify_all()

    def _await(self, where: dict[str, int], name: str, seconds: float) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: name in where or self._gone, seconds)
            assert name in where or not self._gone, "the farm's fork server died"
            return where.get(name)

    def start(self, config: Config) -> Run:
        """Starts a run; returns at once when its launcher has a process id."""
        folder = Path(config.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "farm-config.yaml"
        configuration.save(config, path)
        self._count += 1
        name, log = f"run {self._count}", folder / f"launcher-{self._count}.log"
        self._server.start([{"name": name, "log": str(log), "environment": {}, "config": str(path)}])
        pid = self._await(self._pids, name, IMPORT_SECONDS)
        assert pid is not None, f"the farm did not start a launcher within {IMPORT_SECONDS:.0f} s"
        return Run(self, name, pid, config, log)

    def status_of(self, name: str, seconds: float) -> int | None:
        """Exit status of a launcher (negative: the signal that ended it), or None if it still runs."""
        return self._await(self._statuses, name, seconds)

    def close(self) -> None:
        self._server.close(patience=10.0)


class Run:
    """A run that goes on in other processes."""

    def __init__(self, farm: Farm, name: str, launcher: int, config: Config, log: Path) -> None:
        self._farm, self._name, self._log = farm, name, log
        self.launcher, self.config, self.folder = launcher, config, Path(config.run_dir)

    # -- what it has written ----------------------------------------------------------------------------------------

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Whole lines of a JSON lines file of the run."""
        path = self.folder / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [event for event in self.lines("events.jsonl") if kind in (None, event["event"])]

    @property
    def steps(self) -> list[int]:
        """Steps in the order in which they were reported."""
        return [line["step"] for line in self.lines("metrics.jsonl")]

    @property
    def losses(self) -> dict[int, float]:
        """Loss of each step; a step that was done again must give the same."""
        losses: dict[int, float] = {}
        for line in self.lines("metrics.jsonl"):
            assert losses.setdefault(line["step"], line["loss"]) == line["loss"], line
        return losses

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))

    @property
    def output(self) -> str:
        """What the launcher has shown."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def processes(self) -> dict[tuple[int, int], int]:
        """Process ids by (group, rank), as `processes.json` has them now."""
        with contextlib.suppress(FileNotFoundError):
            named = json.loads((self.folder / "processes.json").read_text(encoding="utf-8"))
            return {_place(name): pid for name, pid in named.items()}
        return {}

    # -- what one does to it ----------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any], what: str, seconds: float = RUN_SECONDS) -> Any:
        """Waits until `condition` is true of the running run; returns its value."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            if self.status(0.002) is not None and not (value := condition()):
                self.fail(f"the run ended (status {self.status(0)}) before {what}")
            if value:
                break
            if time.monotonic() > end:
                self.fail(f"not within {seconds:.0f} s: {what}")
        return value

    def until_step(self, step: int) -> None:
        """Waits until `step` steps have been committed."""
        self.until(lambda: any(done + 1 >= step for done in self.steps), f"{step} steps were committed")

    def signal(self, group: int, rank: int = 0, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends a signal to a worker; returns its process id."""
        pid = self.processes()[group, rank]
        os.kill(pid, number)
        return pid

    def status(self, seconds: float) -> int | None:
        """The launcher's exit status once it has ended within `seconds`."""
        return self._farm.status_of(self._name, seconds)

    def left(self) -> list[int]:
        """Processes of this run that live (zombies do not)."""
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and os.readlink(f"/proc/{entry}/fd/2").startswith(f"{self.folder}/"):
                    found.append(int(entry))
        return found

    def until_gone(self, seconds: float = GONE_SECONDS) -> None:
        """Waits until no process of this run is left."""
        end = time.monotonic() + seconds
        while left := self.left():
            if time.monotonic() > end:
                self.fail(f"processes left {seconds:.0f} s after the run: {left}")
            time.sleep(0.02)

    def finish(self, status: int = 0, seconds: float = RUN_SECONDS) -> Run:
        """Waits for the end of the run, which must be `status` and leave no process behind."""
        ended = self.status(seconds)
        if ended is None:
            self.fail(f"it did not end within {seconds:.0f} s")
        if ended != status:
            self.fail(f"it ended with status {ended} instead of {status}")
        self.until_gone()
        return self

    def fail(self, what: str) -> None:
        """Ends the run and fails the test with all that is known."""
        left = self.left()
        logs = "".join(self._tail(path) for path in sorted(self.folder.glob("logs/*.log")))
        self.end()
        events = "\n".join(map(json.dumps, self.events()))
        raise AssertionError(
            f"{self.folder.name}: {what}\nprocesses: {left}, of workers {self.processes()}\n"
            f"--- launcher\n{self.output}\n--- events\n{events}\n--- workers\n{logs}"
        )

    @staticmethod
    def _tail(path: Path) -> str:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        return f"[{path.stem}]\n{text[-3000:]}\n" if text else ""

    def end(self) -> None:
        """Kills whatever lives of this run."""
        for pid in (self.launcher if self.status(0) is None else None, *self.left()):
            with contextlib.suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + GONE_SECONDS
        while self.left() and time.monotonic() < end:
            time.sleep(0.02)


def _place(name: str) -> tuple[int, int]:
    match = re.fullmatch(r"group (\d+) rank (\d+)", name)
    assert match, name
    return int(match[1]), int(match[2])


def survivable(placement: str, groups: int, redundancy: int, order: Sequence[int], deaths: int) -> list[int]:
    """The first `deaths` groups of `order` that can die one after another without a wipe-out."""
    hosts = make_placement(placement, groups, redundancy).hosts
    dead: list[int] = []
    for group in order:
        if len(dead) < deaths and all(set(of) - {*dead, group} for of in hosts):
            dead.append(group)
    assert len(dead) == deaths, f"only {len(dead)} of {deaths} deaths are survivable in this order"
    return dead
