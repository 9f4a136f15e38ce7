"""`scripts/simulate.py` as it is typed."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import simulate

QUICK = ["cluster=small", "cluster.steps=300", "cluster.mtbf_s=600", "parallel.groups=20", "progress=false"]


def call(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        simulate.main([*QUICK, *arguments])
    output = capsys.readouterr()
    return int(stop.value.code or 0), output.out, output.err


def test_one_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fault_tolerance=spare", "fault_tolerance.redundancy=3", "output=json", "seed=2"]
    code, out, _ = call(arguments, capsys)
    assert code == 0
    summary = json.loads(out)
    wanted = "time_to_train_ratio availability productive_fraction compute_overhead failures masked_failures"
    assert set(wanted.split()) | {"global_restarts", "lost_steps"} <= set(summary)
    assert summary["failures"] > 0
    assert call(arguments, capsys)[1] == out


def test_granularity_and_micro_batches_count(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["fault_tolerance.redundancy=3", "output=json"]
    ratios = [
        json.loads(call([*base, *more], capsys)[1])["compute_overhead"]
        for more in (["fault_tolerance.granularity=shard"], ["parallel.micro_batches=2"], ["parallel.micro_batches=16"])
    ]
    assert ratios == sorted(ratios, reverse=True) and ratios[0] > ratios[2] + 0.05


def test_kept_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call([f"run_dir={tmp_path}/run", "fault_tolerance.redundancy=3"], capsys)
    assert code == 0 and "availability" in out
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert {"start", "failure", "replan", "checkpoint", "end"} <= {event["event"] for event in events}
    assert (tmp_path / "run/timeline.png").stat().st_size > 10_000
    trace = [f"simulation.trace={tmp_path}/run/events.jsonl", "output=json", "fault_tolerance.redundancy=3"]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert json.loads(call(trace, capsys)[1])["failures"] == summary["failures"]


@pytest.mark.parametrize("kind", ["redundancy", "scaling"])
def test_sweeps(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        f"sweep.kind={kind}",
        "sweep.redundancies=[2,3]",
        "sweep.methods=[rep,spare]",
        "sweep.seeds=2",
        "sweep.workers=1",
        "sweep.gpus=[4000,20000]",
        f"run_dir={tmp_path}/sweep",
    ]
    code, out, _ = call(arguments, capsys)
    assert code == 0 and "SPARe+CKPT" in out
    with (tmp_path / "sweep/rows.csv").open() as file:
        assert len(list(csv.DictReader(file))) == (8 if kind == "redundancy" else 16)
    summary = json.loads((tmp_path / "sweep/summary.json").read_text())
    assert sum(point["best"] for point in summary["points"]) == (2 if kind == "redundancy" else 4)
    pictures = {path.name for path in (tmp_path / "sweep").glob("*.png")}
    assert pictures >= ({"scaling.png"} if kind == "scaling" else {"time_to_train.png", "timeline.png", "stacks.png"})


@pytest.mark.parametrize(
    "argument,message",
    [
        ("output=xml", "output=xml is unknown"),
        ("cluster.mtbf_s=-3", "cluster.mtbf_s=-3"),
        ("fault_tolerance.redundancy=21", "21"),
        ("simulation.trace=nowhere.jsonl", "no such file"),
        ("simulation.notice=later", "notice=later"),
        ("simulation.masked_death_in_save=lost", "masked_death_in_save=lost"),
        ("simulation.write_s=-1", "write_seconds=-1"),
        ("sweep.kind=all", "sweep.kind=all"),
        ("simulation.tracee=x", "tracee"),
    ],
)
def test_mistakes_are_one_line(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call([argument], capsys)
    assert code == 2 and out == ""
    assert message in err and err.count("\n") == 1
