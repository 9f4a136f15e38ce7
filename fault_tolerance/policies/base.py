"""The contract of a fault-tolerance policy: what runs where in a step, and what to do when groups die.

A policy is a deterministic state machine without clock, I/O or torch. The live backend and the simulator
drive the same object, so what is simulated is what runs. Words (group, shard type, unit, stack, S, wipe-out,
patch) are those of the README's glossary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

Unit = tuple[int, int]
"""(shard type, micro-batch): the smallest piece of work of a step."""


class Plan(Protocol):
    """Which live group computes which units in which order, and whose result counts."""

    @property
    def stacks(self) -> float:
        """Largest load of a live group in shard types (1.0 = failure-free SPARe): units / micro_batches."""

    @property
    def live(self) -> tuple[int, ...]:
        """Live groups in ascending order."""

    def units_of(self, group: int) -> tuple[Unit, ...]:
        """Units that `group` computes, in order (duplicates of other groups' units included)."""

    def counted_of(self, group: int) -> tuple[Unit, ...]:
        """Units of `group` that enter the step's gradient; over all live groups each unit exactly once."""


class Replan(NamedTuple):
    """The step goes on without the dead groups.

    Attributes:
        patch: for each survivor that has to, the units it computes now so that the step in flight is complete;
            each missing unit stands at exactly one survivor.
        patch_stacks: the longest patch of a survivor in shard types (units / micro_batches).
        phase: which phase of RECTLR decided: 0 fixed order, 1 minimum (S or the load rose, or the lost work was handed
            out, and no survivor's own work moved), 2 reorder (-1: no reordering policy).
        moves: how many types (micro_batch granularity: units) a group computes in the steps to come that it would not
            have computed before.
        stacks_before, stacks_after: `Plan.stacks` before and after.
        plan: the plan of the steps to come.
    """

    patch: Mapping[int, tuple[Unit, ...]]
    patch_stacks: float
    phase: int
    moves: int
    stacks_before: float
    stacks_after: float
    plan: Plan


class Restart(NamedTuple):
    """No way on with the live groups: global restart from the last checkpoint.

    Attributes:
        lost_types: shard types without a live host (empty where the policy cannot mask any failure).
        reason: one line for people.
    """

    lost_types: tuple[int, ...]
    reason: str


@runtime_checkable
class Policy(Protocol):
    """A fault-tolerance policy. Deterministic, picklable, without clock or I/O.

    One step runs `plan_step`, any number of `on_failure`, then `on_commit`. `on_join` is legal between steps only.

    Attributes:
        masks_failures: whether it may go on without a group; if not, `on_failure` always gives `Restart`.
        sums_kept: gradient sums that a live group keeps apart in a step, because a death decides only later which of
            its types count. 1: all that a group computes counts together or not at all.
    """

    groups: int
    micro_batches: int
    masks_failures: bool
    sums_kept: int

    def on_start(self) -> Plan:
        """All groups live, initial order; returns the first plan."""

    def plan_step(self, step: int) -> Plan:
        """Plan of `step` over the live groups; the same object until the membership changes.

        The step is in flight from here to `on_commit`. Asking again for the same step in between changes nothing;
        another number begins another step, of which nobody holds anything yet.
        """

    def on_failure(
        self, dead: Collection[int], computed: Mapping[int, Collection[Unit]] | None = None
    ) -> Replan | Restart:
        """`dead` groups (one or several at once) are gone, in the middle of the step in flight or between steps.

        Args:
            dead: groups that were live until now. The order does not matter.
            computed: for each survivor the units whose gradient it holds for the step in flight. None means: each
                survivor holds (or will hold, before it synchronises) all that was asked of it in this step, earlier
                patches included. A mapping stands for the whole of what is held, earlier patches included, and replaces
                that assumption for the rest of the step. Between steps (no step planned, or committed) nothing is
                missing and the patch is empty.

        Raises:
            ValueError: a group is unknown or already dead.
        """

    def on_join(self, joined: Collection[int]) -> Replan | Restart:
        """Repaired groups take part again from the next step on."""

    def on_commit(self) -> None:
        """The step in flight counts."""

    def on_restart(self) -> Plan:
        """Global restart: all groups live, initial order."""
