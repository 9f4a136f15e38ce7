"""Availability, productive fraction, stacks, failures: the definitions that live runs and simulations share.

- availability: (wall - down) / wall, where down is the time from the failure that forces a global restart until
  training resumes at the checkpoint.
- productive fraction: time in steps that count at the end (not redone) / wall.
- compute overhead: mean stacks per committed step, the largest planned load plus the longest patch of one group (a
  simulation's `busiest_stacks`); steps that were undone later count too.
- failures: groups that died. Masked: those that forced no global restart.
- lost steps: committed steps that global restarts undid.

No clock here: every call carries its time in seconds since the run's start.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class _Counted:
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class _Pending:
    """Failures of which it is not yet known what comes of them."""

    time: float
    groups: int
    generation: int | None


@dataclass
class Accounting:
    """Running sums over the events and committed steps of one run, in the order in which they happened."""

    failures: int = 0
    masked_failures: int = 0
    global_restarts: int = 0
    lost_steps: int = 0
    _counted: dict[int, _Counted] = field(default_factory=dict)
    _commits: int = 0
    _stacks: float = 0.0
    _down: float = 0.0
    _down_since: float | None = None
    _pending: list[_Pending] = field(default_factory=list)

    def failure(self, time: float, groups: int, generation: int | None = None) -> None:
        """`groups` groups of `generation` died; a replan, a restart or a newer generation will say what comes of it."""
        self.failures += groups
        self._pending.append(_Pending(time, groups, generation))

    def replan(self, generation: int | None = None) -> None:
        """The step went on in `generation`: the failures of older ones are masked (all, where it is not known)."""
        later = [
            failure
            for failure in self._pending
            if None not in (generation, failure.generation) and failure.generation >= generation  # type: ignore[operator]
        ]
        self.masked_failures += sum(failure.groups for failure in self._pending if failure not in later)
        self._pending = later

    def restart(self, time: float, lost_steps: int | None, seconds: float = 0.0) -> None:
        """A global restart.

        Args:
            time: when it was reported.
            lost_steps: committed steps it undoes. None: seen later, when they are committed again.
            seconds: how long it took until `time`; the start of down where no failure was reported before.
        """
        self.global_restarts += 1
        since = self._pending[0].time if self._pending else max(time - seconds, 0.0)
        if self._down_since is None:
            self._down_since = since
        self._pending = []
        if lost_steps is not None:
            newest_first = sorted(self._counted, reverse=True)
            for step in newest_first[:lost_steps]:
                del self._counted[step]
            self.lost_steps += lost_steps

    def step(
        self, step: int, time: float, seconds: float, tokens: int, stacks: float, generation: int | None = None
    ) -> None:
        """`step` was committed at `time`, after `seconds`, by `generation`."""
        if generation is not None and any(failure.generation is not None for failure in self._pending):
            self.replan(generation)  # it went on without those of older generations
        if self._down_since is not None:
            self._down += max(time - seconds - self._down_since, 0.0)
            self._down_since = None
        if step in self._counted:
            self.lost_steps += 1
        self._counted[step] = _Counted(seconds, tokens)
        self._commits += 1
        self._stacks += stacks

    def give_up(self) -> None:
        """The run ends without having come back from the last failures: it has been down since."""
        if self._pending and self._down_since is None:
            self._down_since = self._pending[0].time

    @property
    def steps(self) -> int:
        """Steps done: one more than the last that counts (a resumed run starts above 0)."""
        return max(self._counted, default=-1) + 1

    @property
    def tokens(self) -> int:
        """Tokens of the steps that count."""
        return sum(entry.tokens for entry in self._counted.values())

    @property
    def compute_overhead(self) -> float | None:
        """Mean stacks per commit; None before the first."""
        return self._stacks / self._commits if self._commits else None

    def availability(self, now: float) -> float:
        """Share of the time until `now` that was not down."""
        down = self._down + (max(now - self._down_since, 0.0) if self._down_since is not None else 0.0)
        return 1.0 - down / now if now > 0 else 1.0

    def productive_fraction(self, now: float) -> float:
        """Share of the time until `now` that was spent in steps that count."""
        return sum(entry.seconds for entry in self._counted.values()) / now if now > 0 else 0.0
