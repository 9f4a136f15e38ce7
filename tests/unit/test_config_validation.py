"""Values that do not fit are refused in one line that names the option and what would fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Config, FailureEvent, FailuresConfig, ModelConfig, ParallelConfig
from trainer.validation import CHOICES, RANGES, validate, validate_model


def config_with(**values: object) -> Config:
    """A valid config with some options (dots as double underscores) set."""
    config = Config(run_dir="x")
    for name, value in values.items():
        *path, leaf = name.split("__")
        owner: object = config
        for part in path:
            owner = getattr(owner, part)
        assert hasattr(owner, leaf)
        setattr(owner, leaf, value)
    return config


def problem(**values: object) -> str:
    with pytest.raises(ValueError) as error:
        validate(config_with(**values))
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_defaults_are_valid() -> None:
    validate(Config(run_dir="x"))


def test_every_number_has_a_range_and_every_range_an_option() -> None:
    numbers = set()
    for group in dataclasses.fields(Config):
        value = getattr(Config(), group.name)
        if not dataclasses.is_dataclass(value):
            continue
        for entry in dataclasses.fields(value):
            if entry.type in ("int", "float", "int | None", "float | None"):
                numbers.add(f"{group.name}.{entry.name}")
    assert numbers - {"launch.group"} <= set(RANGES)  # launch.group is tied to parallel.groups
    for name in [*RANGES, *CHOICES]:
        config_with(**{name.replace(".", "__"): 0})


@pytest.mark.parametrize("name", sorted(RANGES))
def test_numbers_below_their_range_are_refused(name: str) -> None:
    low, _ = RANGES[name]
    assert problem(**{name.replace(".", "__"): low - 1}).startswith(f"{name}=")


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_unknown_choices_are_refused_with_the_choices(name: str) -> None:
    text = problem(**{name.replace(".", "__"): CHOICES[name][0] + "x"})
    assert text.startswith(f"{name}=") and all(choice in text for choice in CHOICES[name])
    assert "did you mean" in text


def test_nan_is_in_no_range() -> None:
    assert problem(optim__lr=float("nan")).startswith("optim.lr=nan")


def test_tp_lists_the_degrees_that_fit() -> None:
    model = ModelConfig(heads=12, kv_heads=4, hidden_size=96, vocab_size=4096, intermediate_size=256)
    with pytest.raises(ValueError, match=r"parallel.tp=3: must divide .*model.kv_heads=4.* tp can be 1, 2, 4$"):
        validate_model(model, ParallelConfig(tp=3))


def test_pp_stays_within_the_layers() -> None:
    assert "pp can be at most 4" in problem(parallel__pp=5)
    text = problem(parallel__pp=4, parallel__pp_virtual_stages=2, parallel__pp_schedule="interleaved_1f1b")
    assert "needs 8 layers" in text and "at most 2" in text


@given(
    groups=st.integers(1, 12),
    micro_batches=st.integers(1, 6),
    dp_shard=st.sampled_from([1, 2, 3]),
    batch=st.integers(1, 300),
)
def test_a_batch_that_does_not_divide_comes_with_one_that_does(
    groups: int, micro_batches: int, dp_shard: int, batch: int
) -> None:
    degrees = {"parallel__groups": groups, "parallel__micro_batches": micro_batches, "parallel__dp_shard": dp_shard}
    config = config_with(train__global_batch=batch, **degrees)
    if batch % (groups * micro_batches * dp_shard) == 0:
        validate(config)
        return
    text = problem(train__global_batch=batch, **degrees)
    for offered in text.partition("such as ")[2].split(" or "):
        validate(config_with(train__global_batch=int(offered), **degrees))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"parallel__pp_schedule": "interleaved_1f1b"}, "interleaved_1f1b needs 2 or more"),
        ({"parallel__pp_virtual_stages": 2, "parallel__pp": 2}, "must be 1 with parallel.pp_schedule=1f1b"),
        ({"model__heads": 3}, "must divide model.hidden_size=128"),
        ({"model__kv_heads": 3}, "must divide model.heads=4 (1, 2, 4)"),
        ({"model__head_dim": 33}, "even width"),
        ({"optim__betas": [0.9]}, "two numbers"),
        ({"optim__betas": [0.9, 1.0]}, "two numbers"),
        ({"fault_tolerance__redundancy": 2}, "ckpt holds each type once"),
        ({"fault_tolerance__backend": "spare", "fault_tolerance__redundancy": 3}, "at most parallel.groups=2"),
        (
            {"fault_tolerance__exact": True, "parallel__pp": 2, "parallel__dp_shard": 2},
            "several units in floating point",
        ),
        ({"device": "cuda"}, "no NVIDIA driver"),
        ({"data__source": "text"}, "needs files"),
        ({"data__source": "text", "data__paths": ["/nowhere/*.txt"]}, "/nowhere/*.txt matches no file"),
        ({"data__paths": ["x"]}, "data.source=python_stdlib reads none"),
        ({"data__source": "hf"}, "needs a data set's name"),
        ({"data__bpe_vocab_size": 5000}, "at most model.vocab_size=4096"),
        ({"checkpoint__resume": "/nowhere"}, "no such folder"),
        ({"launch__group": 1}, "launch.mode=local takes none"),
        ({"launch__mode": "controller"}, "needs host:port"),
        ({"launch__mode": "worker", "launch__controller": "h:x", "launch__group": 0}, "needs host:port"),
        ({"launch__mode": "worker", "launch__controller": "h:1", "launch__group": 2}, "needs 0 to 1"),
        ({"run_dir": "/dev/null"}, "there is a file of that name"),
        ({"run_dir": "/dev/null/run"}, "/dev/null is not a folder"),
    ],
)
def test_combinations(values: dict[str, object], text: str) -> None:
    if values.get("device") == "cuda" and Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    assert text in problem(**values)


def test_partition_needs_teams_of_equal_size() -> None:
    text = problem(
        parallel__groups=6,
        train__global_batch=12,
        fault_tolerance__backend="rep",
        fault_tolerance__redundancy=4,
        fault_tolerance__placement="partition",
    )
    assert "(1, 2, 3, 6)" in text


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (FailureEvent(step=100), "failures.events[0].step=100: from 0 to 99"),
        (FailureEvent(step=-1), "failures.events[0].step=-1"),
        (FailureEvent(group=2), "failures.events[0].group=2: from 0 to 1"),
        (FailureEvent(rank=1), "failures.events[0].rank=1: from 0 to 0"),
        (FailureEvent(phase="comput"), "did you mean compute?"),
        (FailureEvent(signal="SIGKIL"), "did you mean SIGKILL?"),
    ],
)
def test_failures_that_cannot_strike(event: FailureEvent, text: str) -> None:
    assert text in problem(failures=FailuresConfig(kind="trace", events=[event]))


def test_a_trace_file_is_read_before_anything_starts(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"time": 1.5, "groups": [1]}\n{"time": 2.0, "groups": [2]}\n')
    text = problem(failures=FailuresConfig(kind="trace", file=str(trace)))
    assert text.startswith("failures.file=") and "group 2" in text
    validate(config_with(failures=FailuresConfig(kind="trace", file=str(trace)), parallel__groups=4))
    assert "no such file" in problem(failures=FailuresConfig(kind="trace", file="/nowhere"))
    assert "use failures=trace" in problem(failures=FailuresConfig(kind="weibull", file=str(trace)))
    both = FailuresConfig(kind="trace", file=str(trace), events=[FailureEvent()])
    assert "beside it" in problem(failures=both, parallel__groups=4)


def test_events_and_kind_belong_together() -> None:
    assert "use failures=trace" in problem(failures=FailuresConfig(kind="none", events=[FailureEvent()]))
    assert "needs a list" in problem(failures=FailuresConfig(kind="trace"))
    event = FailureEvent(phase="checkpoint")
    assert "never comes" in problem(failures=FailuresConfig(kind="trace", events=[event]), checkpoint__every_steps=0)
