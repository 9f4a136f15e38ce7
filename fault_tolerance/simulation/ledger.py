"""Where the wall-clock went: every simulated second is booked under exactly one cause.

Seconds of steps stay provisional until a checkpoint holds those steps (or the run ends): a global restart turns them
into rework. So the causes always add up to the wall-clock.
"""

from __future__ import annotations

CAUSES: tuple[str, ...] = ("compute", "redundant", "reduce", "patch", "shrink", "save", "rework", "down")
"""compute: the one stack per step that a failure-free run computes too. redundant: what steps computed beyond it.
reduce: all-reduces, those that a death broke included. patch: units of dead groups, computed again in the same step.
shrink: rebuilding the communicator, replanning, and groups that rejoin. save: checkpoints. rework: time in steps that a
global restart undid. down: from a failure that forces a global restart until training resumes."""

STEP_CAUSES: tuple[str, ...] = ("compute", "redundant", "reduce", "patch", "shrink")
"""Causes that belong to a step and turn into rework when it is undone."""


class Ledger:
    """Seconds by cause; those of steps that no checkpoint holds yet are kept apart."""

    __slots__ = ("_fixed", "_marked", "_open")

    def __init__(self) -> None:
        self._fixed = dict.fromkeys(CAUSES, 0.0)
        self._open = dict.fromkeys(STEP_CAUSES, 0.0)
        self._marked = self._open.copy()

    def step(self, cause: str, seconds: float) -> None:
        """Book seconds of a step that a global restart may still undo."""
        self._open[cause] += seconds

    def fixed(self, cause: str, seconds: float) -> None:
        """Book seconds that stay what they are."""
        self._fixed[cause] += seconds

    def mark(self) -> None:
        """What is booked up to now is what the next `keep` is about."""
        self._marked = self._open.copy()

    def keep(self) -> None:
        """Steps up to the latest mark are safe: a checkpoint holds them, or the run has ended."""
        for cause, seconds in self._marked.items():
            self._fixed[cause] += seconds
            self._open[cause] -= seconds
            self._marked[cause] = 0.0

    def undo(self) -> None:
        """A global restart: steps since the last `keep` were in vain."""
        for cause, seconds in self._open.items():
            self._fixed["rework"] += seconds
            self._open[cause] = self._marked[cause] = 0.0

    def seconds(self) -> dict[str, float]:
        """Seconds by cause, open steps under their own causes."""
        return {cause: seconds + self._open.get(cause, 0.0) for cause, seconds in self._fixed.items()}
