"""The live backend: a policy decides, communicators sum, the membership says who is there.

One class for every method: `ckpt`, `rep` and `spare` differ in their policy alone, and in whether local sums are kept.
A change of membership is applied in one place, before a reduction, and every rank of every survivor applies the same
changes in the same order and in the same step: inside a group its ranks agree on how far to go (`vote`), between
groups each published generation names the step that was in flight.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist

from fault_tolerance.backends.base import Batch, GlobalRestart, Vote, Work
from fault_tolerance.policies.base import Plan, Policy, Replan, Restart
from fault_tolerance.runtime.buckets import GradientBuckets
from fault_tolerance.runtime.communicator import Communicator, CommunicatorError, MembershipChanged
from fault_tolerance.runtime.generation import Generation
from fault_tolerance.runtime.injection import Injector
from fault_tolerance.runtime.membership import Membership


class LiveBackend:
    """Fault tolerance of the data-parallel layer for one rank (see `fault_tolerance.backends.base.Backend`).

    Args:
        first: the generation that this rank starts in.
        connect: builds the communicator of a generation; may raise MembershipChanged or CommunicatorError.
    """

    def __init__(
        self,
        policy: Policy,
        membership: Membership,
        first: Generation,
        buckets: GradientBuckets,
        *,
        connect: Callable[[Generation], Communicator],
        vote: Vote,
        injector: Injector,
    ) -> None:
        self.buckets = buckets
        self._policy, self._membership, self._injector = policy, membership, injector
        self._connect, self._vote = connect, vote
        self._applied = first
        self._communicator: Communicator | None = None
        self._group = membership.group
        self._plan: Plan = policy.on_start()
        self._step = first.committed
        self._planned_stacks = self._plan.stacks
        self._patched: Counter[int] = Counter()  # units handed to each group as patches of the step in flight
        self._started_buckets = 0
        self._recovery: _Recovery | None = None

    # -- the verbs of a step ----------------------------------------------------------------------------------------

    def plan(self, step: int) -> Work:
        self._step = step
        self._plan = self._policy.plan_step(step)
        self._planned_stacks = self._plan.stacks
        self._patched.clear()
        self._started_buckets = 0
        self.buckets.begin_step()
        return self._batches(self._plan.units_of(self._group))

    def _batches(self, units: Batch) -> Work:
        if self.buckets.slots == 1:
            return [units] if units else []
        types = list(dict.fromkeys(kind for kind, _ in units))
        return [[unit for unit in units if unit[0] == kind] for kind in types]

    def enter(self, batch: Batch) -> None:
        self.buckets.select(self._slot(batch[0][0]))

    def _slot(self, shard_type: int) -> int:
        if self.buckets.slots == 1:
            return 0
        hosted = dict.fromkeys(kind for kind, _ in self._plan.units_of(self._group))
        return list(hosted).index(shard_type)

    def overlap(self) -> None:
        if self.buckets.slots > 1 or self._communicator is None or self._is_stale():
            return
        self.buckets.arm(self._start_bucket_early)

    def reduce(self) -> Work | None:
        self.buckets.disarm()
        while True:
            (target,) = self._vote([self._membership.newest])
            pending = self._membership.published(self._applied.number, target)
            if pending:
                return self._apply(pending[0])
            self._membership.progress("reduce")
            self._injector.at("reduce", self._step)
            (succeeded,) = self._vote([self._try_reduce()])
            if succeeded:
                self.buckets.combine()
                return None
            self._give_up_communicator()
            self._membership.next_generation(after=self._applied.number)

    def commit(self, check: float) -> bool:
        self._membership.progress("commit")
        self._injector.at("commit", self._step)
        passed = False
        if self._membership.enter_commit(self._applied.number):
            try:
                passed = self._try_commit(check)
            finally:
                self._membership.leave_commit(self._step + 1 if passed else None)
        if not passed:
            self._give_up_communicator(keep_sums=True)
            self._membership.next_generation(after=self._applied.number)
            passed = self._membership.committed > self._step  # another rank passed: everyone holds the sums
            if passed:
                self._membership.leave_commit(self._step + 1)
        if passed:
            self._policy.on_commit()
            self.buckets.expose_reduced()
            self._report_recovery()
        return passed

    # -- reduction --------------------------------------------------------------------------------------------------

    def _is_stale(self) -> bool:
        return self._membership.is_stale(self._applied.number)

    def _try_reduce(self) -> bool:
        try:
            self._reduce_buckets(self._connected())
        except MembershipChanged:
            return False
        except CommunicatorError as error:
            self._membership.report_error(self._applied.number, str(error))
            return False
        finally:
            self._started_buckets = 0
        return True

    def _reduce_buckets(self, communicator: Communicator) -> None:
        buckets, stored = self.buckets, 0
        if self._started_buckets == 0:
            buckets.begin_reduce()
        for bucket in range(self._started_buckets, len(buckets)):
            if buckets.in_flight is not None and bucket - stored == buckets.in_flight:
                communicator.wait(leave=buckets.in_flight - 1)
                buckets.store_bucket(stored)
                stored += 1
            self._start_bucket(bucket)
        communicator.start_all_reduce(buckets.load_statistics(self._counted_slots()))
        communicator.wait()
        for bucket in range(stored, len(buckets)):
            buckets.store_bucket(bucket)
        buckets.finish()

    def _connected(self) -> Communicator:
        if self._communicator is None:
            began = time.monotonic()
            self._communicator = self._connect(self._applied)
            if self._recovery:
                self._recovery.patched, self._recovery.rebuilt = began, time.monotonic()
        return self._communicator

    def _start_bucket(self, bucket: int) -> None:
        """Begins the all-reduce of one bucket."""
        assert self._communicator is not None
        self._communicator.start_all_reduce(self.buckets.load_bucket(bucket, self._counted_slots()))
        self._started_buckets = bucket + 1

    def _start_bucket_early(self, bucket: int) -> None:
        """In the backward pass: what goes wrong here is for `reduce` to find."""
        if bucket == self._started_buckets and not self._is_stale():
            with contextlib.suppress(CommunicatorError):
                self._start_bucket(bucket)

    def _counted_slots(self) -> list[int]:
        """Slots whose sums enter the gradient; with one slot, all of it or nothing."""
        counted = dict.fromkeys(kind for kind, _ in self._plan.counted_of(self._group))
        return list(dict.fromkeys(self._slot(kind) for kind in counted))

    def _give_up_communicator(self, keep_sums: bool = False) -> None:
        """`keep_sums`: all buckets are reduced, so that whatever is still on its way writes to none of them."""
        if self._communicator is None:
            return
        was_quiet = self._communicator.is_quiet
        self._communicator.drop()
        self._communicator = None
        self._started_buckets = 0
        if self.buckets.keep_local and not was_quiet and not keep_sums:
            self.buckets.renew_reduced()

    def _try_commit(self, check: float) -> bool:
        """The one all-reduce of the commit: every rank enters it after its whole group holds the sums."""
        assert self._communicator is not None
        if not math.isfinite(check):
            check = 0.0  # a gradient that is not finite is the loop's affair, on all groups alike
        patched = self._recovery.patch_seconds if self._recovery else 0.0
        ballot = torch.tensor([check, -check, patched], dtype=torch.float64)
        try:
            self._communicator.start_all_reduce(ballot, dist.ReduceOp.MAX)
            self._communicator.wait()
        except MembershipChanged:
            return False
        except CommunicatorError as error:
            self._membership.report_error(self._applied.number, str(error))
            return False
        if ballot[0] != -ballot[1]:
            raise GlobalRestart(
                f"groups disagree on the gradient norm of step {self._step} ({-ballot[1]:.9g} to {ballot[0]:.9g}): "
                "one of them holds other bits"
            )
        if self._recovery:
            self._recovery.longest_patch_seconds = ballot[2].item()
        return True

    # -- a change of membership -------------------------------------------------------------------------------------

    def _apply(self, generation: Generation) -> Work:
        assert generation.committed == self._step, "a generation is applied in the step that it names"
        took_up = time.monotonic()
        self._give_up_communicator()
        self._membership.progress("recovery")
        self._injector.at("recovery", self._step)
        if not self.buckets.keep_local:
            raise GlobalRestart("; ".join(generation.causes) or "a collective failed")
        self._applied = generation
        began = time.monotonic()
        decision = self._policy.on_failure(generation.deaths) if generation.deaths else None
        replanned = time.monotonic()
        if isinstance(decision, Restart):
            raise GlobalRestart(decision.reason)
        if decision is None:
            return []
        self._plan = decision.plan
        for group in generation.deaths:
            del self._patched[group]
        self._patched.update({group: len(units) for group, units in decision.patch.items()})
        self._recovery = _Recovery(
            generation,
            decision,
            published=self._membership.heard_at(generation.number),
            took_up=took_up,
            began=began,
            replanned=replanned,
            patch_stacks=self._patch_stacks,
            earlier=self._recovery,
        )
        return self._batches(tuple(decision.patch.get(self._group, ())))

    def _report_recovery(self) -> None:
        if self._recovery and self._membership.rank == 0 and self._group == self._applied.live[0]:
            self._membership.event("replan", step=self._step, **self._recovery.fields(time.monotonic()))
        self._recovery = None

    @property
    def stacks(self) -> float:
        return self._planned_stacks + self._patch_stacks

    @property
    def _patch_stacks(self) -> float:
        """The longest patch of one group in this step; groups compute theirs side by side."""
        return max(self._patched.values(), default=0) / self._policy.micro_batches

    @property
    def live_groups(self) -> tuple[int, ...]:
        return self._applied.live

    @property
    def generation(self) -> int:
        return self._applied.number


class _Recovery:
    """Times of one recovery (a chain of them where failures nest), for the event `replan`. Seconds, monotonic.

    Args:
        published: when this rank heard of the generation.
        took_up: when its main thread turned to it.
        began, replanned: around the policy's decision.
        patch_stacks: of all patches of this step, the longest at one group.
    """

    def __init__(
        self,
        generation: Generation,
        decision: Replan,
        *,
        published: float,
        took_up: float,
        began: float,
        replanned: float,
        patch_stacks: float,
        earlier: _Recovery | None,
    ) -> None:
        self._generation, self._decision = generation, decision
        self._published, self._took_up, self._began, self._replanned = published, took_up, began, replanned
        self._noticed: float = earlier._noticed if earlier else published - generation.noticed_seconds_ago
        self._detect_seconds: float = max(generation.silent_seconds, earlier._detect_seconds if earlier else 0.0)
        self._patch_stacks = patch_stacks
        self._deaths: tuple[int, ...] = (*(earlier._deaths if earlier else ()), *generation.deaths)
        self._stacks_before: int | float = earlier._stacks_before if earlier else decision.stacks_before
        self._patch_seconds_before = earlier.patch_seconds if earlier else 0.0
        self.patched = replanned
        self.rebuilt = replanned
        self.longest_patch_seconds = 0.0
        """Most patch seconds of any group: what the step waited for."""

    @property
    def patch_seconds(self) -> float:
        """This group's seconds of patch compute."""
        return self._patch_seconds_before + self.patched - self._replanned

    def fields(self, committed: float) -> dict[str, object]:
        """Fields of the event; `committed` is when the step committed."""
        decision = self._decision
        return {
            "generation": self._generation.number,
            "groups": list(self._deaths),
            "live": len(self._generation.live),
            "phase": decision.phase,
            "moves": decision.moves,
            "stacks_before": self._stacks_before,
            "stacks_after": decision.stacks_after,
            "patch_stacks": self._patch_stacks,
            "committed_unix_time": time.time() - (time.monotonic() - committed),
            "seconds": {
                "detect": self._detect_seconds,
                "agree": self._generation.noticed_seconds_ago,
                "take_up": self._took_up - self._published,
                "tear_down": self._began - self._took_up,
                "replan": self._replanned - self._began,
                "patch": max(self.longest_patch_seconds, self.patch_seconds),
                "rebuild": self.rebuilt - self.patched,
                "reduce": committed - self.rebuilt,
                "total": committed - self._noticed,
            },
        }
