"""Rows of a comparison, the trace they share, and a small one that really runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from farm import tokens_file

from fault_tolerance.failures import Trace, read_trace, write_trace
from trainer.comparison.durations import Durations, StepSeconds, Struck, moved, replay, replays
from trainer.comparison.report import write_report
from trainer.comparison.rows import LIVE_METHODS, Row
from trainer.comparison.run import Comparison, drawn_failures
from trainer.comparison.table import summarise
from trainer.config import Config, EmulateConfig, FailuresConfig
from trainer.report.history import Span
from trainer.validation import validate


def base(**failures: object) -> Config:
    """Four emulated groups of a model whose step takes milliseconds."""
    config = Config(run_dir="x", device="cpu", seed=1)
    model, train = config.model, config.train
    model.vocab_size, model.hidden_size, model.intermediate_size, model.layers = 256, 16, 32, 1
    model.heads, model.kv_heads = 2, 1
    config.parallel.groups, config.parallel.micro_batches = 4, 2
    train.steps, train.global_batch, train.sequence_length = 12, 8, 16
    config.data.source, config.data.validation_fraction, config.data.paths = "tokens", 0.0, []
    config.checkpoint.every_steps, config.checkpoint.asynchronous = 3, False
    config.fault_tolerance.exact, config.fault_tolerance.max_restarts_without_progress = True, 50
    config.emulate = EmulateConfig(unit_seconds=0.05, reduce_seconds=0.05, restart_seconds=1.5)
    config.failures = FailuresConfig(kind="weibull", mtbf_seconds=1.5, **failures)  # type: ignore[arg-type]
    config.logging.wandb, config.logging.progress, config.launch.threads_per_worker = "disabled", False, 1
    return config


def durations_of(**values: float | None) -> Durations:
    """A step of two units takes 1.25 s."""
    quiet = Durations(0.5, wait=0.05, reduce=0.2, recovery=0.0, restart=0.0, first_step=0.0, save=0.0, write=0.0)
    return dataclasses.replace(quiet, **values)


@pytest.mark.parametrize("method", LIVE_METHODS)
def test_a_row_is_named_as_the_simulator_names_it(method: str) -> None:
    text = method if method == "ckpt" else f"{method}:2"
    row = Row.parse(text)
    config = row.config(base(), Path("c/rows/x"), Path("trace.jsonl"))
    assert row.policy(config).groups == 4
    assert config.logging.wandb_group == "c"
    assert config.fault_tolerance.exact
    assert type(config) is Config


@pytest.mark.parametrize("text", ["spare", "spare:", "spare:x", "spare:0", "ckpt:2", "spare_duplicates:2", "torchft:2"])
def test_rows_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"comparison\.rows: "):
        Row.parse(text)


def test_the_trace_goes_on_whoever_died() -> None:
    failures = list(drawn_failures(4, mtbf=2.0, shape=1.0, seed=0, horizon=4000.0))
    times = [time for time, _ in failures]
    assert times == sorted(times)
    assert 1800 < len(failures) < 2200
    assert failures[:50] == list(itertools.islice(drawn_failures(4, 2.0, 1.0, 0, 4000.0), 50))


def test_a_replay_pays_what_was_measured() -> None:
    config = Row.parse("spare:2").config(base(), Path("c/rows/x"), Path("trace.jsonl"))
    durations = Durations(
        unit=0.5, wait=0.05, reduce=0.2, recovery=0.1, restart=7.0, first_step=0.0, save=0.3, write=0.0
    )
    row = Row.parse("spare:2")
    quiet = replay(config, row.policy(config), durations, Trace(4, []))
    assert quiet.wall_seconds == pytest.approx(12 * 1.25 + 3 * 0.3)
    masked = replay(config, row.policy(config), durations, Trace(4, [(0.4, (1,))]))
    assert masked.masked_failures == 1
    assert masked.seconds_by_cause["shrink"] == pytest.approx(0.1)


def test_a_death_that_struck_strikes_in_the_replay_too() -> None:
    row = Row.parse("ckpt")
    config = row.config(base(), Path("c/rows/x"), Path("trace.jsonl"))
    durations = Durations(
        unit=0.5, wait=0.05, reduce=0.2, recovery=0.1, restart=7.0, first_step=0.0, save=0.3, write=0.0
    )
    deaths = [(0.4, (1,)), (7.3, (2,))]  # the second falls into the first's restart, which ends at 7.4
    assert replay(config, row.policy(config), durations, Trace(4, deaths)).global_restarts == 1
    assert replay(config, row.policy(config), durations, Struck(4, deaths)).global_restarts == 2


def test_replays_move_each_death_by_at_most_half_a_step() -> None:
    deaths = [(0.1, (1,)), (5.0, (2,)), (5.2, (3,))]
    for seed in range(20):
        other = moved(deaths, 0.5, seed)
        assert other == moved(deaths, 0.5, seed) == sorted(other) and other != deaths
        times = {groups: time for time, groups in other}
        assert all(abs(times[groups] - time) <= 0.5 and times[groups] >= 0 for time, groups in deaths)


def test_the_mean_of_replays_knows_what_a_death_may_cost() -> None:
    """The death at 5.34 s comes just after the commit of the fourth step: a little earlier it costs more."""
    row = Row.parse("ckpt")
    config = row.config(base(), Path("c/rows/x"), Path("trace.jsonl"))
    durations = Durations(
        unit=0.5, wait=0.05, reduce=0.2, recovery=0.1, restart=7.0, first_step=0.0, save=0.3, write=0.0
    )
    seconds = {
        round(result.wall_seconds, 6)
        for result in replays(config, lambda: row.policy(config), durations, [(5.34, (1,))], Struck, 1.25)
    }
    exact = replay(config, row.policy(config), durations, Struck(4, [(5.34, (1,))])).wall_seconds
    assert min(seconds) < exact < max(seconds)


def test_steps_that_outlast_their_padding_at_one_stack_alone_are_told_apart() -> None:
    """What a further stack adds counts: 0.3 s, where steps of one stack take 0.8 s and steps of two 1.1 s."""
    seconds = {1.0: 0.8, 2.0: 1.1}
    spans = [Span(0.0, _step(stacks, seconds[stacks]), False, (), ()) for stacks in (1.0, 2.0, 2.0, 1.0, 2.0)]
    history = SimpleNamespace(spans=spans)
    fitted = StepSeconds.of(history)  # type: ignore[arg-type]
    assert (fitted.stack, fitted.other) == pytest.approx((0.3, 0.5)) and fitted.recovery is None

    assert fitted.with_at_least(0.4, 1.5) == fitted
    shifted = fitted.with_at_least(0.8, 1.5)
    assert (shifted.stack, shifted.other) == pytest.approx((0.1, 0.8))


def _step(stacks: float, seconds: float) -> dict[str, object]:
    return {"stacks": stacks, "time": seconds, "seconds": {}}


def test_gaps_are_filled_from_other_rows() -> None:
    gap = durations_of(recovery=None, restart=None, save=0.5)
    others = [dataclasses.replace(gap, restart=seconds) for seconds in (4.0, 6.0, 5.0)]
    assert gap.filled(others) == dataclasses.replace(gap, recovery=0.0, restart=5.0)


def test_a_folder_holds_one_comparison(tmp_path: Path) -> None:
    config = base()
    config.data.paths = [str(tokens_file(tmp_path))]
    rows, folder = [Row.parse("ckpt")], tmp_path / "c"
    first = Comparison(config, rows, folder, 60.0, print)
    assert Comparison(config, [*rows, Row.parse("spare:2")], folder, 60.0, print).failures == first.failures
    config.train.steps = 24
    with pytest.raises(ValueError, match="another train"):
        Comparison(config, rows, folder, 60.0, print)
    with pytest.raises(ValueError, match="each row once"):
        Comparison(config, [*rows, *rows], tmp_path / "d", 60.0, print)
    with pytest.raises(ValueError, match=r"failures\.kind=none"):
        config.failures = FailuresConfig()
        Comparison(config, rows, tmp_path / "e", 60.0, print)


@pytest.mark.processes
def test_live_rows_end_with_the_same_weights_and_are_kept(tmp_path: Path) -> None:
    config = base()
    config.data.paths, config.data.cache_dir = [str(tokens_file(tmp_path))], str(tmp_path / "cache")
    config.run_dir = str(tmp_path)
    trace = tmp_path / "deaths.jsonl"
    write_trace(trace, [(0.5, (1,)), (0.9, (3,)), (4.0, (2,)), (7.0, (0,))])
    config.failures = FailuresConfig(kind="trace", file=str(trace))
    rows = [Row.parse("ckpt"), Row.parse("spare_micro_batch:2")]
    told: list[str] = []
    comparison = Comparison(config, rows, tmp_path / "c", 100.0, told.append)
    for row in rows:
        validate(comparison.config(row))
    outcomes = comparison.run()
    assert len(outcomes) == 2, told
    summary = summarise(outcomes, config)
    assert [row["weights_equal"] for row in summary["rows"]] == [True, True]
    for outcome, row in zip(outcomes, summary["rows"], strict=True):
        assert row["live"]["failures"] > 0
        assert sum(row["live"]["seconds_by_cause"].values()) == pytest.approx(row["live"]["time_to_train_seconds"])
        assert {event[0] for event in _struck(outcome.history)} <= {group for _, (group,) in comparison.failures}
    json.dumps(summary, allow_nan=False)
    page = write_report(tmp_path / "c", outcomes, summary).read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 5 + len(rows)

    told.clear()
    again = Comparison(config, rows, tmp_path / "c", 100.0, told.append).run()
    assert [line.rpartition(": ")[2] for line in told] == ["kept", "kept"]
    assert [outcome.history.wall_seconds for outcome in again] == [outcome.history.wall_seconds for outcome in outcomes]
    assert read_trace(comparison.trace) == comparison.failures and Trace(4, comparison.failures).next()


def _struck(history: object) -> list[list[int]]:
    return [event["groups"] for event in history.of("failure")]  # type: ignore[attr-defined]
