"""Every factoring of four processes into groups x tp x pp x dp_shard trains like one process, over whole runs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

STEPS = 20
AXES = ("groups", "tp", "pp", "dp_shard")
FACTORINGS = [degrees for degrees in itertools.product((1, 2, 4), repeat=4) if degrees.count(1) >= 2]
FACTORINGS = [(g, t, p, d) for g, t, p, d in FACTORINGS if g * t * p * d == 4]


def losses(start: Any, **degrees: int) -> list[float]:
    name = "-".join(f"{axis}{degree}" for axis, degree in degrees.items())
    run = start(
        run_dir=name,
        model__layers=4,
        model__heads=4,
        model__kv_heads=4,
        train__steps=STEPS,
        train__global_batch=16,
        checkpoint__every_steps=0,
        **{f"parallel__{axis}": degree for axis, degree in degrees.items()},
    ).finish()
    records = run.lines("metrics.jsonl")
    assert [record["step"] for record in records] == list(range(STEPS))
    return [record["loss"] for record in records]


def test_all_ten_are_here() -> None:
    assert len(FACTORINGS) == 10


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """Losses of one process; filled by the first test that needs them."""
    return []


@pytest.mark.parametrize("factoring", FACTORINGS, ids=lambda degrees: "x".join(map(str, degrees)))
def test_twenty_steps_equal_one_process(start: Any, alone: list[float], factoring: tuple[int, ...]) -> None:
    alone.extend(() if alone else losses(start, groups=1))
    together = losses(start, **dict(zip(AXES, factoring, strict=True)))
    assert together == pytest.approx(alone, rel=1e-5, abs=1e-5)
    assert together[-1] < together[0]
