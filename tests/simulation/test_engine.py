"""The engine on paper: runs so small that every second can be counted by hand."""

from __future__ import annotations

import pytest
from scenarios import REDUCE, REPLAN, RESTART, SAVE, SHRINK, STACK, run, scenario

from fault_tolerance.failures import Trace, Weibull
from fault_tolerance.policies.factory import make_policy
from fault_tolerance.simulation.engine import simulate
from fault_tolerance.simulation.scenario import StepFailure

STEP = STACK + REDUCE
QUIET = 20 * STEP + 3 * SAVE  # 20 steps; the checkpoint after the last step is not waited for


def kinds(result) -> list[str]:
    return [event["event"] for event in result.events]


@pytest.mark.parametrize("backend", ["ckpt", "spare"])
def test_without_failures_only_saves_are_added(backend: str) -> None:
    result = run(backend)
    assert result.wall_seconds == pytest.approx(QUIET)
    assert result.time_to_train_ratio == pytest.approx(QUIET / (20 * STEP))
    assert result.seconds_by_cause["compute"] == pytest.approx(20 * STACK)
    assert result.seconds_by_cause["redundant"] == 0
    assert result.checkpoints == 3
    assert result.mean_stacks == 1.0
    assert result.availability == 1.0


def test_replication_computes_all_its_stacks() -> None:
    result = run("rep", redundancy=3)
    assert result.seconds_by_cause["compute"] == pytest.approx(20 * STACK)
    assert result.seconds_by_cause["redundant"] == pytest.approx(40 * STACK)
    assert result.mean_stacks == 3.0


def test_death_in_compute_is_seen_at_the_synchronisation_and_patched() -> None:
    # Step 1 runs from 12 to 24; its compute ends at 22.
    result = run("spare", [(15.0, (2,))], steps=2, checkpoint_every_steps=None)
    assert result.seconds_by_cause["shrink"] == pytest.approx(SHRINK + REPLAN)
    assert result.seconds_by_cause["patch"] == pytest.approx(STACK)
    assert result.wall_seconds == pytest.approx(2 * STEP + SHRINK + REPLAN + STACK)
    assert (result.failures, result.masked_failures, result.global_restarts) == (1, 1, 0)
    assert result.mean_stacks == pytest.approx(1.5)
    failure, replan = result.events[1:3]
    assert failure == {
        "time": 15.0,
        "event": "failure",
        "step": 1,
        "generation": 0,
        "groups": [2],
        "phase": "compute",
        "cause": "failure process",
    }
    assert replan["seconds"]["detect"] == pytest.approx(7.0)
    assert replan["seconds"]["total"] == pytest.approx(7.0 + SHRINK + REPLAN + STACK)
    assert (replan["stacks_before"], replan["stacks_after"], replan["patch_stacks"]) == (1.0, 2.0, 1.0)


def test_micro_batches_are_spread_so_the_patch_is_shorter() -> None:
    result = run("spare", [(15.0, (2,))], granularity="micro_batch", micro_batches=4, steps=2)
    assert result.seconds_by_cause["patch"] == pytest.approx(STACK / 4)  # 4 units over 7 survivors: one each


def test_death_in_the_all_reduce_breaks_it() -> None:
    result = run("spare", [(11.0, (2,))], steps=1, checkpoint_every_steps=None)
    assert result.seconds_by_cause["reduce"] == pytest.approx(1.0 + REDUCE)
    assert result.wall_seconds == pytest.approx(STEP + 1.0 + SHRINK + REPLAN + STACK)


def test_patches_of_one_synchronisation_are_computed_side_by_side() -> None:
    one = {"steps": 1, "checkpoint_every_steps": None}
    together = run("spare", [(3.0, (0,)), (6.0, (4,))], notice="immediate", **one)  # two replans, two groups patch
    assert together.seconds_by_cause["patch"] == pytest.approx(STACK)
    assert together.mean_stacks == together.busiest_stacks == 2.0
    # The second death breaks the all-reduce that follows the first patch: another group patches after it.
    after = run("spare", [(3.0, (0,)), (21.0, (4,))], notice="immediate", **one)
    assert after.seconds_by_cause["patch"] == pytest.approx(2 * STACK)
    assert (after.mean_stacks, after.busiest_stacks) == (3.0, 2.0)


