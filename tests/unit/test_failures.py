"""Failure processes: seeds, ages, repairs, traces and domains."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_tolerance.failures import (
    Domains,
    Exponential,
    FailureProcess,
    Trace,
    Weibull,
    read_trace,
    write_trace,
)


def drain(process: FailureProcess) -> list[tuple[float, tuple[int, ...]]]:
    failures = []
    while (failure := process.pop()) is not None:
        failures.append(failure)
    return failures


def processes() -> list[FailureProcess]:
    return [
        Weibull(12, 10.0, 0.78, seed=3),
        Exponential(12, 10.0, seed=3),
        Trace(12, [(2.0, (1, 2)), (1.0, (5,)), (4.0, (5, 6))]),
        Domains(Weibull(12, 10.0, seed=3), 3, probability=0.5, seed=4),
    ]


@pytest.mark.parametrize("index", range(4))
def test_same_seed_same_failures_and_pickling_keeps_the_place(index):
    first, second = processes()[index], processes()[index]
    assert isinstance(first, FailureProcess)
    for process in (first, second):
        process.reset(1.0)
        process.pop()
    copy = pickle.loads(pickle.dumps(first))
    rest = drain(first)
    assert rest and rest == drain(second) == drain(copy)


@pytest.mark.parametrize("index", range(4))
def test_next_leaves_the_failure_in_the_queue(index):
    process = processes()[index]
    process.reset(0.0)
    assert process.next() == process.next() == process.pop()


def test_other_seed_other_failures():
    assert drain(Weibull(5, 10.0, seed=1)) != drain(Weibull(5, 10.0, seed=2))


@pytest.mark.parametrize("shape", [0.78, 1.0, 2.0])
def test_lifetimes_have_mean_groups_times_mtbf_and_restart_at_age_zero(shape):
    process = Weibull(40_000, 0.5, shape, seed=0)
    process.reset(1e9)
    lifetimes = np.array([time for time, _ in drain(process)]) - 1e9
    assert lifetimes.mean() == pytest.approx(20_000, rel=0.02)
    assert (np.diff(lifetimes) >= 0).all()
    median = 20_000 / math.gamma(1 + 1 / shape) * math.log(2) ** (1 / shape)
    assert np.median(lifetimes) == pytest.approx(median, rel=0.03)


def test_weibull_below_one_fails_in_a_burst_after_a_restart_and_exponential_does_not():
    burst = Weibull(1000, 1.0, 0.78, seed=0)
    steady = Exponential(1000, 1.0, seed=0)
    assert sum(time < 50 for time, _ in drain(burst)) > 80
    assert 30 < sum(time < 50 for time, _ in drain(steady)) < 70


def test_dead_groups_draw_no_more_until_they_are_revived():
    process = Weibull(3, 10.0, seed=0)
    dead = [groups[0] for _, groups in drain(process)]
    assert sorted(dead) == [0, 1, 2] and process.next() is None
    process.revive(1, now=500.0)
    time, groups = process.pop()
    assert groups == (1,) and time > 500.0
    with pytest.raises(ValueError, match="group 2 is live"):
        process.revive(2, 0.0)
        process.revive(2, 0.0)


def test_discarded_groups_fail_no_more():
    process = Weibull(6, 10.0, seed=0)
    first = process.next()[1][0]
    process.discard([first])
    assert first not in {group for _, groups in drain(process) for group in groups}


@given(st.lists(st.tuples(st.sampled_from(["pop", "revive", "discard", "reset"]), st.integers(0, 7)), max_size=60))
def test_only_live_groups_fail_and_never_in_the_past(actions):
    process = Domains(Weibull(8, 10.0, seed=5), 2, probability=0.3, seed=6)
    live, now = set(range(8)), 0.0
    process.reset(now)
    for action, group in actions:
        if action == "pop" and (failure := process.pop()) is not None:
            assert failure[0] >= now and failure[1] and set(failure[1]) <= live
            now = failure[0]
            live -= set(failure[1])
        elif action == "revive" and group not in live:
            process.revive(group, now)
            live.add(group)
        elif action == "discard":
            process.discard([group])
            live.discard(group)
        elif action == "reset":
            process.reset(now)
            live = set(range(8))
    assert (process.next() is None) == (not live)


def test_domains_take_their_rack_along():
    process = Domains(Trace(6, [(1.0, (4,)), (2.0, (5,)), (3.0, (0,))]), 4)
    assert drain(process) == [(1.0, (4, 5)), (3.0, (0, 1, 2, 3))]
    lone = Domains(Trace(6, [(1.0, (4,)), (2.0, (5,))]), [[4, 0]], probability=1.0)
    assert drain(lone) == [(1.0, (0, 4)), (2.0, (5,))]
    never = Domains(Trace(6, [(1.0, (4,))]), 4, probability=0.0)
    assert drain(never) == [(1.0, (4,))]


def test_share_of_failures_that_spread():
    process = Domains(Exponential(2000, 1.0, seed=0), 2, probability=0.25, seed=1)
    sizes = [len(process.pop()[1]) for _ in range(400)]
    assert 60 < sum(size == 2 for size in sizes) < 140


def test_trace_strikes_once_and_leaves_out_the_dead():
    trace = Trace(4, [(5.0, (0, 1)), (1.0, (0,)), (9.0, (3,))])
    assert trace.pop() == (1.0, (0,))
    assert trace.pop() == (5.0, (1,))
    trace.reset(6.0)
    assert trace.pop() == (9.0, (3,))
    trace.reset(0.0)
    assert trace.next() is None


def test_trace_files(tmp_path):
    failures = [(1.5, (0,)), (7.0, (2, 3))]
    write_trace(tmp_path / "trace.jsonl", failures)
    assert read_trace(tmp_path / "trace.jsonl") == failures
    (tmp_path / "trace.csv").write_text("time,groups\n1.5,0\n7,2 3\n")
    assert read_trace(tmp_path / "trace.csv") == failures
    (tmp_path / "one.csv").write_text("time,group\n2,1\n")
    assert drain(Trace.from_file(4, tmp_path / "one.csv")) == [(2.0, (1,))]
    events = [
        {"time": 0.0, "event": "start", "groups": [0, 1]},
        {"time": 3.0, "event": "failure", "groups": [1], "phase": "compute"},
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(json.dumps(event) for event in events) + "\n\n")
    assert read_trace(tmp_path / "events.jsonl") == [(3.0, (1,))]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"time": 1}\n', "line 1"),
        ("a.jsonl", '{"time": 1, "group": 0}\nnonsense\n', "line 2"),
        ("a.csv", "time,groups\n1,x\n", "line 2"),
        ("a.csv", "when,who\n1,2\n", "line 2"),
        ("a.jsonl", "[1, 2]\n", "line 1"),
    ],
)
def test_broken_trace_names_the_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_trace(tmp_path / name)


def test_nonsense_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="group 4"):
        Trace(4, [(1.0, (4,))])
    with pytest.raises(ValueError, match="time -1"):
        Trace(4, [(-1.0, (0,))])
    for arguments in [(0, 1.0, 0.78), (3, 0.0, 0.78), (3, -1.0, 0.78), (3, 1.0, 0.0), (3, float("nan"), 1.0)]:
        with pytest.raises(ValueError, match=r"must be|needs"):
            Weibull(*arguments)
    with pytest.raises(ValueError, match="two domains"):
        Domains(Weibull(4, 1.0), [[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="probability"):
        Domains(Weibull(4, 1.0), 2, probability=1.5)
