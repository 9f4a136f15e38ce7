"""Single facts about the policies that a reader may want to look up."""

from __future__ import annotations

import pytest

from fault_tolerance.policies import CheckpointOnly, Policy, Replan, Replication, Restart, Spare, make_policy


def test_checkpoint_only_restarts_at_any_failure() -> None:
    policy = make_policy("ckpt", groups=4, micro_batches=2)
    assert isinstance(policy, Policy)
    assert policy.plan_step(0).units_of(2) == ((2, 0), (2, 1))
    outcome = policy.on_failure([2, 1])
    assert isinstance(outcome, Restart) and outcome.lost_types == (1, 2)
    assert policy.on_restart().stacks == 1.0
    assert isinstance(policy.on_failure([0]), Restart)
    assert isinstance(policy.on_join([0]), Replan)


def test_replication_needs_no_patch_and_costs_r() -> None:
    policy = make_policy("rep", groups=9, redundancy=3, micro_batches=2)
    plan = policy.plan_step(0)
    assert plan.stacks == 3.0 and plan.counted_of(4) == ((4, 0), (4, 1))
    outcome = policy.on_failure([4])
    assert outcome.patch == {} and outcome.phase == -1
    second = policy.placement.hosts[4][1]
    assert set(outcome.plan.counted_of(second)) == {(4, 0), (4, 1), (second, 0), (second, 1)}


def test_partitioned_replication_counts_at_the_first_of_the_team() -> None:
    policy = make_policy("rep", groups=6, redundancy=3, placement="partition")
    plan = policy.plan_step(0)
    assert len(plan.counted_of(3)) == 3 and plan.counted_of(4) == ()
    plan = policy.on_failure([3]).plan
    assert set(plan.counted_of(4)) == set(plan.units_of(4)) == {(3, 0), (4, 0), (5, 0)}
    policy.on_failure([4])
    outcome = policy.on_failure([5])
    assert isinstance(outcome, Restart) and outcome.lost_types == (3, 4, 5)


def test_spare_starts_without_redundant_work() -> None:
    for duplicates in (False, True):
        policy = make_policy("spare", groups=9, redundancy=3, granularity="shard", duplicates=duplicates)
        plan = policy.plan_step(0)
        assert plan.stacks == 1.0 and all(plan.units_of(group) == ((group, 0),) for group in range(9))


def test_one_death_costs_one_shard_or_one_micro_batch() -> None:
    shard = make_policy("spare", groups=21, redundancy=5, micro_batches=4, granularity="shard")
    fine = make_policy("spare", groups=21, redundancy=5, micro_batches=4)
    shard.plan_step(0)
    fine.plan_step(0)
    a, b = shard.on_failure([3]), fine.on_failure([3])
    assert (a.stacks_after, a.patch_stacks, a.moves) == (2.0, 1.0, 1)
    assert (b.stacks_after, b.patch_stacks, b.moves) == (1.25, 0.25, 4)
    assert sorted(unit for units in b.patch.values() for unit in units) == [(3, micro) for micro in range(4)]


def test_published_phases() -> None:
    """Phase 1 raises S; then heads overlap and a death changes nothing; the death of both heads of a type reorders."""
    policy = Spare(13, 4, granularity="shard", duplicates=True)
    policy.plan_step(0)
    first = policy.on_failure([0])
    assert (first.phase, first.stacks_after, first.patch_stacks) == (1, 2.0, 1.0)
    policy.on_commit()
    policy.plan_step(1)
    calm = policy.on_failure([5])
    assert (calm.phase, calm.moves, calm.patch) == (0, 0, {})
    policy.on_commit()
    policy.plan_step(2)
    # Type 5 stands in two heads at S = 2: that of group 5, which is dead, and that of its second host.
    reorder = policy.on_failure([policy.placement.hosts[5][1]])
    assert reorder.phase == 2 and reorder.moves >= 1 and reorder.stacks_after == 2.0
    assert {unit for units in reorder.patch.values() for unit in units} >= {(5, 0)}


