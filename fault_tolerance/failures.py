"""When groups die: failure processes shared by the simulator and by live injection.

One idea: a process is a queue of coming failures that can be peeked, popped and, after a repair or a global restart,
refilled. It knows neither what a failure does nor what a second is: the simulator counts in simulated seconds, live
injection in wall-clock seconds or in steps. Everything is drawn from one seeded generator, so a seed and a sequence of
calls give one sequence of failures. Objects pickle.
"""

from __future__ import annotations

import csv
import heapq
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

Failure = tuple[float, tuple[int, ...]]
"""(time, the groups that die together)."""

_NEVER = math.inf


@runtime_checkable
class FailureProcess(Protocol):
    """A queue of failures over `groups` groups. Times are absolute, in the unit that the caller counts in."""

    groups: int

    def reset(self, now: float) -> None:
        """Global restart at time `now`: every group is live and new (age zero)."""

    def next(self) -> Failure | None:
        """The next failure, left in the queue; None: no group will ever fail again."""

    def pop(self) -> Failure | None:
        """The next failure, taken from the queue; its groups are dead and fail no more until they are revived."""

    def revive(self, group: int, now: float) -> None:
        """A repaired group is live again, with age zero. Raises ValueError where it is live already."""

    def discard(self, groups: Iterable[int]) -> None:
        """These groups died of something else (or were evicted): they fail no more until they are revived."""


class Weibull:
    """Independent lifetimes per group, Weibull distributed; age starts anew at a restart or a repair.

    A lifetime has mean `groups * mtbf`, so that the whole system of new-born, always repaired groups fails once per
    `mtbf` in the long run. With shape < 1 young groups die more often: failures come in bursts after a restart.
    Source: SPARE.md, simulation set-up.
    """

    def __init__(self, groups: int, mtbf: float, shape: float = 0.78, seed: int | np.random.Generator = 0) -> None:
        """`mtbf`: mean time between failures of the whole system, in the caller's unit of time.

        Raises:
            ValueError: a parameter is not positive.
        """
        if groups < 1:
            raise ValueError(f"groups={groups}: a failure process needs at least 1 group")
        if not (mtbf > 0 and math.isfinite(mtbf)):
            raise ValueError(f"mtbf={mtbf}: must be positive and finite")
        if not (shape > 0 and math.isfinite(shape)):
            raise ValueError(f"shape={shape}: must be positive and finite (1 is exponential)")
        self.groups = groups
        self.mtbf = mtbf
        self.shape = shape
        self._scale = groups * mtbf / math.gamma(1 + 1 / shape)
        self._random = np.random.default_rng(seed)
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """Draw a new lifetime for every group, all at once."""
        due = now + self._scale * self._random.weibull(self.shape, self.groups)
        order = due.argsort(kind="stable")
        self._due: list[float] = due.tolist()
        # Two queues: those drawn at the reset are sorted once and walked; the few of repaired groups are a heap.
        # An entry counts only while it equals the group's due time, so dropping one costs nothing.
        self._times: list[float] = due[order].tolist()
        self._groups: list[int] = order.tolist()
        self._cursor = 0
        self._revived: list[tuple[float, int]] = []

    def next(self) -> Failure | None:
        """See FailureProcess."""
        due, times, groups, revived = self._due, self._times, self._groups, self._revived
        cursor, end = self._cursor, len(times)
        while cursor < end and due[groups[cursor]] != times[cursor]:
            cursor += 1
        self._cursor = cursor
        while revived and due[revived[0][1]] != revived[0][0]:
            heapq.heappop(revived)
        if cursor < end and not (revived and revived[0] < (times[cursor], groups[cursor])):
            return times[cursor], (groups[cursor],)
        return (revived[0][0], (revived[0][1],)) if revived else None

    def pop(self) -> Failure | None:
        """See FailureProcess."""
        failure = self.next()
        if failure is not None:
            self._due[failure[1][0]] = _NEVER
        return failure

    def revive(self, group: int, now: float) -> None:
        """See FailureProcess."""
        if self._due[group] != _NEVER:
            raise ValueError(f"group {group} is live: it cannot be revived")
        self._due[group] = now + self._scale * float(self._random.weibull(self.shape))
        heapq.heappush(self._revived, (self._due[group], group))

    def discard(self, groups: Iterable[int]) -> None:
        """See FailureProcess."""
        for group in groups:
            self._due[group] = _NEVER


