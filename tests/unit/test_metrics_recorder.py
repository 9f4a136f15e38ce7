"""RunRecorder writes metrics, events and summary as others rely on them, and survives a disk that fails."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

from trainer.config import Config
from trainer.metrics import recorder as recorder_module
from trainer.metrics.console import Console
from trainer.metrics.files import JsonLines, write_json
from trainer.metrics.peak import gpu_peak, measure_core_peak, run_peak
from trainer.metrics.recorder import SUMMARY_KEYS, RunRecorder


@pytest.fixture(autouse=True)
def unknown_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured where no test asks for it."""
    monkeypatch.setattr(recorder_module, "run_peak", lambda config: None)


def config(backend: str = "ckpt", **train: Any) -> Config:
    config = Config(run_dir="x")
    config.logging.wandb = "disabled"
    config.fault_tolerance.backend = backend
    config.train.steps = 10
    for name, value in train.items():
        setattr(config.train, name, value)
    return config


def recorder(tmp_path: Path, settings: Config, terminal: bool = False) -> tuple[RunRecorder, io.StringIO]:
    stream = io.StringIO()
    rich = RichConsole(file=stream, force_terminal=terminal, width=160, color_system=None, highlight=False)
    console = Console(settings.train.steps, settings.parallel.groups, settings.logging.progress, rich)
    return RunRecorder(settings, tmp_path / "run", console), stream


def record(step: int, generation: int = 0, **more: Any) -> dict[str, Any]:
    seconds = {"total": 0.5, "data": 0.0, "compute": 0.4, "reduce": 0.05, "commit": 0.01, "checkpoint": 0.0}
    values = {"step": step, "loss": 8.0 - step, "lr": 1e-3, "grad_norm": 1.0, "tokens": 1000, "stacks": 1.0}
    return {**values, "seconds": seconds, "live_groups": 2, "generation": generation, "memory_bytes": 2**30, **more}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_with_a_restart(tmp_path: Path) -> None:
    run, stream = recorder(tmp_path, config())
    run.start()
    run.model(flops_per_token=6e6, parameters=1_000_000, peak_flops=2.4e10)
    for step in range(5):
        run.step(record(step))
    run.event("failure", step=5, generation=0, groups=[1], phase="compute", cause="SIGKILL")
    run.event("restart", step=5, generation=1, groups=[0, 1], from_step=4, to_step=3, lost_steps=2, seconds=0.1)
    for step in range(3, 10):
        run.step(record(step, generation=1))
    summary = run.finish({"validation_loss": 1.5, "weights_sha256": "ab" * 32})

    assert tuple(summary) == SUMMARY_KEYS
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert (summary["steps"], summary["tokens"], summary["lost_steps"]) == (10, 10_000, 2)
    assert (summary["failures"], summary["masked_failures"], summary["global_restarts"]) == (1, 0, 1)
    assert (summary["final_loss"], summary["validation_loss"]) == (-1.0, 1.5)

    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert [entry["step"] for entry in metrics] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8, 9]
    assert [entry["generation"] for entry in metrics] == [0] * 5 + [1] * 7
    assert metrics[0]["tokens_per_second"] == 2000.0
    assert metrics[0]["mfu"] == pytest.approx(2000 * 6e6 / 2.4e10)
    assert metrics[-1]["compute_overhead"] == 1.0 and metrics[-1]["availability"] <= 1.0

    events = lines(tmp_path / "run" / "events.jsonl")
    assert [entry["event"] for entry in events] == ["failure", "restart", "end"]
    assert all(0 <= entry["time"] < 60 for entry in events)
    assert events[0]["groups"] == [1] and events[0]["phase"] == "compute"

    text = stream.getvalue()
    assert "group 1 lost in compute, step 5 (SIGKILL)\n" in text
    assert "all groups restarted from the checkpoint of step 3: 2 steps lost, 0.1 s\n" in text
    assert "step  1/10  loss 8.0000  2k tokens/s  MFU 50%  1.07 GB  groups 2/2  availability 100.0%  S 1\n" in text
    assert "step 10/10" in text and "lost steps" in text


def test_a_masked_failure_is_one_line(tmp_path: Path) -> None:
    run, stream = recorder(tmp_path, config("spare"))
    run.start()
    run.event("failure", step=41, generation=3, groups=[3], phase="reduce", cause="SIGKILL")
    seconds = {"detect": 0.1, "agree": 0.18, "rebuild": 0.05, "replan": 0.001, "patch": 0.05, "total": 0.4}
    run.event("replan", step=41, generation=4, phase=1, moves=0, stacks_before=1.0, stacks_after=2.0, seconds=seconds)
    summary = run.finish({})
    failure = "group 3 lost in reduce, step 41 (SIGKILL)"
    assert f"{failure}: 0.18 s to agree, 0 moves, S 1 -> 2, patch 0.05 s, 0.40 s in all\n" in stream.getvalue()
    assert stream.getvalue().count(failure) == 1
    assert (summary["failures"], summary["masked_failures"]) == (1, 1)


