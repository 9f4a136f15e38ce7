"""The timeline of a simulated run, in the schema of a live run's events.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fault_tolerance.policies.base import Replan, Restart


class Timeline:
    """Events in order of time; keeps none unless asked to, since a long run has tens of thousands."""

    def __init__(self, wanted: bool) -> None:
        self.is_kept = wanted
        self._generation = 0
        self.events: list[dict[str, Any]] = []

    def add(self, time: float, event: str, step: int, groups: Iterable[int], **values: Any) -> None:
        """One event; a change of membership other than a death opens a new generation."""
        if not self.is_kept:
            return
        if event in ("replan", "restart", "join"):
            self._generation += 1
        self.events.append(
            {
                "time": time,
                "event": event,
                "step": step,
                "generation": self._generation,
                "groups": sorted(groups),
                **values,
            }
        )

    def add_replan(
        self,
        time: float,
        step: int,
        dead: tuple[int, ...],
        verdict: Replan,
        patch_stacks: float,
        seconds: tuple[float, float, float, float],
    ) -> None:
        """A masked failure.

        Args:
            patch_stacks: longest patch of one group in this step so far.
            seconds: to notice it, to shrink, to replan and to patch; together from the death until the step can reduce.
        """
        if not self.is_kept:
            return
        detect, shrink, replan, patch = seconds
        self.add(
            time,
            "replan",
            step,
            dead,
            phase=verdict.phase,
            moves=verdict.moves,
            stacks_before=verdict.stacks_before,
            stacks_after=verdict.stacks_after,
            patch_stacks=patch_stacks,
            seconds={
                "detect": detect,
                "agree": 0.0,
                "rebuild": shrink,
                "replan": replan,
                "patch": patch,
                "total": detect + shrink + replan + patch,
            },
        )

    def add_restart(self, time: float, from_step: int, to_step: int, verdict: Restart, seconds: float) -> None:
        """A global restart, at the time when training resumes."""
        self.add(
            time,
            "restart",
            to_step,
            (),
            from_step=from_step,
            to_step=to_step,
            lost_steps=from_step - to_step,
            lost_types=list(verdict.lost_types),
            reason=verdict.reason,
            seconds=seconds,
        )


def write_events(path: str | Path, events: Iterable[dict[str, Any]]) -> None:
    """Write a timeline as JSON lines."""
    Path(path).write_text("".join(json.dumps(event) + "\n" for event in events))