def test_waiting_belongs_to_the_compute_phase_and_is_no_redundant_work() -> None:
    result = run("spare", wait_seconds=4.0, steps=2, checkpoint_every_steps=None)
    assert result.wall_seconds == result.failure_free_seconds == pytest.approx(2 * (STEP + 4.0))
    doubled = run("rep", redundancy=2, wait_seconds=4.0, steps=2, checkpoint_every_steps=None)
    assert doubled.seconds_by_cause["compute"] == pytest.approx(2 * STACK)
    assert doubled.seconds_by_cause["reduce"] == pytest.approx(2 * (REDUCE + 4.0))
    assert doubled.seconds_by_cause["redundant"] == pytest.approx(2 * STACK)


def test_death_in_a_patch_goes_round_again() -> None:
    # Seen at 10; shrink and replan until 10.75, patch until 20.75: the second death falls into it.
    once = run("spare", [(5.0, (2,))], steps=1)
    twice = run("spare", [(5.0, (2,)), (15.0, (5,))], steps=1)
    assert twice.failures == twice.masked_failures == 2
    assert twice.seconds_by_cause["patch"] > once.seconds_by_cause["patch"]
    assert kinds(twice) == ["start", "failure", "failure", "replan", "replan", "end"]
    assert twice.events[2]["phase"] == "recovery"


def test_wipe_out_goes_back_to_the_checkpoint() -> None:
    # The save after step 5 ends at 65; steps 5 and 6 commit at 77 and 89; the death is seen at 99.
    result = run("ckpt", [(92.0, (0,))])
    assert (result.failures, result.masked_failures, result.global_restarts, result.lost_steps) == (1, 0, 1, 2)
    assert result.seconds_by_cause["down"] == pytest.approx(7.0 + RESTART)
    assert result.unnoticed_seconds == pytest.approx(7.0)
    assert result.availability_from_notice == pytest.approx(1 - RESTART / result.wall_seconds)
    assert result.seconds_by_cause["rework"] == pytest.approx(2 * STEP + 3.0)
    assert result.wall_seconds == pytest.approx(QUIET + 2 * STEP + 3.0 + 7.0 + RESTART)
    (restart,) = [event for event in result.events if event["event"] == "restart"]
    assert (restart["from_step"], restart["to_step"], restart["lost_steps"]) == (7, 5, 2)


def test_immediate_notice_does_not_wait_for_the_synchronisation() -> None:
    result = run("ckpt", [(92.0, (0,))], notice="immediate")
    assert result.seconds_by_cause["down"] == pytest.approx(RESTART)
    assert result.wall_seconds == pytest.approx(QUIET + 2 * STEP + 3.0 + RESTART)
    masked = run("spare", [(15.0, (2,))], steps=2, notice="immediate")
    assert masked.wall_seconds == pytest.approx(2 * STEP + SHRINK + REPLAN + STACK)


def test_death_in_a_save_voids_it_only_if_all_restart() -> None:
    ckpt = run("ckpt", [(62.0, (0,))])
    assert (ckpt.lost_steps, ckpt.global_restarts) == (5, 1)
    assert [e["status"] for e in ckpt.events if e["event"] == "checkpoint"] == [
        "failed",
        "written",
        "written",
        "written",
    ]
    assert ckpt.seconds_by_cause["save"] == pytest.approx(3 * SAVE + 2.0)
    spare = run("spare", [(62.0, (0,))])
    assert (spare.lost_steps, spare.global_restarts, spare.checkpoints) == (0, 0, 3)
    assert spare.seconds_by_cause["patch"] == 0  # between steps nothing is missing


