"""The commit when ranks saw different things: whoever learns that another rank passed steps with the very same sums."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fault_tolerance.backends.live import LiveBackend
from fault_tolerance.policies import make_policy
from fault_tolerance.runtime.buckets import GradientBuckets
from fault_tolerance.runtime.communicator import CommunicatorError, MembershipChanged
from fault_tolerance.runtime.generation import Generation
from fault_tolerance.runtime.injection import Injector

GROUPS = 3
PEERS_PATCH_SECONDS = 7.0
"""What another survivor says in the commit of how long its patch took."""


class ScriptedCommunicator:
    """Sums of one group; the collective of the commit ends as the script says, perhaps while still in flight."""

    def __init__(self, commit: Exception | None) -> None:
        self._commit, self._begun, self.is_quiet = commit, 0, True

    def start_all_reduce(self, tensor: torch.Tensor, op: Any = None) -> None:
        self._begun += 1
        if op == dist.ReduceOp.MAX:
            tensor[2] = tensor[2].clamp(min=PEERS_PATCH_SECONDS)

    def wait(self, leave: int = 0) -> None:
        if self._begun == 3 and self._commit is not None:  # one bucket, the statistics, then the commit
            self.is_quiet = False
            raise self._commit

    def drop(self) -> None:
        """Nothing to let go of."""


class ScriptedMembership:
    """One survivor's membership; `published` is what it is told after its commit failed."""

    group, rank = 0, 0

    def __init__(self, published: Generation) -> None:
        self._next, self._published, self.left = published, 0, []
        self.errors: list[str] = []
        self.events: list[dict[str, Any]] = []

    @property
    def newest(self) -> int:
        return self._published

    @property
    def committed(self) -> int:
        return self._next.committed if self._published else 0

    def published(self, after: int, up_to: int) -> list[Generation]:
        return [self._next] if after < self._next.number <= up_to else []

    def next_generation(self, after: int) -> Generation:
        self._published, self._heard_at = self._next.number, time.monotonic()
        return self._next

    def heard_at(self, generation: int) -> float:
        return self._heard_at

    def is_stale(self, generation: int) -> bool:
        return self._published > generation

    def enter_commit(self, generation: int) -> bool:
        return True

    def leave_commit(self, committed: int | None) -> None:
        self.left.append(committed)

    def report_error(self, generation: int, error: str) -> None:
        self.errors.append(error)

    def progress(self, phase: str) -> None:
        """Nobody watches."""

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append({"event": kind, **fields})


def backend_in_commit(
    tmp_path: Path, ending: Exception | None, committed: int
) -> tuple[LiveBackend, ScriptedMembership, nn.Linear]:
    """A backend that holds the sums of step 0, whose commit will end so; `committed` is what the others then say."""
    model, endings = nn.Linear(4, 4, bias=False), [ending]
    buckets = GradientBuckets(list(model.parameters()), bucket_bytes=1 << 20, keep_local=True)
    membership = ScriptedMembership(Generation(2, 0, (0, 1), deaths=(2,), committed=committed))
    backend = LiveBackend(
        make_policy("spare", groups=GROUPS, redundancy=2, micro_batches=2, granularity="micro_batch"),
        membership,  # type: ignore[arg-type]
        Generation(1, 0, (0, 1, 2)),
        buckets,
        connect=lambda generation: ScriptedCommunicator(endings.pop() if endings else None),  # type: ignore[arg-type, return-value]
        vote=list,
        injector=Injector([], group=0, rank=0, folder=tmp_path),
    )
    for batch in backend.plan(0):
        backend.enter(batch)
        model(torch.ones(1, 4)).sum().backward()
    assert backend.reduce() is None
    return backend, membership, model


@pytest.mark.parametrize("ending", [CommunicatorError("a peer died"), MembershipChanged("superseded")])
def test_another_rank_passed_the_commit(tmp_path: Path, ending: Exception) -> None:
    backend, membership, model = backend_in_commit(tmp_path, ending, committed=1)
    sums = backend.buckets.reduced.clone()
    assert sums.abs().sum() > 0
    assert backend.commit(1.0)
    assert torch.equal(backend.buckets.reduced, sums)
    assert model.weight.grad is not None
    assert torch.equal(model.weight.grad, torch.ones(4, 4))
    assert membership.left == [None, 1]


def test_nobody_passed_the_commit(tmp_path: Path) -> None:
    backend, membership, _ = backend_in_commit(tmp_path, CommunicatorError("a peer died"), committed=0)
    assert not backend.commit(1.0)
    assert membership.left == [None]
    assert membership.errors == ["a peer died"]
    patch = backend.reduce()
    assert patch is not None
    assert sum(map(len, patch)) <= 2
    assert backend.live_groups == (0, 1)


def test_the_event_of_a_recovery_has_the_longest_patch_of_any_survivor(tmp_path: Path) -> None:
    backend, membership, model = backend_in_commit(tmp_path, CommunicatorError("a peer died"), committed=0)
    assert not backend.commit(1.0)
    before = time.time()
    while (work := backend.reduce()) is not None:
        for batch in work:
            backend.enter(batch)
            model(torch.ones(1, 4)).sum().backward()
    assert backend.commit(1.0)
    (event,) = membership.events
    assert (event["event"], event["groups"], event["step"]) == ("replan", [2], 0)
    assert before <= event["committed_unix_time"] <= time.time()
    seconds = event["seconds"]
    assert seconds["patch"] == PEERS_PATCH_SECONDS
    parts = ("take_up", "tear_down", "replan", "rebuild", "reduce")
    assert all(0 <= seconds[part] <= seconds["total"] < PEERS_PATCH_SECONDS for part in parts)


def test_the_commit_passed(tmp_path: Path) -> None:
    backend, membership, _ = backend_in_commit(tmp_path, None, committed=0)
    assert backend.commit(1.0)
    assert membership.left == [1]
