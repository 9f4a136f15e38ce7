"""What the controller asks of its surroundings, and how it tells them of failures."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from fault_tolerance.runtime.wire import Message

EXPLANATION_SECONDS = 0.5
"""How long a failure's event waits for the process's exit status; recovery does not wait."""


class Supervisor(Protocol):
    """Surroundings of a controller. Called in the controller's thread; must return at once."""

    def on_event(self, kind: str, **fields: Any) -> None:
        """Something worth a line in events.jsonl."""

    def on_step(self, record: Message) -> None:
        """A step was committed (called once per step and epoch)."""

    def evict(self, group: int, reason: str) -> None:
        """Make sure that no process of `group` lives on."""

    def restart(self, epoch: int, reason: str) -> None:
        """End all workers, call `Controller.workers_ended`, and start workers that say hello with `epoch`."""

    def finished(self, results: dict[int, Message]) -> None:
        """All live groups are done; results by group."""

    def fatal(self, reason: str) -> None:
        """The run cannot go on."""


@dataclass
class _Entry:
    kind: str
    fields: dict[str, Any]
    awaits: tuple[int, int] | None
    """Epoch and group whose exit status is waited for."""


class Reporter:
    """Events in the order of their causes: a lost connection waits for its exit status, what follows waits for it."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._queue: deque[_Entry] = deque()

    def failure(self, epoch: int, group: int, is_explained: bool, **fields: Any) -> None:
        """A group failed in `epoch`; `fields` are those of the event. Only an unexplained cause waits for a better."""
        entry = _Entry("failure", {"groups": [group], **fields}, None if is_explained else (epoch, group))
        self._queue.append(entry)
        if is_explained:
            self._release()
        else:
            asyncio.get_running_loop().call_later(EXPLANATION_SECONDS, self._settle, entry)

    def explain(self, epoch: int, group: int, cause: str) -> bool:
        """The supervisor knows how a process of `group` ended; False if no failure of that epoch waits for it."""
        for entry in self._queue:
            if entry.awaits == (epoch, group):
                entry.fields["cause"] = cause
                self._settle(entry)
                return True
        return False

    def tell(self, kind: str, **fields: Any) -> None:
        """An event, after the failures that led to it."""
        self._queue.append(_Entry(kind, fields, None))
        self._release()

    def flush(self) -> None:
        """Tells of everything that still waits."""
        for entry in self._queue:
            entry.awaits = None
        self._release()

    def _settle(self, entry: _Entry) -> None:
        entry.awaits = None
        self._release()

    def _release(self) -> None:
        while self._queue and self._queue[0].awaits is None:
            entry = self._queue.popleft()
            self._supervisor.on_event(entry.kind, **entry.fields)
