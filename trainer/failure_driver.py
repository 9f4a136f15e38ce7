"""Random failures of a live run: the failure process of the planning core, with a real signal at each of its times.

It lives in the launcher, outside of what it kills, and counts in seconds of wall-clock or in committed steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from fault_tolerance.failures import Weibull
from trainer.config import Config


class FailureDriver:
    """Kills whole groups at the times of a seeded Weibull process (`failures=weibull`).

    Args:
        kill: sends SIGKILL to every process of a group.
    """

    def __init__(self, config: Config, kill: Callable[[int], None]) -> None:
        failures = config.failures
        self._process = Weibull(config.parallel.groups, failures.mtbf_seconds, failures.shape, config.seed)
        self._in_steps = failures.unit == "steps"
        self._kill = kill
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._running = threading.Event()
        if not self._in_steps:
            threading.Thread(target=self._watch, name="failures", daemon=True).start()

    def begin(self, step: int) -> None:
        """All groups are live and new, from committed step `step` on."""
        with self._lock:
            self._process.reset(float(step) if self._in_steps else time.monotonic() - self._began)
        self._running.set()

    def pause(self) -> None:
        """The groups are being started anew: nothing is killed until `begin`."""
        self._running.clear()

    def step(self, committed: int) -> None:
        """`committed` steps count now."""
        if self._in_steps and self._running.is_set():
            self._strike(float(committed))

    def died(self, groups: Iterable[int]) -> None:
        """These groups are gone, whatever of."""
        with self._lock:
            self._process.discard(groups)

    def _watch(self) -> None:
        while True:
            self._running.wait()
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
