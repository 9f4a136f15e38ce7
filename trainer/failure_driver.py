"""Failures from outside: a failure process of the planning core, with real signals at its times.

Random (`failures=weibull`) or recorded (`failures.file`): the same objects as in the simulator. The driver lives in the
launcher, outside of what it kills, and counts in seconds of wall-clock or in committed steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from fault_tolerance.failures import FailureProcess, Trace, Weibull
from trainer.config import Config


class FailureDriver:
    """Kills whole groups at the times of a failure process, from the start of training until its last step.

    Args:
        kill: sends SIGKILL to every process of a group.
    """

    @staticmethod
    def of(config: Config, kill: Callable[[int], None]) -> FailureDriver | None:
        """The driver that a configuration asks for; None: failures come from within, or not at all."""
        wanted = config.failures.kind == "weibull" or config.failures.file is not None
        return FailureDriver(config, kill) if wanted else None

    def __init__(self, config: Config, kill: Callable[[int], None]) -> None:
        failures = config.failures
        self._process = _process(config)
        self._in_steps = failures.unit == "steps"
        self._kill = kill
        self._lock = threading.Lock()
        self._began: float | None = None
        self._last_step = config.train.steps
        self._running = threading.Event()

    def begin(self, step: int) -> None:
        """All groups are live and new, from committed step `step` on."""
        if self._began is None:
            self._began = time.monotonic()
            if not self._in_steps:  # not before training begins: a launcher with threads could not fork
                threading.Thread(target=self._watch, name="failures", daemon=True).start()
        with self._lock:
            self._process.reset(float(step) if self._in_steps else time.monotonic() - self._began)
        self._running.set()

    def pause(self) -> None:
        """The groups are being started anew: nothing is killed until `begin`."""
        self._running.clear()

    def step(self, committed: int) -> None:
        """`committed` steps count now; after the last one nothing is killed."""
        if committed >= self._last_step:
            self.pause()
        if self._in_steps and self._running.is_set():
            self._strike(float(committed))

    def died(self, groups: Iterable[int]) -> None:
        """These groups are gone, whatever of."""
        with self._lock:
            self._process.discard(groups)

    def _watch(self) -> None:
        while True:
            self._running.wait()
            assert self._began is not None
            self._strike(time.monotonic() - self._began)
            time.sleep(0.005)

    def _strike(self, now: float) -> None:
        with self._lock:
            victims: list[int] = []
            while (failure := self._process.next()) is not None and failure[0] <= now:
                self._process.pop()
                victims.extend(failure[1])
        for group in victims:
            self._kill(group)


def _process(config: Config) -> FailureProcess:
    failures, groups = config.failures, config.parallel.groups
    if failures.file is not None:
        return Trace.from_file(groups, failures.file)
    return Weibull(groups, failures.mtbf_seconds, failures.shape, config.seed)
