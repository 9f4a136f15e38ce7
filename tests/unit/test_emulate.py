"""Pads: the real computation counts towards the fixed time, a change of membership ends a reduction's pad."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.config import EmulateConfig
from trainer.emulate import Pacer


class Members:
    """A membership of which only a change matters here."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.newest = 1

    def is_stale(self, generation: int) -> bool:
        return self.newest > generation

    def move_on(self) -> None:
        with self.changed:
            self.newest = 2
            self.changed.notify_all()


def backend(seconds: float = 0.0, work: Any = None, stacks: float = 1.0) -> Any:
    """A backend whose reduction takes so long."""

    def reduce() -> Any:
        time.sleep(seconds)
        return work

    return SimpleNamespace(reduce=reduce, generation=1, stacks=stacks)


def pacer(members: Any = None, **settings: float) -> Pacer:
    return Pacer(EmulateConfig(**settings), micro_batches=2, membership=members or Members())


def timed(call: Any) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def compute(pacer: Pacer, units: int, seconds: float = 0.0) -> None:
    with pacer.units([(0, micro) for micro in range(units)]):
        time.sleep(seconds)


def test_nothing_is_padded_or_recorded_unless_it_is_asked_for() -> None:
    idle = pacer()
    assert timed(lambda: compute(idle, 100)) < 0.05
    assert timed(lambda: idle.reduce(backend())) < 0.05
    assert idle.record() == {}


def test_a_batch_of_units_is_padded_by_what_the_real_one_left() -> None:
    padded = pacer(unit_seconds=0.05)
    assert 0.2 <= timed(lambda: compute(padded, 4, seconds=0.05)) < 0.3
    fields = padded.record()["emulated"]
    assert 0.1 < fields["compute_padding"] < 0.151
    assert fields["compute_late"] == 0.0


def test_a_computation_that_takes_longer_is_recorded_once() -> None:
    padded = pacer(unit_seconds=0.01)
    compute(padded, 1, seconds=0.04)
    assert 0.03 <= padded.record()["emulated"]["compute_late"] < 0.2
    assert padded.record()["emulated"]["compute_late"] == 0.0


def test_only_a_reduction_that_succeeds_is_padded() -> None:
    padded = pacer(reduce_seconds=0.1)
    assert timed(lambda: padded.reduce(backend(work=[]))) < 0.05
    assert 0.1 <= timed(lambda: padded.reduce(backend())) < 0.2
    assert 0.05 < padded.record()["emulated"]["reduce_padding"] < 0.11


@pytest.mark.parametrize(("units", "late"), [(4, True), (1, False)])
def test_only_the_busiest_group_can_be_late_in_the_reduction(units: int, late: bool) -> None:
    padded = pacer(reduce_seconds=0.01)
    compute(padded, units)
    padded.reduce(backend(seconds=0.03, stacks=2.0))
    assert (padded.record()["emulated"]["reduce_late"] > 0.0) is late


def test_a_change_of_membership_ends_the_pad_of_a_reduction() -> None:
    members = Members()
    padded = pacer(members, reduce_seconds=30.0)
    threading.Timer(0.05, members.move_on).start()
    assert timed(lambda: padded.reduce(backend())) < 5.0
