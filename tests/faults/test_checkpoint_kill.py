"""Scenario 9: SIGKILL in each stage of a save, and at any moment: the older checkpoint, or the new one whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
PROGRAM = Path(__file__).with_name("checkpoint_children.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("checkpoints")
    command = [sys.executable, str(PROGRAM), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("index, stage", list(enumerate(["write", "fsync", "manifest", "rename", "pointer"])))
def test_death_in_a_stage(found: dict[str, Any], index: int, stage: str) -> None:
    result = found["stages"][index]
    assert result["stage"] == stage
    assert result["exits"] == [0, -9, 0, 0]
    expected = 20 if stage == "pointer" else 10
    assert result["after_death"] == {"step": expected, "pure": True, "messages": []}
    assert result["pointer"] == "step-00000010"
    assert result["removed"] == ([] if stage == "pointer" else [20])
    assert result["after_restart"] == {"step": 20, "pure": True, "messages": []}
    assert result["left"] == []


def test_death_at_any_moment(found: dict[str, Any]) -> None:
    for result in found["moments"]:
        assert result["exit"] == -9
        assert result["pure"] and result["messages"] == []
        assert result["step"] == result["newest"], "what is visible must be whole"


def test_groups_in_step_publish_each_checkpoint_once(found: dict[str, Any]) -> None:
    result = found["writers"]
    assert result["exits"] == [0, 0, 0, 0]
    assert result["events"] == [[step, "written"] for step in range(1, 8)]
    assert result["names"] == ["latest", "step-00000006", "step-00000007"]
    assert (result["step"], result["pure"]) == (7, True)
