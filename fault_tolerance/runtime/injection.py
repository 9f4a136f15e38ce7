"""Failure injection from inside a worker: the exact phase of the exact step, each event once, over restarts too."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PHASES = ("compute", "reduce", "commit", "recovery", "checkpoint")
SIGNALS = ("SIGKILL", "SIGSTOP", "SIGTERM", "exit", "exception")


class InjectedFailure(RuntimeError):
    """Raised by an event with signal "exception"."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One event: `signal` strikes (group, rank) when step `step` is in `phase`."""

    step: int
    group: int
    phase: str
    signal: str
    rank: int


class Injector:
    """Strikes this process when its time has come.

    Args:
        folder: holds one mark per event that has struck, written before the blow, so that a restarted run goes on.
    """

    def __init__(self, strikes: Sequence[Strike], *, group: int, rank: int, folder: Path) -> None:
        self._pending = {
            index: strike for index, strike in enumerate(strikes) if (strike.group, strike.rank) == (group, rank)
        }
        self._folder = folder
        if self._pending:
            folder.mkdir(parents=True, exist_ok=True)

    def at(self, phase: str, step: int) -> None:
        """This process is in `phase` of `step`.

        Raises:
            InjectedFailure: an event with signal "exception" strikes.
        """
        if not self._pending:
            return
        for index, strike in list(self._pending.items()):
            if (strike.phase, strike.step) == (phase, step):
                del self._pending[index]
                try:
                    os.close(os.open(self._folder / f"struck-{index}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                self._strike(strike)

    @staticmethod
    def _strike(strike: Strike) -> None:
        if strike.signal == "exception":
            raise InjectedFailure(f"injected into group {strike.group} in {strike.phase} of step {strike.step}")
        if strike.signal == "exit":
            os._exit(1)
        os.kill(os.getpid(), getattr(signal, strike.signal))
