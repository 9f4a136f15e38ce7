"""A second engine on SimGrid, to check the first: one host and one actor per group, a coordinator, a source of deaths.

It shares with our engine only the inputs: policies, failure process and the draws of durations. Time, concurrency and
order of events are SimGrid's. A group's compute takes as long as the units that the plan gives it, so it also checks
that `Plan.stacks` is the load of the busiest group. Not covered: repairs, deaths during a restart, failures bound to
steps, immediate notice.

SimGrid comes from Debian's `python3-simgrid`, built for the system's Python; a virtual environment of the same Python
version can load it. One process can hold only one SimGrid simulation: `scripts/check_simgrid.py` starts one per run.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

from fault_tolerance.failures import FailureProcess
from fault_tolerance.policies.base import Plan, Policy, Restart
from fault_tolerance.simulation.draws import Draws
from fault_tolerance.simulation.scenario import REWRITE_AFTER_STEPS, Scenario

SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")


def load_simgrid() -> ModuleType | None:
    """The module `simgrid`, also from Debian's folder inside a virtual environment; None where it is not there."""
    if importlib.util.find_spec("simgrid") is not None:
        return importlib.import_module("simgrid")
    for suffix in EXTENSION_SUFFIXES:
        path = SYSTEM_PACKAGES / f"simgrid{suffix}"
        if path.is_file():
            spec = importlib.util.spec_from_file_location("simgrid", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None


class SimGridRun:
    """One run; `run` may be called once per process."""

    def __init__(self, scenario: Scenario, policy: Policy, failures: FailureProcess, seed: int) -> None:
        """Raises ValueError for a scenario with an option that this engine does not cover, or without SimGrid."""
        uncovered = scenario.repair_seconds is not None or scenario.failures_in_restart or scenario.step_failures
        more = scenario.write_seconds or scenario.first_step_seconds or scenario.wait_seconds or scenario.save_parts
        if uncovered or more or scenario.notice != "synchronisation":
            raise ValueError(
                "SimGrid check: repairs, failures in restarts or bound to steps, saves written beside training, slow "
                "first steps, waiting, save_parts and notice=immediate are out"
            )
        simgrid = load_simgrid()
        if simgrid is None:
            raise ValueError(
                f"SimGrid is not there for Python {sys.version_info.major}.{sys.version_info.minor}: "
                "apt-get install python3-simgrid, with a virtual environment of the system's Python version"
            )
        self._simgrid = simgrid
        self._scenario = scenario
        self._policy = policy
        self._failures = failures
        self._draws = Draws(seed, scenario.noise_std)
        self._groups: dict[int, Any] = {}  # live actors
        self._orders: dict[int, Any] = {}  # per group a semaphore that says: there is work
        self._work: dict[int, float] = {}  # seconds of work of those that have not finished it
        self._deaths: list[int] = []  # that the policy has not been told of
        self._result: dict[str, Any] = dict.fromkeys(("failures", "global_restarts", "lost_steps", "checkpoints"), 0)

    def run(self) -> dict[str, Any]:
        """wall_seconds, time_to_train_ratio and counts."""
        engine = self._simgrid.Engine(["simulation"])
        zone = self._simgrid.NetZone.create_empty_zone("cluster")
        self._hosts = [zone.create_host(f"group-{group}", 1.0) for group in range(self._scenario.groups)]
        control = zone.create_host("control", 1.0)
        zone.seal()
        self._changed = self._simgrid.Semaphore(0)  # somebody finished or died
        self._simgrid.Actor.create("coordinator", control, self._coordinate, control)
        engine.run()
        self._result["time_to_train_ratio"] = self._result["wall_seconds"] / self._scenario.failure_free_seconds
        return self._result

    # --- actors -----------------------------------------------------------------------------------------------------

    def _group(self, group: int) -> None:
        """A group computes what it is told to on its host."""
        while True:
            self._orders[group].acquire()
            self._simgrid.this_actor.execute(self._work[group])
            del self._work[group]
            self._changed.release()

    def _reaper(self) -> None:
        """Kills groups when their time has come."""
        while (coming := self._failures.next()) is not None:
            self._simgrid.this_actor.sleep_until(coming[0])
            failure = self._failures.pop()
            assert failure is not None
            for group in failure[1]:
                self._groups.pop(group).kill()
                self._work.pop(group, None)
                self._deaths.append(group)
                self._result["failures"] += 1
            self._changed.release()

    def _coordinate(self, control: Any) -> None:
        """The training loop."""
        scenario, policy = self._scenario, self._policy
        self._control = control
        self._failures.reset(0.0)
        policy.on_start()
        self._start_groups()
        self._step = self._saved = 0
        self._rewrite_at: int | None = None
        self._period_start = 0.0
        while self._step < scenario.steps:
            plan = policy.plan_step(self._step)
            if self._train_step(plan):
                policy.on_commit()
                self._step += 1
                if self._step < scenario.steps and self._save_is_due():
                    self._save()
        self._result["wall_seconds"] = self._simgrid.Engine.clock
        self._simgrid.Actor.kill_all()

    # --- the coordinator's phases -----------------------------------------------------------------------------------

    def _train_step(self, plan: Plan) -> bool:
        """True: the step counts. False: everything restarted."""
        factor = self._draws["compute"].next() * self._scenario.stack_seconds / self._policy.micro_batches
        self._compute({group: len(plan.units_of(group)) * factor for group in self._groups if group in plan.live})
        while True:
            while self._deaths:
                if not self._recover():
                    return False
            if self._undisturbed(self._draws["reduce"].next() * self._scenario.reduce_seconds):
                return True

    def _compute(self, seconds: dict[int, float]) -> None:
        """Every group works for its seconds; returns when those that live are done."""
        for group, duration in seconds.items():
            if group in self._groups:
                self._work[group] = duration
                self._orders[group].release()
        while self._work:
            self._changed.acquire()

    def _undisturbed(self, seconds: float) -> bool:
        """Pass `seconds`; False as soon as a group dies."""
        end = self._simgrid.Engine.clock + seconds
        while not self._deaths:
            left = end - self._simgrid.Engine.clock
            if left <= 0:
                return True
            self._changed.acquire_timeout(left)
        return False

    def _recover(self) -> bool:
        """Replan and patch after the deaths up to now. False: everything restarted."""
        dead, self._deaths = sorted(self._deaths), []
        verdict = self._policy.on_failure(dead)
        if isinstance(verdict, Restart):
            self._restart()
            return False
        scenario, sleep = self._scenario, self._simgrid.this_actor.sleep_for
        sleep(self._draws["shrink"].next() * scenario.shrink_seconds)
        sleep(self._draws["replan"].next() * scenario.replan_seconds)
        if verdict.patch_stacks:
            factor = self._draws["patch"].next() * scenario.stack_seconds / self._policy.micro_batches
            self._compute({group: len(units) * factor for group, units in verdict.patch.items()})
        return True

    def _save_is_due(self) -> bool:
        scenario = self._scenario
        if self._step == self._rewrite_at:
            return True
        if scenario.checkpoint_every_steps is not None and self._step % scenario.checkpoint_every_steps == 0:
            return True
        if scenario.checkpoint_period_seconds is None:
            return False
        since = self._simgrid.Engine.clock - self._period_start
        return since >= scenario.checkpoint_period_seconds - scenario.save_seconds

    def _save(self) -> None:
        end = self._simgrid.Engine.clock + self._draws["save"].next() * self._scenario.save_seconds
        self._rewrite_at = None
        if self._scenario.masked_death_in_save == "rewritten":
            self._simgrid.this_actor.sleep_until(end)
            if self._deaths:  # noticed in the step that follows
                self._rewrite_at, self._period_start = self._step + REWRITE_AFTER_STEPS, self._simgrid.Engine.clock
                return
        owed = []
        while not self._undisturbed(end - self._simgrid.Engine.clock):
            dead, self._deaths = sorted(self._deaths), []
            if isinstance(self._policy.on_failure(dead), Restart):
                self._restart()
                return
            owed.append(dead)
        self._saved = self._step
        self._period_start = self._simgrid.Engine.clock
        self._result["checkpoints"] += 1
        for _ in owed:  # rebuilding waits for the save; between steps there is nothing to patch
            self._simgrid.this_actor.sleep_for(self._draws["shrink"].next() * self._scenario.shrink_seconds)
            self._simgrid.this_actor.sleep_for(self._draws["replan"].next() * self._scenario.replan_seconds)

    def _restart(self) -> None:
        for actor in (self._killer, *self._groups.values()):
            actor.kill()
        self._groups.clear()
        self._simgrid.this_actor.sleep_for(self._draws["restart"].next() * self._scenario.restart_seconds)
        self._failures.reset(self._simgrid.Engine.clock)
        self._policy.on_restart()
        self._result["global_restarts"] += 1
        self._result["lost_steps"] += self._step - self._saved
        self._step = self._saved
        self._rewrite_at = None
        self._period_start = self._simgrid.Engine.clock
        self._start_groups()

    def _start_groups(self) -> None:
        create = self._simgrid.Actor.create
        for group, host in enumerate(self._hosts):
            self._orders[group] = self._simgrid.Semaphore(0)
            self._groups[group] = create(f"group-{group}", host, self._group, group)
        self._deaths.clear()
        self._killer = create("reaper", self._control, self._reaper)
