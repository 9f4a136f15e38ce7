"""The saves of a simulated run: which is due, which goes on, which is written beside training, and which is whole."""

from __future__ import annotations

import math
from collections.abc import Collection

from fault_tolerance.simulation.draws import Draws
from fault_tolerance.simulation.ledger import Ledger
from fault_tolerance.simulation.scenario import REWRITE_AFTER_STEPS, Scenario
from fault_tolerance.simulation.timeline import Timeline


class Saves:
    """Keeps account of saves; the clock is the engine's.

    Attributes:
        safe_step: steps that the last whole checkpoint holds.
        count: checkpoints that became whole.
        due_at: when the next save by time is due; infinite where none is.
        policy_is_told: whether the policy hears of deaths while a save goes on, or in the step that follows.
    """

    def __init__(self, scenario: Scenario, draws: Draws, ledger: Ledger, timeline: Timeline) -> None:
        self._scenario, self._draws, self._ledger, self._timeline = scenario, draws, ledger, timeline
        self.safe_step = self.count = 0
        self._masked_deaths_matter = scenario.masked_death_in_save == "rewritten"
        self.policy_is_told = not self._masked_deaths_matter or scenario.notice == "immediate"
        self._lead = math.inf  # from when training goes on to when the next save by time begins
        if scenario.checkpoint_period_seconds is not None:
            self._lead = max(scenario.checkpoint_period_seconds - scenario.save_seconds, 0.0)
        self.due_at = self._lead
        self._step, self._since = 0, math.nan  # of the latest save
        self._writers: list[int] = []  # of the latest save, in the order in which their parts become whole
        self._goes_on = False
        self._written: tuple[float, float] | None = None  # from when to when the latest save is written beside training
        self._rewrite_at: int | None = None  # step after which a void save is made good

    # --- when -------------------------------------------------------------------------------------------------------

    def is_due(self, step: int, now: float) -> bool:
        """Whether the state after `step` steps is saved now."""
        if step == self.safe_step or (self._written is not None and step == self._step):
            return False
        every = self._scenario.checkpoint_every_steps
        return step == self._rewrite_at or now >= self.due_at or (every is not None and step % every == 0)

    def steps_until_due(self, step: int) -> int | None:
        """Steps from `step` to the next save that is bound to one; None where none is."""
        every = self._scenario.checkpoint_every_steps
        by_steps = None if every is None else every - step % every
        if self._rewrite_at is None:
            return by_steps
        until_rewrite = self._rewrite_at - step
        return until_rewrite if by_steps is None else min(by_steps, until_rewrite)

    # --- a save -----------------------------------------------------------------------------------------------------

    def begin(self, step: int, now: float, live: Collection[int]) -> float:
        """A save of `step` steps begins, or waits for the one before to be whole first; returns when it ends."""
        start = now if self._written is None else max(now, self._written[1])
        self.settle(start, live)
        self._step, self._since, self._goes_on, self._rewrite_at = step, now, True, None
        self._writers = sorted(live)[: self._scenario.save_parts]
        return start + self._draws["save"].next() * self._scenario.save_seconds

    def end(self, now: float, live: Collection[int]) -> None:
        """Training goes on; what the save has is written beside it."""
        self.due_at = now + self._lead
        if self._goes_on:
            self._goes_on = False
            self._ledger.mark()
            self._written = now, now + self._draws["write"].next() * self._scenario.write_seconds
            self.settle(now, live)

    def settle(self, time: float, live: Collection[int]) -> None:
        """A checkpoint that was whole by `time` counts."""
        if self._written is None or self._written[1] > time:
            return
        whole_at, self._written = self._written[1], None
        self._ledger.keep()
        self.safe_step = self._step
        self.count += 1
        self._tell(whole_at, live, "written")

    def cut_short(self, time: float, dead: Collection[int], live: Collection[int], step: int) -> None:
        """Groups died: a save that lacks a part of theirs will never be whole. Parts are whole one after another.

        Args:
            live: with the dead.
            step: the step in flight.
        """
        if self._written is not None:
            self.settle(time, live)
        if not self._masked_deaths_matter or not (self._goes_on or self._written):
            return
        struck = [number for number, group in enumerate(self._writers, start=1) if group in dead]
        if not struck:
            return
        if self._written is not None:
            begun, whole_at = self._written
            if begun + struck[-1] / len(self._writers) * (whole_at - begun) <= time:
                return
        self.void(time, live)
        self._rewrite_at = step + REWRITE_AFTER_STEPS

    def void(self, time: float, live: Collection[int]) -> None:
        """What is not whole by `time` is of no use."""
        self.settle(time, live)
        if self._goes_on or self._written is not None:
            self._goes_on, self._written = False, None
            self._tell(time, live, "failed")

    def restarted(self, now: float) -> None:
        """Training resumes after a global restart."""
        self._rewrite_at, self.due_at = None, now + self._lead

    def _tell(self, time: float, live: Collection[int], status: str) -> None:
        seconds = max(time - self._since, 0.0)
        self._timeline.add(time, "checkpoint", self._step, live, status=status, seconds=seconds)
