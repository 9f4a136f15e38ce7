"""Whole cases: every method under drawn failures, repeatability, sweeps, and points of the paper's table."""

from __future__ import annotations

import dataclasses
import math

import pytest
from scenarios import check

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.failures import write_trace
from fault_tolerance.simulation import quiet
from fault_tolerance.simulation.cases import METHODS, Case, planned_period
from fault_tolerance.simulation.draws import KINDS, Draws
from fault_tolerance.simulation.paper import PAPER, compare
from fault_tolerance.simulation.result import Result
from fault_tolerance.simulation.study import Crossover, Study, crossovers
from fault_tolerance.simulation.sweep import Mean, Point, best_of, points_of, run_jobs, write_csv

SMALL = ClusterProfile(
    name="small", groups=42, steps=300, mtbf_s=200.0, restart_s=600.0, save_s=10.0, compute_s=20.0, all_reduce_s=2.0
)
PAPER_CLUSTER = ClusterProfile(name="paper")


def case(name: str = "spare", redundancy: int = 5, seed: int = 0, **values) -> Case:
    return Case(SMALL, 42, METHODS[name], redundancy, seed, micro_batches=4, **values)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ckpt"])
def test_every_method_adds_up_and_repeats(name: str) -> None:
    redundancy = 3 if METHODS[name].backend == "rep" else 5
    first, again, other = (case(name, redundancy, seed).run(timeline=True) for seed in (0, 0, 1))
    for result in (first, other):
        check(result)
        assert result.status == "done" and result.steps == 300 and result.failures > 20 and result.global_restarts > 0
    assert first.summary() == again.summary() and first.events == again.events
    assert first.wall_seconds != other.wall_seconds


def test_ckpt_only_makes_no_progress_in_the_papers_setting() -> None:
    result = Case(PAPER_CLUSTER, 600, METHODS["ckpt"], 1, 0).run()
    check(result)
    assert result.status == "no_progress" and result.time_to_train_ratio is None
    assert result.summary()["time_to_train_ratio"] is None


@pytest.mark.parametrize("name,groups", [("rep", 1000), ("spare", 200)])
def test_points_of_the_papers_table(name: str, groups: int) -> None:
    published = PAPER[name, groups]
    result = Case(PAPER_CLUSTER, groups, METHODS[name], published.redundancy, 0).run()
    check(result)
    assert result.time_to_train_ratio == pytest.approx(published.ratio, rel=0.08)
    assert result.availability == pytest.approx(published.availability, abs=0.07)


def test_finer_units_and_repairs_save_time() -> None:
    ratio = {name: case(name, 3).run().time_to_train_ratio for name in ("rep", "spare", "spare_micro_batch")}
    assert ratio["spare_micro_batch"] < ratio["spare"] < ratio["rep"]
    repaired = case("spare_micro_batch", 3, options={"repair_seconds": 600.0}).run(timeline=True)
    check(repaired)
    assert repaired.joins > 10
    assert repaired.time_to_train_ratio < ratio["spare_micro_batch"]


def test_racks_that_die_together_are_worse_than_single_deaths() -> None:
    racks = case("spare", 5, domain_size=6).run(timeline=True)
    check(racks)
    assert any(len(event["groups"]) > 1 for event in racks.events if event["event"] == "failure")
    assert racks.global_restarts > case("spare", 5).run().global_restarts


def test_bulk_and_single_steps_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = dataclasses.replace(SMALL, mtbf_s=3000.0, steps=2000)
    chosen = Case(calm, 42, METHODS["spare"], 4, 3)
    results: list[Result] = []
    for few in (0, 10**9):
        monkeypatch.setattr(quiet, "FEW", few)
        results.append(chosen.run())
        check(results[-1])
    bulk, single = results
    assert bulk.failures == single.failures > 5
    assert bulk.wall_seconds == pytest.approx(single.wall_seconds, rel=1e-12)
    for cause, seconds in bulk.seconds_by_cause.items():
        assert seconds == pytest.approx(single.seconds_by_cause[cause], rel=1e-9, abs=1e-6)


def test_recorded_failures_replace_drawn_ones(tmp_path) -> None:
    write_trace(tmp_path / "trace.jsonl", [(100.0, (3,)), (1000.0, (4, 5)), (1e9, (6,))])
    result = case(trace=str(tmp_path / "trace.jsonl")).run(timeline=True)
    assert [event["groups"] for event in result.events if event["event"] == "failure"] == [[3], [4, 5]]