def test_a_masked_death_may_make_a_save_void() -> None:
    result = run("spare", [(62.0, (0,))], masked_death_in_save="rewritten")
    saves = [(e["status"], e["step"]) for e in result.events if e["event"] == "checkpoint"]
    assert saves == [("failed", 5), ("written", 7), ("written", 10), ("written", 15)]
    assert result.seconds_by_cause["save"] == pytest.approx(4 * SAVE)
    # All hosts of a type die before the next save: back to the start, not to step 5.
    wiped = run("spare", [(62.0, (0,)), (70.0, tuple(range(1, 8)))], masked_death_in_save="rewritten")
    assert (wiped.lost_steps, wiped.global_restarts) == (5, 1)
    survived = run("spare", [(62.0, (0,)), (70.0, tuple(range(1, 8)))])
    assert (survived.lost_steps, survived.global_restarts) == (0, 1)


def test_what_is_written_beside_training_counts_when_it_is_whole() -> None:
    """The save of step 5 ends at 65 and is whole at 81: a restart at 80 goes back to the start, one at 82 to step 5."""
    beside = {"write_seconds": 16.0, "masked_death_in_save": "rewritten"}
    for death, lost, saved in ((80.0, 6, 0), (82.0, 1, 5)):
        result = run("ckpt", [(death, (0,))], notice="immediate", **beside)
        (restart,) = [event for event in result.events if event["event"] == "restart"]
        assert (result.lost_steps, restart["to_step"]) == (lost, saved)
    # The part of group g of 8 is whole at 65 + 2 (g + 1) s: at 70 that of group 1, not that of group 6.
    masked = run("spare", [(70.0, (1,))], **beside)
    assert masked.checkpoints == 3 and "failed" not in [event.get("status") for event in masked.events]
    cut_short = run("spare", [(70.0, (6,))], **beside)
    saves = [(event["status"], event["step"]) for event in cut_short.events if event["event"] == "checkpoint"]
    assert saves == [("failed", 5), ("written", 7), ("written", 10), ("written", 15)]


def test_only_the_deaths_of_writers_make_a_save_void() -> None:
    writers = {"save_parts": 2, "masked_death_in_save": "rewritten"}
    assert run("spare", [(62.0, (3,))], **writers).checkpoints == 3
    cut_short = run("spare", [(62.0, (1,))], **writers)
    saves = [(event["status"], event["step"]) for event in cut_short.events if event["event"] == "checkpoint"]
    assert saves[:2] == [("failed", 5), ("written", 7)]


def test_parts_keep_their_order_when_a_writer_dies() -> None:
    """Two writers, the save of step 5 from 65 to 81: group 0 is done at 73, its death then changes nothing for 1."""
    writers = {"save_parts": 2, "write_seconds": 16.0, "masked_death_in_save": "rewritten"}
    for group, whole in ((1, False), (2, True)):
        result = run("spare", [(74.0, (0,)), (76.0, (group,))], **writers)
        first = next(event for event in result.events if event["event"] == "checkpoint")
        assert (first["status"] == "written") is whole


def test_a_save_waits_for_the_one_that_is_still_written() -> None:
    result = run("spare", write_seconds=70.0)  # the first save ends at 65, the second one is due at 125
    assert result.seconds_by_cause["save"] == pytest.approx(3 * SAVE + 2 * 10.0)
    saves = [event["time"] for event in result.events if event["event"] == "checkpoint"]
    assert saves[:2] == pytest.approx([135.0, 210.0])


def test_first_steps_take_longer() -> None:
    quiet = run("ckpt", first_step_seconds=7.0)
    assert quiet.wall_seconds == pytest.approx(QUIET + 7.0)
    restarted = run("ckpt", [(90.0, (0,))], first_step_seconds=7.0)
    assert restarted.seconds_by_cause["shrink"] == pytest.approx(14.0)
    masked = run("spare", [(12.0, (0,))], first_step_seconds=7.0, steps=1)  # it strikes there, and is patched
    assert masked.seconds_by_cause["patch"] == pytest.approx(STACK)


