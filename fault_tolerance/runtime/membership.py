"""A worker's view of the membership: a thread that listens, acknowledges and beats; the main thread's questions.

The main thread never blocks where a notice could not wake it: all its waits go through one condition variable that the
thread, and the callbacks of collectives, notify. What the controller calls off (evicted, stopped, gone) ends the
process from the thread at once, whatever the main thread is doing: that is the fence.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fault_tolerance.runtime.deadlines import Deadlines
from fault_tolerance.runtime.generation import Generation
from fault_tolerance.runtime.wire import Connection, Message

EXIT_RESTART = 75
"""Exit status of a worker that ends for a global restart (EX_TEMPFAIL: torchrun starts it again)."""
EXIT_FENCED = 77
"""Exit status of a worker that was evicted or lost its controller."""


class DeadlineExceeded(RuntimeError):
    """A wait ran out; the message says what it waited for."""


class Refused(RuntimeError):
    """The controller does not take this worker: not now (`retry`), or never again (`ended`: the run has)."""

    def __init__(self, reason: str, retry: bool, ended: bool = False) -> None:
        super().__init__(reason)
        self.retry, self.ended = retry, ended


class Membership:
    """Connection of one worker to the controller.

    Args:
        epoch: the epoch this process was started for; None where a scheduler restarts workers (any epoch fits).
    """

    def __init__(
        self, host: str, port: int, *, group: int, rank: int, epoch: int | None, fingerprint: str, deadlines: Deadlines
    ) -> None:
        self.group, self.rank, self.deadlines = group, rank, deadlines
        self.changed = threading.Condition()
        self._connection = Connection(host, port, timeout=deadlines.timeout)
        self._prepared = 0
        self._generations: list[Generation] = []
        self._heard_at: dict[int, float] = {}
        self._in_commit = False
        self._committed = 0
        self._unacknowledged: int | None = None
        self._phase, self._progress = "startup", 0
        self._bye = False
        self._member = True
        self._connection.send(
            {
                "type": "hello",
                "group": group,
                "rank": rank,
                "pid": os.getpid(),
                "epoch": epoch,
                "fingerprint": fingerprint,
            }
        )
        welcome = self._first_message()
        self.epoch: int = welcome["epoch"]
        self.resume: Message = welcome["resume"]
        threading.Thread(target=self._listen, name="membership", daemon=True).start()

    def _first_message(self) -> Message:
        deadline = time.monotonic() + self.deadlines.timeout
        while time.monotonic() < deadline:
            messages = self._connection.receive(self.deadlines.heartbeat_interval)
            if messages is None:
                raise Refused("the controller closed the connection", retry=True)
            if messages:
                if messages[0]["type"] == "refused":
                    raise Refused(messages[0]["reason"], retry=messages[0]["retry"], ended=messages[0]["ended"])
                return messages[0]
        raise DeadlineExceeded(f"no answer from the controller within {self.deadlines.timeout:.0f} s")

    # -- the thread -------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        last_beat = 0.0
        while True:
            if time.monotonic() - last_beat >= self.deadlines.heartbeat_interval:
                last_beat = time.monotonic()
                self._beat()
            messages = self._connection.receive(self.deadlines.heartbeat_interval)
            if messages is None:
                self._leave(EXIT_FENCED, "the controller is gone")
            for message in messages or ():
                self._on_message(message)

    def _beat(self) -> None:
        self.send({"type": "heartbeat", "phase": self._phase, "progress": self._progress})

    def _on_message(self, message: Message) -> None:
        kind = message["type"]
        if kind == "prepare":
            with self.changed:
                self._prepared = message["generation"]
                self._unacknowledged = message["generation"]
                if not self._in_commit:
                    self._acknowledge()
                self.changed.notify_all()
        elif kind == "generation":
            with self.changed:
                generation = Generation.from_message(message)
                self._generations.append(generation)
                self._heard_at[generation.number] = time.monotonic()
                self._prepared = max(self._prepared, generation.number)
                self.changed.notify_all()
        elif kind == "bye":
            with self.changed:
                self._bye = True
                self.changed.notify_all()
        elif kind == "evicted":
            self._leave(EXIT_FENCED, f"evicted: {message['reason']}")
        elif kind == "stop":
            self._leave(0 if message["ended"] else EXIT_RESTART, message["reason"])

    def _acknowledge(self) -> None:
        if self._unacknowledged is not None:
            self.send({"type": "acknowledge", "generation": self._unacknowledged, "committed": self._committed})
            self._unacknowledged = None

    @property
    def is_member(self) -> bool:
        """False once this worker was evicted or stopped: nothing it writes counts."""
        return self._member

    def _leave(self, status: int, reason: str) -> None:
        if self._bye:
            while True:  # the run is over: the main thread ends this process
                time.sleep(self.deadlines.timeout)
        self._member = False
        print(f"group {self.group} rank {self.rank} leaves: {reason}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(status)

    # -- the main thread --------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Writes to the controller; a controller that is gone ends the process."""
        try:
            self._connection.send(message)
        except OSError as error:
            self._leave(EXIT_FENCED, f"the controller is gone ({error})")

    def event(self, kind: str, **fields: Any) -> None:
        """A line for events.jsonl."""
        self.send({"type": "event", "kind": kind, "fields": fields})

    def progress(self, phase: str) -> None:
        """The main thread lives and is in `phase`; only in "compute" may it be called stuck.

        A change of phase is told at once, so that a failure can name the phase that it struck.
        """
        self._progress += 1
        if phase != self._phase:
            self._phase = phase
            self._beat()

    def ready(self) -> Generation:
        """This worker can train; returns the first generation once every worker can."""
        self.send({"type": "ready"})
        self.progress("ready")
        first = self.next_generation(after=0, deadline=self.deadlines.startup)
        self._committed = first.committed
        return first

    @property
    def is_training(self) -> bool:
        """Whether this worker has been ready and the run has begun."""
        return bool(self._generations)

    @property
    def newest(self) -> int:
        """Number of the newest published generation."""
        return self._generations[-1].number if self._generations else 0

    def is_stale(self, generation: int) -> bool:
        """Whether a later generation than `generation` is published or in the making."""
        return self._prepared > generation

    def published(self, after: int, up_to: int) -> list[Generation]:
        """Published generations after one and up to another, oldest first."""
        return [generation for generation in self._generations if after < generation.number <= up_to]

    def heard_at(self, generation: int) -> float:
        """When a published generation reached this rank (monotonic seconds)."""
        return self._heard_at[generation]

    def wait(self, predicate: Callable[[], bool], deadline: float, what: str) -> None:
        """Waits until `predicate` holds; whoever changes what it looks at notifies `changed`.

        Raises:
            DeadlineExceeded: after `deadline` seconds; names `what`.
        """
        with self.changed:
            if not self.changed.wait_for(predicate, timeout=deadline):
                raise DeadlineExceeded(f"group {self.group} rank {self.rank} waited {deadline:.0f} s for {what}")

    def next_generation(self, after: int, deadline: float | None = None) -> Generation:
        """The first generation published after generation `after`."""
        seconds = self.deadlines.build if deadline is None else deadline
        self.wait(lambda: self.newest > after, seconds, f"the generation after {after}")
        return self.published(after, self.newest)[0]

    def report_error(self, generation: int, error: str) -> None:
        """A collective of `generation` failed here; the controller agrees anew if it knows of no death."""
        self.send({"type": "error", "generation": generation, "error": error})

    def request_restart(self, reason: str) -> None:
        """The policy sees no way on."""
        self.send({"type": "restart", "reason": reason})

    def enter_commit(self, generation: int) -> bool:
        """False where `generation` is no longer the newest: its commit can no longer be entered."""
        with self.changed:
            if self._prepared > generation:
                return False
            self._in_commit = True
            return True

    def leave_commit(self, committed: int | None) -> None:
        """The commit passed (`committed` steps count now) or failed (None)."""
        with self.changed:
            self._in_commit = False
            if committed is not None:
                self._committed = max(self._committed, committed)
            self._acknowledge()

    @property
    def committed(self) -> int:
        """Steps that count, as far as this worker or a published generation knows."""
        return max(self._committed, self._generations[-1].committed if self._generations else 0)

    def done(self, result: Message) -> None:
        """Hands in the result and returns once the controller ends the run."""
        self.progress("done")
        self.send({"type": "done", "result": result})
        self.wait(lambda: self._bye, self.deadlines.startup, "the other groups to finish")

    def fatal(self, reason: str) -> None:
        """No restart would help: the run ends with `reason`."""
        self.send({"type": "fatal", "reason": reason})

    def failed(self, error: str, traceback: str) -> None:
        """This worker cannot go on; its traceback reaches the user."""
        self.send({"type": "failed", "error": error, "traceback": traceback})