class Exponential(Weibull):
    """Memoryless lifetimes: the rate of a live group never changes, so a restart brings no burst."""

    def __init__(self, groups: int, mtbf: float, seed: int | np.random.Generator = 0) -> None:
        """`mtbf`: mean time between failures of the whole system while all groups live, in the caller's unit."""
        super().__init__(groups, mtbf, shape=1.0, seed=seed)


class Trace:
    """Recorded failures at absolute times. Each strikes once: a restart does not bring the past back.

    A group that is dead already is left out of a failure; a failure that is left with no group is skipped.
    """

    def __init__(self, groups: int, failures: Iterable[Failure]) -> None:
        """`failures` in any order.

        Raises:
            ValueError: a time is negative or not a number, or a group is not in 0..groups-1.
        """
        if groups < 1:
            raise ValueError(f"groups={groups}: a failure process needs at least 1 group")
        self.groups = groups
        self._failures = sorted((float(time), tuple(sorted(set(dead)))) for time, dead in failures)
        for time, dead in self._failures:
            if not (time >= 0 and math.isfinite(time)):
                raise ValueError(f"failure trace: time {time} must be a finite number >= 0")
            if outside := [group for group in dead if not 0 <= group < groups]:
                raise ValueError(f"failure trace: group {outside[0]} at time {time} is not in 0..{groups - 1}")
        self._cursor = 0
        self._dead: set[int] = set()

    @classmethod
    def from_file(cls, groups: int, path: str | Path) -> Trace:
        """A trace recorded in a file; see `read_trace`."""
        return cls(groups, read_trace(path))

    def reset(self, now: float) -> None:
        """Every group is live; failures recorded before `now` are past."""
        self._dead.clear()
        while self._cursor < len(self._failures) and self._failures[self._cursor][0] < now:
            self._cursor += 1

    def next(self) -> Failure | None:
        """See FailureProcess."""
        index = self._coming()
        return None if index is None else (self._failures[index][0], self._struck(index))

    def pop(self) -> Failure | None:
        """See FailureProcess."""
        index = self._coming()
        if index is None:
            return None
        failure = self._failures[index][0], self._struck(index)
        self._cursor = index + 1
        self._dead.update(failure[1])
        return failure

    def revive(self, group: int, now: float) -> None:
        """See FailureProcess; what was recorded for the group before `now` is past."""
        if group not in self._dead:
            raise ValueError(f"group {group} is live: it cannot be revived")
        # If the caller has taken everything up to `now`, only failures of dead groups are left before it.
        while self._cursor < len(self._failures) and self._failures[self._cursor][0] < now:
            if self._struck(self._cursor):
                break
            self._cursor += 1
        self._dead.discard(group)

    def _coming(self) -> int | None:
        """Index of the next failure that strikes a live group. The cursor stays: the groups of those before it are
        dead now, but a restart may come before their time does."""
        for index in range(self._cursor, len(self._failures)):
            if self._struck(index):
                return index
        return None

    def _struck(self, index: int) -> tuple[int, ...]:
        return tuple([group for group in self._failures[index][1] if group not in self._dead])

    def discard(self, groups: Iterable[int]) -> None:
        """See FailureProcess."""
        self._dead.update(groups)


