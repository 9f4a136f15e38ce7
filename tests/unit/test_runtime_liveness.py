"""Who is overdue, by the derived deadlines: the stuck one goes before those who wait for it."""

from __future__ import annotations

from typing import Any

import pytest

from fault_tolerance.runtime.deadlines import Deadlines
from fault_tolerance.runtime.liveness import LEARNED_FROM, Agreement, Liveness, Member

DEADLINES = Deadlines(30.0)


def member(**fields: Any) -> Member:
    values = {"group": 0, "rank": 0, "pid": 1, "link": None, "last_seen": 1000.0, "ready": True, "progress_at": 1000.0}
    return Member(**{**values, **fields})


def verdict(
    one: Member, now: float, agreement: Agreement | None = None, liveness: Liveness | None = None
) -> str | None:
    one.last_seen = max(one.last_seen, now - 1)  # its heart beats
    return (liveness or Liveness(DEADLINES)).overdue(one, agreement, True, now)


def test_the_cap_lies_below_the_patience_of_those_who_wait() -> None:
    for timeout in (0.5, 30.0, 600.0):
        deadlines = Deadlines(timeout)
        assert deadlines.stuck_floor <= deadlines.stuck_cap < deadlines.collective < deadlines.build
        assert deadlines.save_patience < deadlines.stuck_cap
        assert deadlines.heartbeat_interval * 3 < deadlines.heartbeat_lapse


@pytest.mark.parametrize("phase", ["compute", "optimizer", "checkpoint"])
def test_own_work_that_does_not_advance_is_stuck(phase: str) -> None:
    assert verdict(member(phase=phase), 1000.0 + DEADLINES.stuck_cap - 1) is None
    assert "stuck in " + phase in str(verdict(member(phase=phase), 1000.0 + DEADLINES.stuck_cap + 1))


@pytest.mark.parametrize("phase", ["reduce", "commit", "recovery", "ready"])
def test_who_waits_for_others_is_never_stuck(phase: str) -> None:
    assert verdict(member(phase=phase), 1000.0 + 100 * DEADLINES.stuck_cap) is None


def test_the_step_deadline_is_learned_between_floor_and_cap() -> None:
    quick, slow = Liveness(DEADLINES), Liveness(DEADLINES)
    for _ in range(LEARNED_FROM):
        quick.learn(0.1)
        slow.learn(1000.0)
    assert Liveness(DEADLINES).step_deadline == DEADLINES.stuck_cap
    assert quick.step_deadline == DEADLINES.stuck_floor
    assert slow.step_deadline == DEADLINES.stuck_cap
    assert "stuck" in str(verdict(member(phase="compute"), 1000.0 + DEADLINES.stuck_floor + 1, liveness=quick))


def test_a_group_ten_times_slower_than_its_past_stays() -> None:
    liveness = Liveness(DEADLINES)
    for _ in range(100):
        liveness.learn(5.0)
    assert verdict(member(phase="compute"), 1000.0 + 50.0, liveness=liveness) is None


def test_silence_and_a_missing_acknowledgement() -> None:
    silent = member()
    assert Liveness(DEADLINES).overdue(silent, None, True, 1000.0 + DEADLINES.heartbeat_lapse - 1) is None
    assert "silent" in str(Liveness(DEADLINES).overdue(silent, None, True, 1000.0 + DEADLINES.heartbeat_lapse + 1))
    agreement = Agreement(number=4, started=1000.0, noticed=1000.0, silent_seconds=0.0)
    late = member(phase="reduce", acknowledged=3)
    assert "acknowledge generation 4" in str(verdict(late, 1000.0 + DEADLINES.acknowledge + 1, agreement))
    late.acknowledged = 4
    assert verdict(late, 1000.0 + DEADLINES.acknowledge + 1, agreement) is None


def test_who_is_done_is_judged_no_more() -> None:
    assert Liveness(DEADLINES).overdue(member(done={}), None, True, 1e9) is None


def test_the_judges_own_pause_is_forgiven() -> None:
    one = member(phase="compute")
    agreement = Agreement(number=4, started=1000.0, noticed=1000.0, silent_seconds=0.0)
    now = 1000.0 + 500.0
    Liveness.forgive([one], agreement, 500.0, now)
    assert (one.last_seen, one.progress_at, agreement.started) == (now, now, now)
