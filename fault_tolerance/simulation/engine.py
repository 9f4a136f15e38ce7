"""The event-driven engine: a policy, a failure process and durations in, time-to-train and where the time went out.

It has no decision logic of its own: who computes what, what a death costs and when only a global restart helps is asked
of the very policy object that the live backend drives. The engine moves the clock. Steps that neither a failure nor a
repair nor a checkpoint touches are passed over in bulk; a step that is touched goes phase by phase:

    compute -> [deaths? -> shrink, replan, patch -> again] -> reduce (broken by a death: again) -> commit -> save

Deaths in compute and patch are seen at the synchronisation that follows, deaths in the all-reduce break it at once.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter

from fault_tolerance.failures import FailureProcess
from fault_tolerance.policies.base import Plan, Policy, Replan, Restart
from fault_tolerance.simulation.draws import Draws
from fault_tolerance.simulation.ledger import Ledger
from fault_tolerance.simulation.quiet import take_quiet_steps
from fault_tolerance.simulation.result import Result
from fault_tolerance.simulation.saves import Saves
from fault_tolerance.simulation.scenario import Scenario
from fault_tolerance.simulation.timeline import Timeline


class _GivenUp(Exception):
    """The run makes no progress; carries the reason."""


class Engine:
    """One simulated run; `run` may be called once."""

    def __init__(
        self, scenario: Scenario, policy: Policy, failures: FailureProcess, seed: int = 0, timeline: bool = False
    ) -> None:
        """`failures` is reset when the run starts; `seed` draws the noise of durations; `timeline` keeps events.

        Raises:
            ValueError: scenario, policy and failure process speak of different numbers of groups.
        """
        if not scenario.groups == policy.groups == failures.groups:
            raise ValueError(
                f"groups={scenario.groups} in the scenario, {policy.groups} in the policy, {failures.groups} in the "
                "failure process: they must be equal"
            )
        self._scenario = scenario
        self._policy = policy
        self._failures = failures
        self._draws = Draws(seed, scenario.noise_std)
        self._timeline = Timeline(timeline)
        self._ledger = Ledger()
        self._saves = Saves(scenario, self._draws, self._ledger, self._timeline)
        self._now = 0.0
        self._step = 0  # steps that count so far = index of the step in flight
        self._open_since = 0.0  # seconds after this stand in the ledger as a step's own
        self._is_first_step = True  # since the start or a global restart
        self._failure_at = math.inf
        self._live = set(range(scenario.groups))
        self._pending: list[tuple[float, tuple[int, ...]]] = []  # deaths that the policy has not been told of
        self._owed: list[tuple[Replan, tuple[int, ...], float]] = []  # replans whose seconds have not been spent
        self._repairs: list[tuple[float, int]] = []
        self._step_failures = sorted(scenario.step_failures, key=lambda failure: (failure.step, failure.group))
        self._fruitless_restarts = self._checkpoints_before = 0
        self._committed = 0
        self._unnoticed = 0.0
        self._stacks = self._busiest = 0.0
        self._counts = dict.fromkeys(("failures", "fatal", "global_restarts", "lost_steps", "joins"), 0)

    def run(self) -> Result:
        """Simulate until all steps are committed or the run is given up."""
        scenario = self._scenario
        self._failures.reset(0.0)
        self._peek()
        self._policy.on_start()
        self._timeline.add(self._now, "start", 0, self._live)
        status, reason = "done", ""
        try:
            while self._step < scenario.steps:
                self._saves.settle(self._now, self._live)
                self._join()
                plan = self._policy.plan_step(self._step)
                if not self._pass_quiet_steps(plan):
                    self._run_step(plan)
                if self._step < scenario.steps and self._saves.is_due(self._step, self._now):
                    self._save()
        except _GivenUp as given_up:
            status, reason = "no_progress", str(given_up)
        self._saves.settle(self._now, self._live)
        self._ledger.mark()
        self._ledger.keep()
        self._timeline.add(self._now, "end", self._step, self._live, status=status)
        counts = self._counts
        return Result(
            status=status,
            reason=reason,
            steps=self._step,
            wall_seconds=self._now,
            failure_free_seconds=scenario.failure_free_seconds,
            seconds_by_cause=self._ledger.seconds(),
            unnoticed_seconds=self._unnoticed,
            mean_stacks=self._stacks / self._committed if self._committed else 0.0,
            busiest_stacks=self._busiest / self._committed if self._committed else 0.0,
            failures=counts["failures"],
            masked_failures=counts["failures"] - counts["fatal"],
            global_restarts=counts["global_restarts"],
            lost_steps=counts["lost_steps"],
            checkpoints=self._saves.count,
            joins=counts["joins"],
            events=self._timeline.events,
        )

    # --- steps ------------------------------------------------------------------------------------------------------

    def _pass_quiet_steps(self, plan: Plan) -> int:
        """Commit in bulk the coming steps that nothing touches; returns how many (0: the next one may be touched)."""
        scenario = self._scenario
        if self._owed or self._pending or (self._is_first_step and scenario.first_step_seconds):
            return 0
        horizon = min(self._failure_at, self._repairs[0][0] if self._repairs else math.inf)
        compute_seconds = scenario.compute_seconds(plan.stacks)
        step_seconds = compute_seconds + scenario.reduce_seconds
        if horizon - self._now < step_seconds:
            return 0
        due = self._saves.due_at
        limit = self._quiet_limit()
        expected = (min(horizon, due) - self._now) / step_seconds
        count = limit if expected > limit else min(limit, int(1.1 * expected) + 4)
        if count <= 0:
            return 0
        durations = compute_seconds, scenario.reduce_seconds
        count, end, reduce_seconds = take_quiet_steps(self._draws, self._now, count, durations, horizon, due)
        if count == 0:
            return 0
        self._book_compute(end - self._now - reduce_seconds, plan.stacks)
        self._ledger.step("reduce", reduce_seconds)
        self._now = end
        self._commit(count, plan.stacks, plan.stacks)
        return count

    def _quiet_limit(self) -> int:
        """Steps until the end, the next checkpoint by steps, or the next failure that is bound to a step."""
        scenario = self._scenario
        limit = scenario.steps - self._step
        until_save = self._saves.steps_until_due(self._step)
        if until_save is not None:
            limit = min(limit, until_save)
        for failure in self._step_failures:
            if failure.step >= self._step:
                # A failure in a checkpoint strikes after its step.
                limit = min(limit, failure.step - self._step + (failure.phase == "checkpoint"))
        return limit

    def _run_step(self, plan: Plan) -> None:
        """One step, phase by phase, to its commit or to a global restart."""
        stacks, patches = plan.stacks, list[Replan]()
        if self._compute(plan):
            return
        if self._is_first_step and not self._pending:
            self._is_first_step = False
            seconds = self._draws["shrink"].next() * self._scenario.first_step_seconds
            self._spend("shrink", min(self._failure_at - self._now, seconds))
            self._collect("reduce")
        while True:
            while self._pending or self._owed:
                if self._decide():
                    return
                stacks += self._pay(patches)
            self._reduce()
            if not self._pending:
                break
        self._commit(1, stacks, plan.stacks + self._longest_patch(patches))

    def _reduce(self) -> None:
        """The all-reduce and the commit behind it; whole if no death is pending afterwards."""
        seconds = self._draws["reduce"].next() * self._scenario.reduce_seconds
        self._strike("reduce")
        if self._pending:
            return
        self._spend("reduce", min(self._failure_at - self._now, seconds))
        self._collect("reduce")
        if not self._pending:
            self._strike("commit")

    def _compute(self, plan: Plan) -> bool:
        """The compute phase; True where it ended in a global restart (notice=immediate)."""
        end = self._now + self._draws["compute"].next() * self._scenario.compute_seconds(plan.stacks)
        self._strike("compute")
        while self._scenario.notice == "immediate" and (self._pending or self._failure_at <= end):
            if not self._pending:
                self._book_compute(self._failure_at - self._now, plan.stacks)
                self._now = self._failure_at
                self._collect("compute")
            if self._decide():
                return True
        self._book_compute(end - self._now, plan.stacks)
        self._now = end
        self._collect("compute")
        return False

    def _commit(self, count: int, stacks: float, busiest: float) -> None:
        self._policy.on_commit()
        self._step += count
        self._committed += count
        self._stacks += count * stacks
        self._busiest += count * busiest

    def _book_compute(self, seconds: float, stacks: float) -> None:
        if self._scenario.wait_seconds:
            waiting = seconds * self._scenario.wait_seconds / self._scenario.compute_seconds(stacks)
            self._ledger.step("reduce", waiting)
            seconds -= waiting
        useful = seconds / stacks
        self._ledger.step("compute", useful)
        if useful != seconds:
            self._ledger.step("redundant", seconds - useful)

    def _spend(self, cause: str, seconds: float) -> None:
        self._ledger.step(cause, seconds)
        self._now += seconds

    # --- deaths -----------------------------------------------------------------------------------------------------

    def _peek(self) -> None:
        coming = self._failures.next()
        self._failure_at = math.inf if coming is None else coming[0]

    def _collect(self, phase: str) -> None:
        """Take the deaths up to now from the failure process; the policy hears of them at the next `_decide`."""
        while self._failure_at <= self._now:
            failure = self._failures.pop()
            assert failure is not None, "a peeked failure vanished"
            time, groups = failure
            self._peek()
            if not self._live.issuperset(groups):
                groups = tuple([group for group in groups if group in self._live])
            if groups:
                self._kill(time, groups, phase, "failure process")

    def _strike(self, phase: str) -> None:
        """Deaths that the scenario binds to this step and phase."""
        if not self._step_failures:
            return
        # A checkpoint follows the commit: there the step that is meant is the last one committed.
        step = self._step - 1 if phase == "checkpoint" else self._step
        due = [failure for failure in self._step_failures if failure.step == step and failure.phase == phase]
        if not due:
            return
        self._step_failures = [failure for failure in self._step_failures if failure not in due]
        struck = tuple(sorted({failure.group for failure in due} & self._live))
        if struck:
            self._failures.discard(struck)
            self._peek()
            self._kill(self._now, struck, phase, "scenario")

    def _kill(self, time: float, groups: tuple[int, ...], phase: str, cause: str) -> None:
        self._saves.cut_short(time, groups, self._live, self._step)
        self._live.difference_update(groups)
        self._pending.append((time, groups))
        self._counts["failures"] += len(groups)
        if self._scenario.repair_seconds is not None:
            for group in groups:
                ready = time + self._draws["repair"].next() * self._scenario.repair_seconds
                heapq.heappush(self._repairs, (ready, group))
        self._timeline.add(time, "failure", self._step, groups, phase=phase, cause=cause)

    def _take_pending(self) -> tuple[float, tuple[int, ...]]:
        """When the last of the pending deaths was, and all their groups; none is pending any more."""
        died_at, dead = self._pending[-1]
        if len(self._pending) > 1:
            dead = tuple(sorted([group for _, groups in self._pending for group in groups]))
        self._pending.clear()
        return died_at, dead

    def _decide(self) -> bool:
        """Tell the policy of all pending deaths at once. True: it wanted a global restart, which has been done."""
        if not self._pending:
            return False
        died_at, dead = self._take_pending()
        verdict = self._policy.on_failure(dead)
        if isinstance(verdict, Restart):
            self._counts["fatal"] += len(dead)
            self._restart(died_at, verdict)
            return True
        if verdict.patch_stacks:
            self._strike("recovery")
        self._owed.append((verdict, dead, self._now - died_at))
        return False

    def _pay(self, patches: list[Replan]) -> float:
        """Spend the seconds of all replans since the last synchronisation; returns their stacks on the critical path.

        Groups compute patches side by side: of several replans the longest sum of one group counts.

        Args:
            patches: all replans of the step; these are added.
        """
        scenario, draws = self._scenario, self._draws
        paid: list[Replan] = []
        stacks = 0.0
        owed, self._owed = self._owed, []
        for verdict, dead, detect in owed:
            shrink = draws["shrink"].next() * scenario.shrink_seconds
            replan = draws["replan"].next() * scenario.replan_seconds
            self._spend("shrink", shrink + replan)
            paid.append(verdict)
            patch, more = 0.0, max(self._longest_patch(paid) - stacks, 0.0)
            if more:
                patch = draws["patch"].next() * more * scenario.stack_seconds
                self._spend("patch", patch)
                stacks += more
            self._collect("recovery")
            self._saves.settle(self._now, self._live)
            longest = self._longest_patch(patches + paid) if self._timeline.is_kept else 0.0
            seconds = detect, shrink, replan, patch
            self._timeline.add_replan(self._now, self._step, dead, verdict, longest, seconds)
        patches += paid
        return stacks

    def _longest_patch(self, replans: list[Replan]) -> float:
        """Most stacks that one group computes of their patches."""
        if len(replans) < 2:
            return replans[0].patch_stacks if replans else 0.0
        units: Counter[int] = Counter()
        for replan in replans:
            units.update({group: len(patch) for group, patch in replan.patch.items() if group in self._live})
        return max(units.values(), default=0) / self._policy.micro_batches

    def _join(self) -> None:
        """Between steps: repaired groups take part again."""
        joined: list[int] = []
        while self._repairs and self._repairs[0][0] <= self._now:
            joined.append(heapq.heappop(self._repairs)[1])
        if not joined:
            return
        for group in joined:
            self._failures.revive(group, self._now)
        self._peek()
        self._live.update(joined)
        self._spend("shrink", self._draws["join"].next() * self._scenario.join_seconds)
        verdict = self._policy.on_join(tuple(sorted(joined)))
        if isinstance(verdict, Restart):
            self._restart(self._now, verdict)
            return
        self._counts["joins"] += len(joined)
        self._collect("recovery")
        self._timeline.add(self._now, "join", self._step, joined, stacks_after=verdict.stacks_after)

    # --- checkpoints and restarts -----------------------------------------------------------------------------------

    def _save(self) -> None:
        """A checkpoint of all committed steps."""
        end = self._saves.begin(self._step, self._now, self._live)
        told = self._saves.policy_is_told
        self._strike("checkpoint")
        while self._failure_at <= end or (told and self._pending):
            if not (told and self._pending):
                self._spend_on_save(self._failure_at)
                self._collect("checkpoint")
            elif self._decide():
                return
        self._spend_on_save(end)
        self._open_since = end
        self._saves.end(end, self._live)

    def _spend_on_save(self, until: float) -> None:
        self._ledger.fixed("save", until - self._now)
        self._now = until

    def _restart(self, died_at: float, verdict: Restart) -> None:
        """Everything back to the last checkpoint; deaths during it are put to the policy when training resumes."""
        self._saves.void(self._now, self._live)
        while True:
            down_from = max(died_at, self._open_since)
            self._ledger.undo()
            self._ledger.fixed("rework", down_from - self._now)
            self._unnoticed += self._now - down_from
            seconds = self._draws["restart"].next() * self._scenario.restart_seconds
            self._ledger.fixed("down", self._now - down_from + seconds)
            self._counts["global_restarts"] += 1
            self._counts["lost_steps"] += self._step - self._saves.safe_step
            self._live = set(range(self._scenario.groups))
            self._owed.clear()
            self._repairs.clear()
            if self._scenario.failures_in_restart:
                self._failures.reset(self._now)
            self._now += seconds
            if not self._scenario.failures_in_restart:
                self._failures.reset(self._now)
            self._peek()
            self._policy.on_restart()
            self._collect("restart")
            self._timeline.add_restart(self._now, self._step, self._saves.safe_step, verdict, self._now - down_from)
            self._step = self._saves.safe_step
            self._is_first_step = True
            self._open_since = self._now
            self._saves.restarted(self._now)
            self._give_up_if_fruitless()
            if not self._pending:
                return
            died_at, dead = self._take_pending()
            answer = self._policy.on_failure(dead)
            if isinstance(answer, Replan):
                self._owed.append((answer, dead, 0.0))
                return
            self._counts["fatal"] += len(dead)
            verdict = answer

    def _give_up_if_fruitless(self) -> None:
        scenario = self._scenario
        if self._saves.count > self._checkpoints_before:
            self._fruitless_restarts, self._checkpoints_before = 0, self._saves.count
        self._fruitless_restarts += 1
        if self._fruitless_restarts >= scenario.max_restarts_without_progress:
            raise _GivenUp(
                f"no progress: {self._fruitless_restarts} global restarts in a row without a new checkpoint "
                f"(step {self._saves.safe_step} of {scenario.steps})"
            )
        if self._now >= scenario.max_time_ratio * scenario.failure_free_seconds:
            raise _GivenUp(
                f"no progress: after {scenario.max_time_ratio:g} times the failure-free time only step "
                f"{self._saves.safe_step} of {scenario.steps} is safe"
            )


def simulate(
    scenario: Scenario, policy: Policy, failures: FailureProcess, seed: int = 0, timeline: bool = False
) -> Result:
    """Simulate one run; see `Engine`."""
    return Engine(scenario, policy, failures, seed, timeline).run()