class Domains:
    """Correlated failures: a failure of the process within takes the whole domain (a rack of groups) with it.

    The process within sets when: its `mtbf` is the mean time between events, not between deaths.
    """

    def __init__(
        self,
        process: FailureProcess,
        domains: int | Sequence[Sequence[int]],
        probability: float = 1.0,
        seed: int | np.random.Generator = 0,
    ) -> None:
        """`domains`: groups of each domain, or the size of domains of consecutive groups (the last may be smaller).
        `probability`: share of failures that spread over the domain.

        Raises:
            ValueError: domains overlap or leave the range of groups; probability outside 0..1.
        """
        self.groups = process.groups
        if isinstance(domains, int):
            if domains < 1:
                raise ValueError(f"domains={domains}: a domain holds at least 1 group")
            domains = [range(first, min(first + domains, self.groups)) for first in range(0, self.groups, domains)]
        if not 0 <= probability <= 1:
            raise ValueError(f"probability={probability}: must lie in 0..1")
        self._domain_of: dict[int, tuple[int, ...]] = {}
        for domain in domains:
            members = tuple(sorted(domain))
            for group in members:
                if not 0 <= group < self.groups:
                    raise ValueError(f"domains: group {group} is not in 0..{self.groups - 1}")
                if group in self._domain_of:
                    raise ValueError(f"domains: group {group} stands in two domains")
                self._domain_of[group] = members
        self._process = process
        self._probability = probability
        self._random = np.random.default_rng(seed)
        self._dead: set[int] = set()
        self._drawn: tuple[Failure, bool] | None = None

    def reset(self, now: float) -> None:
        """See FailureProcess."""
        self._process.reset(now)
        self._dead.clear()
        self._drawn = None

    def next(self) -> Failure | None:
        """See FailureProcess."""
        failure = self._process.next()
        if failure is None:
            return None
        if self._drawn is None or self._drawn[0] != failure:
            self._drawn = failure, bool(self._random.random() < self._probability)
        time, groups = failure
        if not self._drawn[1]:
            return failure
        struck = {member for group in groups for member in self._domain_of.get(group, (group,))}
        return time, tuple(sorted(struck - self._dead))

    def pop(self) -> Failure | None:
        """See FailureProcess."""
        failure = self.next()
        if failure is not None:
            self._process.pop()
            self.discard(failure[1])
            self._drawn = None
        return failure

    def revive(self, group: int, now: float) -> None:
        """See FailureProcess."""
        self._process.revive(group, now)
        self._dead.discard(group)

    def discard(self, groups: Iterable[int]) -> None:
        """See FailureProcess."""
        groups = tuple(groups)
        self._dead.update(groups)
        self._process.discard(groups)


def read_trace(path: str | Path) -> list[Failure]:
    """Failures of a file: JSON lines, or CSV where the name ends in .csv.

    JSON lines hold `time` and `groups` (a list) or `group`; lines with another `event` than failure are skipped, so a
    run's events.jsonl is a trace. CSV has a header with `time` and `groups` (numbers divided by spaces) or `group`.

    Raises:
        ValueError: the file is missing, or a line is not a failure (named by its number).
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"failure trace {path}: no such file")
    failures: list[Failure] = []
    with path.open(newline="") as file:
        is_csv = path.suffix.lower() == ".csv"
        rows: Iterable[Any] = csv.DictReader(file) if is_csv else file
        for number, row in enumerate(rows, start=2 if is_csv else 1):
            try:
                record = json.loads(row) if isinstance(row, str) and row.strip() else row
                if isinstance(record, str) or record.get("event", "failure") != "failure":
                    continue
                failures.append(_failure_of(record))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"failure trace {path}, line {number}: expected a time and groups (or a group), got {row!r}"
                ) from error
    return failures


def write_trace(path: str | Path, failures: Iterable[Failure]) -> None:
    """Write failures as JSON lines that `read_trace` reads."""
    lines = [json.dumps({"time": time, "groups": list(groups)}) for time, groups in failures]
    Path(path).write_text("".join(line + "\n" for line in lines))


def _failure_of(record: dict[str, Any]) -> Failure:
    """Time and groups of one record; raises KeyError, TypeError or ValueError where it has none."""
    groups = record["groups"] if record.get("groups") is not None else record["group"]
    if isinstance(groups, str):
        groups = groups.split()
    if not isinstance(groups, list):
        groups = [groups]
    return float(record["time"]), tuple(int(group) for group in groups)
