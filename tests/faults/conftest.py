"""Fixtures of the fault tests: one farm of runs, and the undisturbed runs that the others are compared with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm import Farm, Run, tiny_config, tokens_file

from trainer.config import EmulateConfig, FailuresConfig

Start = Callable[..., Run]


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokens_file(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def start(farm: Farm, tokens: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a run with the options of `tiny_config`; all are ended when the test is over."""
    runs: list[Run] = []

    def begin(run_dir: str = "run", **options: Any) -> Run:
        runs.append(farm.start(tiny_config(tmp_path / run_dir, tokens, **options)))
        return runs[-1]

    yield begin
    for run in runs:
        run.end()


@pytest.fixture(scope="session")
def undisturbed(farm: Farm, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Run], Run]:
    """The same run without failures, done once per configuration."""
    done: dict[str, Run] = {}

    def oracle(run: Run) -> Run:
        config = dataclasses.replace(run.config, failures=FailuresConfig(), emulate=EmulateConfig(), run_dir="")
        if config.fault_tolerance.exact:  # sums do not depend on the backend, and N groups need no copies
            settings = dataclasses.replace(
                config.fault_tolerance, backend="ckpt", redundancy=1, placement="cyclic", granularity="micro_batch"
            )
            config = dataclasses.replace(config, fault_tolerance=settings)
        config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every_steps=0))
        key = json.dumps(dataclasses.asdict(config), sort_keys=True)
        if key not in done:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            done[key] = farm.start(dataclasses.replace(config, run_dir=str(folder))).finish()
            assert done[key].steps == list(range(config.train.steps))
        return done[key]

    return oracle


@pytest.fixture
def same(undisturbed: Callable[[Run], Run]) -> Callable[..., dict[str, Any]]:
    """Checks a run that ended well against the undisturbed one, bit for bit; returns its summary."""

    def check(run: Run, **expected: Any) -> dict[str, Any]:
        oracle, summary = undisturbed(run), run.summary
        assert summary["weights_sha256"] == oracle.summary["weights_sha256"]
        assert run.losses == oracle.losses
        found = {key: summary[key] for key in expected}
        if found != expected:
            run.fail(f"summary has {found} instead of {expected}")
        return summary

    return check
