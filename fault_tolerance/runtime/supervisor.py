"""What the controller asks of its surroundings, and how it tells them of failures."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from fault_tolerance.runtime.wire import Message

EXPLANATION_SECONDS = 0.03
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


class Reporter:
    """Events in the order of their causes: a failure waits for its exit status, and what follows waits for it."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._untold: dict[int, dict[str, Any]] = {}

    def failure(self, group: int, **fields: Any) -> None:
        """A group failed; `fields` are those of the event."""
        self._untold[group] = {"groups": [group], **fields}
        asyncio.get_running_loop().call_later(EXPLANATION_SECONDS, self._tell_failure, group)

    def explain(self, group: int, cause: str) -> bool:
        """The supervisor knows how a process of `group` ended; False if no failure waits for that."""
        if group not in self._untold:
            return False
        self._untold[group]["cause"] = cause
        self._tell_failure(group)
        return True

    def tell(self, kind: str, **fields: Any) -> None:
        """An event, after the failures that led to it."""
        self.flush()
        self._supervisor.on_event(kind, **fields)

    def flush(self) -> None:
        """Tells of all failures that still wait."""
        for group in list(self._untold):
            self._tell_failure(group)

    def _tell_failure(self, group: int) -> None:
        fields = self._untold.pop(group, None)
        if fields is not None:
            self._supervisor.on_event("failure", **fields)
