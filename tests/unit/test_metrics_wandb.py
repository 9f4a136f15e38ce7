"""W&B: an offline run reads back with its values; nothing that is wrong with W&B stops or slows the caller."""

from __future__ import annotations

import json
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.config import Config, save
from trainer.metrics.console import Console
from trainer.metrics.recorder import RunRecorder
from trainer.metrics.wandb_sink import WandbSink

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def config(mode: str = "offline") -> Config:
    config = Config(run_dir="x")
    config.logging.wandb = mode
    config.logging.wandb_group = "comparison"
    config.logging.wandb_tags = ["quick"]
    config.fault_tolerance.backend = "spare"
    return config


def datastore_records(path: Path) -> Iterator[Any]:
    """Records of a .wandb file: LevelDB's log format (32 KiB blocks; crc, length, type) behind a 7-byte header."""
    from wandb.proto import wandb_internal_pb2

    data, position, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # full, last
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def items_of(update: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in update}


def test_an_offline_run_reads_back(tmp_path: Path) -> None:
    warnings: list[str] = []
    sink = WandbSink(config(), tmp_path, warnings.append)
    for step in (0, 1, 2, 1, 2, 3):  # a restart does steps again
        sink.log({"step": step, "loss": 8.0 - step, "seconds/compute": 0.4})
    event = {"time": 1.5, "event": "failure", "step": 2, "generation": 0, "groups": [1], "phase": "reduce"}
    sink.failure({**event, "cause": "SIGKILL"})
    sink.finish({"steps": 4, "availability": 0.75, "weights_sha256": "abc", "validation_loss": None})
    assert warnings == []

    (store,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = list(datastore_records(store))
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
    assert (run.project, run.run_group, run.job_type) == ("spare-trainer", "comparison", "spare")
    assert list(run.tags) == ["quick"]
    assert run.run_id == (tmp_path / "wandb" / "run_id").read_text()
    settings = items_of(run.config.update)
    assert settings["parallel"]["groups"] == 2 and settings["fault_tolerance"]["backend"] == "spare"

    history = [items_of(record.history.item) for record in records if record.WhichOneof("record_type") == "history"]
    steps = [entry for entry in history if "loss" in entry]
    assert [entry["step"] for entry in steps] == [0, 1, 2, 1, 2, 3]
    assert steps[0]["loss"] == 8.0 and steps[0]["seconds/compute"] == 0.4

    summary: dict[str, Any] = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            summary.update(items_of(record.summary.update))
    assert (summary["steps"], summary["availability"], summary["weights_sha256"]) == (4, 0.75, "abc")

    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/failures*.table.json")
    assert json.loads(table.read_text())["data"] == [[1.5, 2, 0, "[1]", "reduce", "SIGKILL"]]


def test_the_pictures_of_the_report_are_media(tmp_path: Path) -> None:
    settings = config()
    settings.train.steps = 3
    save(settings, tmp_path / "config.yaml")
    recorder = RunRecorder(settings, tmp_path, Console(3, 2, progress=False))
    recorder.start()
    recorder.event("start", step=0, generation=1, groups=[0, 1])
    seconds = {"total": 0.1, "compute": 0.08, "reduce": 0.01}
    for step in range(3):
        recorder.step(
            {
                "step": step,
                "loss": 2.0 - step,
                "tokens": 64,
                "stacks": 1.0,
                "seconds": seconds,
                "live_groups": 2,
                "generation": 1,
            }
        )
    recorder.finish({"weights_sha256": "abc"})
    images = sorted(tmp_path.glob("wandb/offline-run-*/files/media/images/report/*.png"))
    names = {path.name.rsplit("_", 2)[0] for path in images}
    assert names == {"loss", "groups", "stacks", "availability", "time_by_cause"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in images)


def test_an_unusable_folder_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "wandb").write_text("a file in the way")
    warnings: list[str] = []
    sink = WandbSink(config(), tmp_path, warnings.append)
    begin = time.monotonic()
    for step in range(100):
        sink.log({"step": step})
    assert time.monotonic() - begin < 1.0
    sink.finish({})
    assert time.monotonic() - begin < 30.0
    assert len(warnings) == 1 and "metrics.jsonl has everything" in warnings[0]


def test_an_unreachable_server_leaves_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    warnings: list[str] = []
    sink = WandbSink(config("online"), tmp_path, warnings.append, init_seconds=2.0, finish_seconds=40.0)
    begin = time.monotonic()
    sink.log({"step": 0, "loss": 1.0})
    assert time.monotonic() - begin < 0.5
    sink.finish({"steps": 1})
    assert time.monotonic() - begin < 45.0
    assert len(warnings) == 1 and "offline" in warnings[0]
    (store,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert any(record.WhichOneof("record_type") == "history" for record in datastore_records(store))


def test_a_wandb_that_hangs_is_ended_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    warnings: list[str] = []
    sink = WandbSink(config("online"), tmp_path, warnings.append, init_seconds=600.0, finish_seconds=1.5)
    begin = time.monotonic()
    sink.finish({"steps": 1})
    assert time.monotonic() - begin < 8.0
    assert warnings == ["Weights & Biases did not finish within 1.5 s; metrics.jsonl has everything"]


def test_a_full_disk_stops_wandb_and_not_the_caller(tmp_path: Path) -> None:
    warnings: list[str] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # as a disk with 4 KiB per file left
    try:
        sink = WandbSink(config(), tmp_path, warnings.append, finish_seconds=6.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    begin = time.monotonic()
    for step in range(300):
        sink.log({"step": step, "loss": 1.0})
    assert time.monotonic() - begin < 2.0
    sink.finish({"steps": 300})
    assert time.monotonic() - begin < 20.0
    assert len(warnings) == 1 and "metrics.jsonl has everything" in warnings[0]