def test_a_failure_that_nothing_explained_is_still_told(tmp_path: Path) -> None:
    run, stream = recorder(tmp_path, config("spare"))
    run.start()
    run.event("failure", step=1, groups=[0, 1], phase="commit")
    assert run.finish({"weights_sha256": "ab"})["masked_failures"] == 2
    assert "groups 0, 1 lost in commit, step 1\n" in stream.getvalue()


def test_skipped_steps_and_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    run, _ = recorder(tmp_path, config())
    run.start()
    run.step(record(0))
    run.step(record(1, loss=float("nan"), grad_norm=float("inf"), skipped=True))
    assert run.finish({})["final_loss"] == 8.0
    skipped = lines(tmp_path / "run" / "metrics.jsonl")[1]
    assert skipped["loss"] is None and skipped["grad_norm"] is None and skipped["skipped"] is True
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_without_a_known_peak_no_mfu_is_claimed(tmp_path: Path) -> None:
    run, stream = recorder(tmp_path, config())
    run.start()
    run.model(flops_per_token=6e6, parameters=1, peak_flops=None)
    run.step(record(0))
    run.finish({})
    assert "mfu" not in lines(tmp_path / "run" / "metrics.jsonl")[0] and "MFU" not in stream.getvalue()


def test_log_every_thins_the_metrics_and_keeps_the_last(tmp_path: Path) -> None:
    run, _ = recorder(tmp_path, config(log_every=4))
    run.start()
    for step in range(10):
        run.step(record(step))
    assert run.finish({})["tokens"] == 10_000
    assert [entry["step"] for entry in lines(tmp_path / "run" / "metrics.jsonl")] == [3, 7, 9]


def test_finish_twice_writes_once(tmp_path: Path) -> None:
    run, _ = recorder(tmp_path, config())
    run.start()
    first = run.finish({})
    assert run.finish({"validation_loss": 3.0}) == first
    assert [entry["event"] for entry in lines(tmp_path / "run" / "events.jsonl")] == ["end"]


def test_plain_lines_are_rare_and_quiet_is_quiet(tmp_path: Path) -> None:
    run, stream = recorder(tmp_path, config(steps=1000))
    run.start()
    for step in range(1000):
        run.step(record(step))
    run.message("worker says\nhello")
    assert len(stream.getvalue().splitlines()) == 4  # first and last step, the message

    settings = config()
    settings.logging.progress = False
    run, stream = recorder(tmp_path / "quiet", settings)
    run.start()
    run.step(record(0))
    run.warning("disk full")
    run.finish({})
    assert stream.getvalue() == "warning: disk full\n"


def test_on_a_terminal_lines_stand_above_the_bar(tmp_path: Path) -> None:
    run, stream = recorder(tmp_path, config(), terminal=True)
    run.start()
    run.step(record(0))
    run.message("[worker 1] [bold] hello")
    run.step(record(9))
    time.sleep(0.15)  # the bar is drawn ten times a second
    run.finish({})
    text = stream.getvalue()
    assert "[worker 1] [bold] hello\n" in text
    assert "10/10" in text and "loss -1.0000" in text


def test_many_threads_may_report(tmp_path: Path) -> None:
    run, _ = recorder(tmp_path, config(steps=400))
    run.start()

    def report(first: int) -> None:
        for step in range(first, first + 100):
            run.step(record(step))
            run.event("checkpoint", step=step, status="written", seconds=0.1)

    threads = [threading.Thread(target=report, args=(first,)) for first in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.finish({})["steps"] == 400
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 400
    assert len(lines(tmp_path / "run" / "events.jsonl")) == 401


def test_a_full_disk_costs_lines_not_the_run() -> None:
    warnings: list[str] = []
    full = JsonLines(Path("/dev/full"), warnings.append)
    for number in range(5):
        full.append({"number": number})
    full.close()
    assert len(warnings) == 1 and "No space left" in warnings[0]


def test_a_disk_that_recovers_is_used_again(tmp_path: Path) -> None:
    warnings: list[str] = []
    blocker = tmp_path / "folder"
    blocker.write_text("in the way")
    out = JsonLines(blocker / "lines.jsonl", warnings.append)
    out.append({"number": 0})
    out.append({"number": 1})
    blocker.unlink()
    out.append({"number": 2})
    out.close()
    assert [entry["number"] for entry in lines(blocker / "lines.jsonl")] == [2]
    assert len(warnings) == 2 and "2 lines are missing" in warnings[1]


def test_write_json_leaves_the_old_file_when_it_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"steps": 1})
    with pytest.raises(TypeError):
        write_json(path, {"steps": object()})
    assert json.loads(path.read_text()) == {"steps": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_peaks() -> None:
    assert gpu_peak("NVIDIA H100 80GB HBM3") == 989.5e12
    assert gpu_peak("NVIDIA H100 PCIe") == 756e12
    assert gpu_peak("NVIDIA A100-SXM4-80GB") == 312e12
    assert gpu_peak("some other card") is None
    one = measure_core_peak(seconds=0.02)
    assert 1e8 < one < 1e13
    settings = config()
    settings.device, settings.launch.mode = "cpu", "controller"
    assert run_peak(settings) is None  # the workers' machines are not known here