def test_a_timeline_is_a_trace(tmp_path) -> None:
    from fault_tolerance.simulation.timeline import write_events

    drawn = case(seed=4, options={"noise_std": 0.0}).run(timeline=True)
    write_events(tmp_path / "events.jsonl", drawn.events)
    replayed = case(seed=9, trace=str(tmp_path / "events.jsonl"), options={"noise_std": 0.0}).run()
    assert replayed.wall_seconds == pytest.approx(drawn.wall_seconds)
    assert replayed.failures == drawn.failures


def test_planned_period_grows_with_redundancy_and_leaves_room_for_a_step() -> None:
    periods = [planned_period(PAPER_CLUSTER, 600, "spare", r, "cyclic") for r in (2, 5, 9)]
    assert periods == sorted(periods) and periods[0] > PAPER_CLUSTER.save_s + 64
    assert case(options={"checkpoint_every_steps": 7}).scenario().checkpoint_period_seconds is None


def test_draws_are_independent_of_how_they_are_asked_for() -> None:
    one, other = Draws(5, 0.05), Draws(5, 0.05)
    ahead = other["reduce"].window(9000).tolist()
    other["reduce"].advance(9000)
    assert [one["reduce"].next() for _ in range(9000)] == ahead
    streams = [tuple(Draws(5, 0.05)[kind].peek(3)) for kind in KINDS]
    assert len(set(streams)) == len(KINDS)
    assert Draws(5, 0.0)["save"].next() == 1.0


def test_sweep_does_not_depend_on_workers(tmp_path) -> None:
    study = Study("redundancy", SMALL, [42], [3, 5, 50], ["ckpt", "rep_partition", "spare"], [0, 1], 4)
    jobs = study.jobs()
    assert [(name, c.redundancy) for name, c in jobs[::2]] == [
        ("ckpt", 1),
        ("rep_partition", 3),
        ("spare", 3),
        ("spare", 5),
    ]
    done: list[int] = []
    alone, together = run_jobs(jobs, 1), run_jobs(jobs, 2, done.append)
    assert alone == together and done == list(range(1, 9))
    points = points_of(alone)
    assert [p.redundancy for p in points] == [1, 3, 3, 5]
    best = best_of(points, "spare", 42)
    assert best is not None and best.ratio.value == min(p.ratio.value for p in points if p.method == "spare")
    write_csv(tmp_path / "rows.csv", alone)
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 9
    assert all(line.published is None for line in compare(points))


def test_mean_and_its_interval() -> None:
    mean = Mean.of([1.0, 2.0, 3.0])
    assert mean.value == 2.0
    assert mean.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # Student's t, 2 degrees of freedom
    assert math.isnan(Mean.of([1.0]).half_width)
    assert math.isnan(Mean.of([1.0, math.nan]).value)


def point(method: str, groups: int, ratio: float) -> Point:
    nothing = Mean(0.0, 0.0)
    return Point(method, groups, 2, Mean(ratio, 0.0), nothing, nothing, nothing, nothing, {}, 0, "")


def test_crossovers_are_found_between_sizes() -> None:
    points = [point("ckpt", 10, 1.0), point("ckpt", 100, 3.0), point("ckpt", 1000, math.nan)]
    points += [point("spare", 10, 2.0), point("spare", 100, 2.0), point("spare", 1000, 2.5)]
    assert crossovers(points) == [Crossover("spare", "ckpt", pytest.approx(math.sqrt(1000.0)))]


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"kind": "all"}, "sweep.kind=all"),
        ({"methods": ["spare", "magic"]}, "magic is unknown"),
        ({"redundancies": []}, "at least one"),
        ({"kind": "scaling"}, "needs cluster sizes"),
        ({"kind": "scaling", "gpus": [1500]}, "1500 is not a multiple"),
    ],
)
def test_study_refuses_nonsense(changes: dict, message: str) -> None:
    values = {
        "kind": "redundancy",
        "cluster": SMALL,
        "groups": [42],
        "redundancies": [2],
        "methods": ["spare"],
        "seeds": [0],
        "micro_batches": 4,
    }
    with pytest.raises(ValueError, match=message):
        Study(**(values | changes))


def test_scaling_scales_failures_and_restarts() -> None:
    study = Study("scaling", PAPER_CLUSTER, [], [2, 3], ["spare"], [0], 16, gpus=[60_000], restart_base_s=600.0)
    (_, small), *_ = study.jobs()
    assert small.groups == 60
    assert small.cluster.mtbf_s == pytest.approx(3000.0)
    assert small.cluster.restart_s == pytest.approx(600.0 + 300.0)