def test_deaths_in_a_restart_count_where_groups_age_in_it() -> None:
    deaths = [(5.0, (0,)), (50.0, (1,)), (170.0, (2,))]
    deaf = run("ckpt", deaths[:2])
    assert (deaf.failures, deaf.global_restarts) == (1, 1)
    aging = run("ckpt", deaths, failures_in_restart=True)
    assert (aging.failures, aging.global_restarts) == (3, 3)
    assert aging.seconds_by_cause["down"] == pytest.approx(5.0 + 3 * RESTART)
    masked = run("spare", [(5.0, (0, 1, 2, 3, 4, 5)), (50.0, (7,))], failures_in_restart=True)
    assert (masked.failures, masked.masked_failures, masked.global_restarts) == (7, 1, 1)


def test_repaired_groups_come_back_between_steps() -> None:
    result = run("spare", [(15.0, (2,))], repair_seconds=20.0, join_seconds=3.0)
    assert result.joins == 1
    (join,) = [event for event in result.events if event["event"] == "join"]
    assert join["groups"] == [2] and join["stacks_after"] == 1.0
    assert result.seconds_by_cause["shrink"] == pytest.approx(SHRINK + REPLAN + 3.0)
    # Step 1 with its patch ends at 34.75; step 2 with S = 2 ends at 56.75: one step at two stacks.
    assert result.seconds_by_cause["redundant"] == pytest.approx(STACK)


def test_failures_bound_to_steps_strike_once_and_in_their_phase() -> None:
    bound = tuple(
        StepFailure(step, group, phase)
        for step, group, phase in [(1, 0, "compute"), (2, 3, "reduce"), (3, 6, "commit"), (4, 5, "checkpoint")]
    )
    result = run("spare", redundancy=7, groups=50, step_failures=bound)
    struck = [(e["step"], e["groups"][0], e["phase"]) for e in result.events if e["event"] == "failure"]
    assert struck == [(1, 0, "compute"), (2, 3, "reduce"), (3, 6, "commit"), (5, 5, "checkpoint")]
    ckpt = run("ckpt", step_failures=bound[:1])
    assert (ckpt.failures, ckpt.global_restarts) == (1, 1)


def test_failure_bound_to_recovery_strikes_in_the_patch() -> None:
    bound = (StepFailure(1, 0, "compute"), StepFailure(1, 4, "recovery"))
    result = run("spare", step_failures=bound)
    assert [e["phase"] for e in result.events if e["event"] == "failure"] == ["compute", "recovery"]


def test_period_in_seconds_counts_from_the_end_of_a_save() -> None:
    result = run("spare", checkpoint_every_steps=None, checkpoint_period_seconds=29.0, steps=7)
    saves = [event["time"] for event in result.events if event["event"] == "checkpoint"]
    assert saves == pytest.approx([29.0, 58.0, 87.0])  # two steps of 12 s and 5 s of save


def test_without_checkpoints_a_restart_goes_back_to_the_start() -> None:
    result = run("ckpt", [(200.0, (0,))], checkpoint_every_steps=None)
    assert result.checkpoints == 0
    assert result.lost_steps == 16


def test_no_progress_ends_with_a_reason() -> None:
    chosen = scenario(steps=1000, max_restarts_without_progress=7)
    result = simulate(chosen, make_policy("ckpt", groups=8), Weibull(8, mtbf=15.0, seed=1))
    assert result.status == "no_progress"
    assert "7 global restarts in a row" in result.reason
    assert result.global_restarts == 7
    assert result.time_to_train_ratio is None
    slow = scenario(steps=200, max_time_ratio=3.0, checkpoint_every_steps=1)
    result = simulate(slow, make_policy("ckpt", groups=8), Weibull(8, mtbf=40.0, seed=1))
    assert result.status == "no_progress" and "3 times the failure-free time" in result.reason


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="must be equal"):
        simulate(scenario(), make_policy("ckpt", groups=4), Trace(8, []))
