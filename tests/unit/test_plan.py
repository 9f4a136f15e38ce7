"""The planner as a program: JSON, table, own clusters, mistakes; with torch out of reach."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fault_tolerance.cluster import ClusterProfile

ROOT = Path(__file__).resolve().parents[2]
RUN = (
    "import runpy, sys\n"
    "sys.modules['torch'] = None\n"
    "sys.argv = sys.argv[1:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)


@dataclasses.dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The program, run in this process."""
    spec = importlib.util.spec_from_file_location("plan_script", ROOT / "scripts/plan.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(*overrides: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            module.main(list(overrides))
        output = capsys.readouterr()
        return Done(ended.value.code, output.out, output.err)

    return run


@pytest.mark.processes
def test_json_of_the_paper_cluster_without_torch():
    command = [sys.executable, "-c", RUN, str(ROOT / "scripts/plan.py")]
    command += ["cluster=paper_600k", "parallel.groups=600", "output=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result) == ["groups", "best_redundancy", "r_star", "rows"]
    assert result["groups"] == 600 and result["r_star"] == 10
    names = [
        "method", "redundancy", "mu", "s_bar", "checkpoint_period_s", "availability", "time_to_train_ratio",
    ]  # fmt: skip
    assert all(list(row) == names for row in result["rows"])
    assert {row["method"] for row in result["rows"]} == {"ckpt", "rep", "spare", "spare_micro_batch"}
    best = min(result["rows"], key=lambda row: row["time_to_train_ratio"])
    assert best["redundancy"] == result["best_redundancy"] and best["method"] == "spare_micro_batch"


def test_table_marks_and_explains(plan):
    done = plan("parallel.groups=200", "fault_tolerance.redundancy=[3,7,9]")
    assert done.returncode == 0, done.stderr
    assert "**" in done.stdout and "no progress*" in done.stdout
    explanation = " ".join(done.stdout[done.stdout.index("Take ") :].split())
    assert explanation.startswith("Take SPARe with micro-batches at r = 7") and explanation.count(". ") == 1


def test_own_cluster_file(plan, tmp_path):
    path = tmp_path / "mine.yaml"
    text = "groups: 8\nmicro_batches: 4\nmtbf_s: 20000\nrestart_s: 300\nsave_s: 5\ncompute_s: 9\nall_reduce_s: 1\n"
    path.write_text(text)
    done = plan(f"cluster={path}", "output=json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["groups"] == 8 and max(row["redundancy"] for row in result["rows"]) == 8
    changed = json.loads(plan(f"cluster={path}", "cluster.mtbf_s=2000", "parallel.groups=4", "output=json").stdout)
    assert changed["groups"] == 4
    assert changed["rows"][0]["time_to_train_ratio"] > result["rows"][0]["time_to_train_ratio"]
    path.write_text(text.replace("save_s: 5\n", ""))
    done = plan(f"cluster={path}")
    assert done.returncode == 2 and "cluster.save_s is missing" in done.stderr


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.restart_s=-5"], "cluster.restart_s=-5: must be a number of at least 0"),
        (["fault_tolerance.redundancy=700"], "fault_tolerance.redundancy=700 exceeds parallel.groups=600"),
        (["cluster.mtbf_s=20"], "cluster.mtbf_s=20 is not longer than a step"),
        (["output=xml"], "output=xml is unknown"),
        (["cluster=missing.yaml"], "cluster=missing.yaml: no such file"),
        (["parallel.groups=0"], "parallel.groups=0"),
    ],
)
def test_nonsense_gets_one_clear_line(plan, overrides, message):
    done = plan(*overrides)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.count("\n") == 1 and message in done.stderr


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"groups": 0}, "cluster.groups=0"),
        ({"groups": 2.5}, "cluster.groups=2.5"),
        ({"mtbf_s": 0}, "cluster.mtbf_s=0"),
        ({"save_s": float("nan")}, "cluster.save_s=nan"),
        ({"restart_s": "long"}, "cluster.restart_s=long"),
        ({"noise_std": 0.5}, "cluster.noise_std=0.5"),
        ({"repair_s": -1}, "cluster.repair_s=-1"),
        ({"all_reduce_s": []}, "cluster.all_reduce_s"),
        ({"all_reduce_s": [[100, 2], [50, 3]]}, "must rise"),
        ({"all_reduce_s": [[100, -2]]}, "cluster.all_reduce_s=-2"),
        ({"compute_s": 400}, "is not longer than a step"),
        ({"mtbf": 3}, "cluster.mtbf: no such value"),
    ],
)
def test_a_profile_refuses_nonsense(values, message):
    good = dataclasses.asdict(ClusterProfile())
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        ClusterProfile.from_mapping(good | values)


def test_all_reduce_seconds_follow_the_points():
    profile = ClusterProfile()
    assert [profile.all_reduce_seconds(n) for n in (10, 200, 600, 1000, 5000)] == pytest.approx([2, 2, 6, 10, 10])
    assert ClusterProfile(all_reduce_s=3).all_reduce_seconds(77) == 3
    assert profile.failure_free_seconds(600) == pytest.approx(700_000)
    assert profile.step_seconds(600, 2.5) == pytest.approx(166)
