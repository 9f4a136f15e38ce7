"""scripts/chaos.py: kills workers of a live run as a person would, and says clearly when it cannot."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from farm import survivable

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parents[2] / "scripts" / "chaos.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("chaos", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def chaos(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the script; returns exit status and all output."""
    module = load()

    def call(*arguments: object) -> tuple[int, str]:
        capfd.readouterr()
        status = module.main([str(argument) for argument in arguments])
        return status, "".join(capfd.readouterr())

    return call


def test_five_of_eight_groups_one_after_another_and_the_run_ends_well(start: Any, same: Any, chaos: Any) -> None:
    dying = survivable("cyclic", 8, 4, range(8), 5)
    run = start(
        parallel__groups=8,
        train__steps=30,
        fault_tolerance__backend="spare",
        fault_tolerance__redundancy=4,
        fault_tolerance__exact=True,
        checkpoint__every_steps=0,
    )
    run.until_step(2)
    for place, group in enumerate(dying):
        status, said = chaos(run.folder, "--group", group)
        assert status == 0, said
        assert f"SIGKILL sent to group {group} rank 0" in said
        run.until(lambda place=place: len(run.events("failure")) > place, "the death was noticed")
    alive = [group for group in range(8) if group not in dying]
    for arguments, reason in (
        (("--group", dying[0]), f"group {dying[0]} does not live"),
        (("--group", 99), "live groups: " + ", ".join(map(str, alive))),
        (("--group", alive[0], "--rank", 5), "has no rank 5; it has 0"),
        ((), "--group NUMBER"),
    ):
        status, said = chaos(run.folder, *arguments)
        assert (status, said.count("\n")) == (2, 1)
        assert reason in said
    run.finish()
    same(run, failures=5, masked_failures=5, global_restarts=0)
    status, said = chaos(run.folder, "--group", 0)
    assert (status, said.count("\n")) == (2, 1)
    assert "has ended" in said


def test_at_random_from_the_command_line(start: Any, same: Any) -> None:
    run = start(train__steps=60, checkpoint__asynchronous=False)
    run.until_step(2)
    command = [sys.executable, str(SCRIPT), str(run.folder), "--every", "0.1", "--count", "1", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SIGKILL sent to group") == 1
    run.finish()
    same(run, failures=1, global_restarts=1)


def test_there_is_no_such_run(tmp_path: Path, chaos: Any) -> None:
    for folder, reason in ((tmp_path / "missing", "is not a folder"), (tmp_path, "holds no processes.json")):
        for how in (("--group", 0), ("--every", 1)):
            status, said = chaos(folder, *how)
            assert (status, said.count("\n")) == (2, 1)
            assert reason in said