def test_death_of_a_patch_holder_in_the_same_step() -> None:
    policy = make_policy("spare", groups=9, redundancy=3, micro_batches=2)
    plan = policy.plan_step(0)
    first = policy.on_failure([4])
    holder = next(iter(first.patch))
    second = policy.on_failure([holder])
    missing = {unit for units in second.patch.values() for unit in units}
    assert missing == set(plan.units_of(holder)) | set(first.patch[holder])


def test_between_steps_nothing_is_missing() -> None:
    policy = make_policy("spare", groups=9, redundancy=3, micro_batches=2)
    policy.plan_step(0)
    policy.on_commit()
    assert policy.on_failure([4]).patch == {}


def test_computed_overrides_what_was_asked() -> None:
    policy = make_policy("spare", groups=7, redundancy=3, micro_batches=2)
    plan = policy.plan_step(0)
    computed = {group: plan.units_of(group) for group in range(6)}
    computed[2] = plan.units_of(2)[:1]
    patch = policy.on_failure([6], computed).patch
    assert {unit for units in patch.values() for unit in units} == {(6, 0), (6, 1), plan.units_of(2)[1]}


def test_wipe_out_names_the_types_and_a_join_may_heal_it() -> None:
    policy = make_policy("spare", groups=9, redundancy=3, micro_batches=2)
    dead = policy.placement.hosts[4]
    outcome = policy.on_failure(dead)
    assert isinstance(outcome, Restart) and outcome.lost_types == (4,) and "4" in outcome.reason
    still = policy.on_failure([next(group for group in range(9) if group not in dead)])
    assert isinstance(still, Restart) and 4 in still.lost_types
    healed = policy.on_join(dead)
    assert isinstance(healed, Replan) and len(healed.plan.live) == 8


def test_plans_do_not_change_afterwards() -> None:
    for duplicates in (False, True):
        policy = Spare(9, 3, 2, "shard", duplicates=duplicates)
        plan = policy.plan_step(0)
        before = [(plan.units_of(group), plan.counted_of(group)) for group in plan.live]
        for group in (1, 2, 6):
            policy.on_failure([group])
        assert before == [(plan.units_of(group), plan.counted_of(group)) for group in plan.live]


@pytest.mark.parametrize("solver", ["incremental", "networkx"])
def test_both_solvers_run_a_policy(solver: str) -> None:
    policy = make_policy("spare", groups=9, redundancy=3, micro_batches=4, solver=solver)
    loads = []
    for group in (4, 1, 7):
        outcome = policy.on_failure([group])
        loads.append((outcome.stacks_after, outcome.moves > 0))
    assert loads == [(5 / 4, True), (6 / 4, True), (6 / 4, True)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "torchft"}, ["fault_tolerance.backend=torchft", "ckpt, rep or spare"]),
        ({"backend": "spare", "redundancy": 12}, ["fault_tolerance.redundancy=12", "parallel.groups=8", "1 to 8"]),
        ({"backend": "rep", "redundancy": 0}, ["fault_tolerance.redundancy=0", "1 to 8"]),
        ({"backend": "spare", "micro_batches": 0}, ["parallel.micro_batches=0"]),
        ({"backend": "rep", "micro_batches": 0}, ["parallel.micro_batches=0"]),
        ({"backend": "ckpt", "micro_batches": 0}, ["parallel.micro_batches=0"]),
        ({"backend": "spare", "granularity": "token"}, ["fault_tolerance.granularity=token", "micro_batch"]),
        ({"backend": "spare", "placement": "ring"}, ["fault_tolerance.placement=ring", "partition"]),
        ({"backend": "spare", "solver": "magic"}, ["fault_tolerance.solver=magic", "networkx"]),
        ({"backend": "spare", "duplicates": True}, ["fault_tolerance.granularity=shard"]),
    ],
)
def test_errors_name_the_option(options: dict, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        make_policy(**{"groups": 8, "redundancy": 2, **options})
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("policy", [CheckpointOnly(4), Replication(4, 2), Spare(4, 2)])
def test_unknown_or_dead_groups_are_refused(policy) -> None:
    with pytest.raises(ValueError, match="group 4 is unknown"):
        policy.on_failure([4])
    with pytest.raises(ValueError, match="group 1 is live already"):
        policy.on_join([1])
    policy.on_failure([1])
    with pytest.raises(ValueError, match="group 1 is dead already"):
        policy.on_failure([1])
