"""A checkpoint of one layout is loaded bit for bit in every other, and training goes on with the same losses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
PROGRAM = Path(__file__).with_name("checkpoint_ranks.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("layouts"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_same_layout_resumes_bit_for_bit(found: dict[str, Any]) -> None:
    for before, after in zip(found["begin"], found["resume"], strict=True):
        assert after["fresh"] != before["saved"]
        assert after["loaded"] == before["saved"]
        assert after["losses"] == before["losses"][2:]
        assert after["end"] == before["end"] != before["saved"]


def test_other_layouts_hold_the_same_bits_and_go_on(found: dict[str, Any]) -> None:
    begin = found["begin"][0]
    layouts = [ranks[0]["layout"] for ranks in found["chain"]]
    assert {"tp": 2, "dp_shard": 2} in layouts and {"pp": 2} in layouts and {"dp_shard": 3} in layouts
    for ranks in found["chain"]:
        for rank in ranks:
            assert rank["loaded"] == begin["saved"], rank["layout"]
            assert rank["weights"] == begin["weights"], rank["layout"]
            assert rank["losses"] == pytest.approx(begin["losses"][2:], rel=1e-5), rank["layout"]


def test_one_rank_that_cannot_write_fails_the_save_of_its_group_only(found: dict[str, Any]) -> None:
    first, second = found["one_rank_cannot_write"]
    assert [(event["step"], event["status"]) for event in first["events"]] == [
        (1, "written"), (2, "failed"), (3, "written")
    ]  # fmt: skip
    assert "rank 1: OSError" in first["events"][1]["reason"] and "File too large" in first["events"][1]["reason"]
    assert second["events"] == []
    assert first["newest"] == 3
