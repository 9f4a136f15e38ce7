"""Who is overdue: heartbeats, acknowledgements, and work that does not advance, against the derived deadlines."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from fault_tolerance.runtime.deadlines import Deadlines
from fault_tolerance.runtime.wire import Link, Message

LEARNED_FROM = 8
"""Steps after which the step deadline is learned instead of assumed."""
SLOWER = 20
"""A computation that takes so many times the median is stuck."""


@dataclass
class Member:
    """One connected worker."""

    group: int
    rank: int
    pid: int
    link: Link
    last_seen: float
    ready: bool = False
    acknowledged: int = -1
    committed: int = 0
    phase: str = "startup"
    progress: int = 0
    progress_at: float = 0.0
    done: Message | None = None


@dataclass
class Agreement:
    """A generation in the making."""

    number: int
    started: float
    noticed: float
    silent_seconds: float
    deaths: list[int] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)


class Liveness:
    """Judges members by time. Workers in a collective wait for others and are never judged for it."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._compute_seconds: deque[float] = deque(maxlen=512)

    def learn(self, longest_compute_seconds: float) -> None:
        """A step committed whose longest computation between two signs of progress took so long."""
        self._compute_seconds.append(longest_compute_seconds)

    @property
    def step_deadline(self) -> float:
        """Seconds without progress after which a computing worker is stuck: learned, between a floor and a cap.

        Before anything was learned it is the cap (first steps compile and warm up). The cap lies below the deadlines of
        those who wait for the stuck one, so that it is he who goes and not they.
        """
        if len(self._compute_seconds) < LEARNED_FROM:
            return self._deadlines.stuck_cap
        learned = SLOWER * statistics.median(self._compute_seconds)
        return min(max(self._deadlines.stuck_floor, learned), self._deadlines.stuck_cap)

    def overdue(self, member: Member, agreement: Agreement | None, running: bool, now: float) -> str | None:
        """Why `member` must go; None while it may stay."""
        if member.done is not None:
            return None
        if member.ready and now - member.last_seen > self._deadlines.heartbeat_lapse:
            return f"has been silent for {now - member.last_seen:.1f} s"
        limit = self._deadlines.acknowledge
        if agreement and member.acknowledged < agreement.number and now - agreement.started > limit:
            return f"did not acknowledge generation {agreement.number} within {limit:.1f} s"
        allowed = {
            "compute": self.step_deadline,
            "optimizer": self.step_deadline,
            "checkpoint": self._deadlines.stuck_cap,
        }
        if running and now - member.progress_at > allowed.get(member.phase, float("inf")):
            return f"has been stuck in {member.phase} for {now - member.progress_at:.1f} s"
        return None

    @staticmethod
    def forgive(members: Iterable[Member], agreement: Agreement | None, pause: float, now: float) -> None:
        """The judge itself stood still for `pause` seconds: nobody is to be blamed for having been unheard."""
        for member in members:
            member.last_seen = min(now, member.last_seen + pause)
            member.progress_at = min(now, member.progress_at + pause)
        if agreement is not None:
            agreement.started = min(now, agreement.started + pause)
