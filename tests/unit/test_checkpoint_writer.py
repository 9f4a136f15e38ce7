"""Saving and loading in one process: shares, copies, events, fences, disks that refuse."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint.catalog import Catalog
from trainer.checkpoint.loader import load
from trainer.checkpoint.state import share_of
from trainer.checkpoint.writer import STAGES, CheckpointWriter

State = dict[str, torch.Tensor]


def state_of(step: int, scale: int = 1) -> State:
    """A state whose every element tells its step."""
    return {
        "model/a": torch.full((64 * scale, 33), float(step)),
        "model/b": torch.full((7,), step + 0.5),
        "optimizer/a/step": torch.tensor(float(step)),
        "optimizer/a/exp_avg": torch.full((64 * scale, 33), -float(step)).t(),
        "empty": torch.empty(0, 4),
    }


def read_back(catalog: Catalog) -> tuple[State, dict[str, Any]]:
    found = catalog.newest_verified()
    assert found is not None
    into = {name: torch.full_like(tensor, -7) for name, tensor in state_of(0).items()}
    load(found[0], found[1]["parts"], into)
    return into, found[1]


def same(a: State, b: State) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "checkpoints")


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_round_trip(catalog: Catalog, asynchronous: bool, parts: int) -> None:
    events: list[dict[str, Any]] = []
    for part in reversed(range(parts)):
        writer = CheckpointWriter(catalog, group=part, asynchronous=asynchronous, on_event=events.append)
        writer.save(40, 3, part, parts, state_of(40), {"loss": [1.5, 2.5]})
        assert writer.wait()
    (event,) = events
    assert (event["event"], event["status"], event["step"], event["generation"]) == ("checkpoint", "written", 40, 3)
    assert event["groups"] == [0] and event["parts"] == parts and event["seconds"] > 0
    state, manifest = read_back(catalog)
    assert same(state, state_of(40)) and manifest["extra"] == {"loss": [1.5, 2.5]}
    assert (catalog.folder / "latest").read_text() == "step-00000040\n"


def test_one_copy_is_written_whatever_the_number_of_groups(catalog: Catalog) -> None:
    state = state_of(1, scale=100)
    for part in range(4):
        writer = CheckpointWriter(catalog, group=part)
        writer.save(1, 0, part, 4, state)
        assert writer.wait()
    found = catalog.newest_verified()
    assert found is not None
    data = [item["bytes"] for name, item in found[1]["files"].items() if name.endswith(".distcp")]
    assert sum(data) < 1.05 * sum(tensor.nbytes for tensor in state.values()) + 4 * 4096


@given(sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=30), parts=st.integers(1, 6))
def test_shares_cover_everything_once_and_are_balanced(sizes: list[int], parts: int) -> None:
    state = {f"t{i}": torch.empty(size, device="meta") for i, size in enumerate(sizes)}
    shares = [share_of(state, part, parts) for part in range(parts)]
    assert sorted(name for share in shares for name in share) == sorted(state)
    heaviest = max(sum(state[name].nbytes for name in share) for share in shares)
    assert heaviest <= sum(sizes) * 4 / parts + max(sizes) * 4
    shuffled = dict(reversed(state.items()))
    assert share_of(shuffled, 0, parts) == shares[0]


def test_what_training_does_after_save_is_not_saved(catalog: Catalog) -> None:
    gate = threading.Event()
    writer = CheckpointWriter(catalog, group=0, phase_hook=lambda stage: gate.wait(20))
    state = state_of(5)
    writer.save(5, 0, 0, 1, state)
    for tensor in state.values():
        tensor.add_(1)
    gate.set()
    assert writer.wait()
    assert same(read_back(catalog)[0], state_of(5))


def test_buffers_are_reused_and_grow(catalog: Catalog) -> None:
    writer = CheckpointWriter(catalog, group=0)
    writer.prepare(0, 1, state_of(0))
    assert writer.wait()
    arena = writer._buffers._arena
    for step, (part, parts) in enumerate(((0, 1), (1, 2), (0, 1))):
        writer.save(step, 0, part, parts, state_of(step))
        assert writer.wait() and writer._buffers._arena is arena
    assert same(read_back(catalog)[0], state_of(2))
    writer.save(9, 0, 0, 1, state_of(9, scale=50))
    assert writer.wait() and writer._buffers._arena is not arena


def test_stages_come_in_order_and_the_last_group_publishes(catalog: Catalog) -> None:
    told: list[list[str]] = [[], []]
    for part in range(2):
        writer = CheckpointWriter(catalog, group=part, phase_hook=told[part].append)
        writer.save(5, 0, part, 2, state_of(5))
        assert writer.wait()
    assert told == [list(STAGES[:3]), list(STAGES)]


def test_a_later_save_waits_for_the_earlier(catalog: Catalog) -> None:
    order: list[str] = []
    gate = threading.Event()

    def hook(stage: str) -> None:
        order.append(stage)
        if stage == "pointer":
            gate.wait(20)

    writer = CheckpointWriter(catalog, group=0, phase_hook=hook)
    writer.save(5, 0, 0, 1, state_of(5))
    threading.Timer(0.3, gate.set).start()
    writer.save(10, 0, 0, 1, state_of(10))
    assert writer.wait()
    assert order == list(STAGES) * 2
    assert read_back(catalog)[1]["step"] == 10


def test_a_save_that_never_ends_skips_later_ones_loudly(catalog: Catalog) -> None:
    gate = threading.Event()
    events: list[dict[str, Any]] = []
    writer = CheckpointWriter(
        catalog, group=0, on_event=events.append, phase_hook=lambda stage: gate.wait(20), patience_seconds=0.2
    )
    writer.save(5, 0, 0, 1, state_of(5))
    writer.save(10, 0, 0, 1, state_of(10))
    assert [(event["status"], event["step"]) for event in events] == [("failed", 10)]
    assert "save of step 5 has been running" in events[0]["reason"]
    gate.set()
    assert writer.wait(20)
    assert read_back(catalog)[1]["step"] == 5


def test_a_stale_generation_publishes_nothing(catalog: Catalog) -> None:
    events: list[dict[str, Any]] = []
    writer = CheckpointWriter(catalog, group=0, on_event=events.append, fence=lambda: False)
    writer.save(5, 1, 0, 1, state_of(5))
    assert writer.wait()
    assert events[0]["status"] == "failed" and "generation 1 is over" in events[0]["reason"]
    assert catalog.newest_verified() is None


def test_an_exception_of_the_hook_reaches_training(catalog: Catalog) -> None:
    def hook(stage: str) -> None:
        raise KeyError(stage)

    writer = CheckpointWriter(catalog, group=0, phase_hook=hook)
    writer.save(5, 0, 0, 1, state_of(5))
    with pytest.raises(KeyError, match="write"):
        writer.wait()
    assert catalog.newest_verified() is None


def test_retention_and_abandoned_saves(catalog: Catalog) -> None:
    events: list[dict[str, Any]] = []
    writer = CheckpointWriter(catalog, group=0, keep=2, on_event=events.append)
    writer.save(5, 0, 0, 2, state_of(5))  # the other group died: never completed
    for step in (10, 15, 20, 25):
        writer.save(step, 0, 0, 1, state_of(step))
    assert writer.wait()
    assert [path.name for path in catalog.entries()] == ["step-00000025", "step-00000020"]
    assert [(e["status"], e["step"]) for e in events] == [
        ("written", 10), ("failed", 5), ("written", 15), ("written", 20), ("written", 25)
    ]  # fmt: skip
    assert "never completed (only part-0 recorded)" in events[1]["reason"]
    assert sorted(path.name for path in catalog.folder.iterdir()) == ["latest", "step-00000020", "step-00000025"]


def test_another_model_is_refused_by_name(catalog: Catalog) -> None:
    writer = CheckpointWriter(catalog, group=0)
    writer.save(5, 0, 0, 1, state_of(5))
    assert writer.wait()
    found = catalog.newest_verified()
    assert found is not None
    wrong_shape = state_of(0) | {"model/b": torch.zeros(8)}
    with pytest.raises(ValueError, match=r"model/b as \(7,\) torch.float32, the run needs \(8,\).*checkpoint.resume"):
        load(found[0], 1, wrong_shape)
    with pytest.raises(ValueError, match=r"has no model/c .and 0 more"):
        load(found[0], 1, state_of(0) | {"model/c": torch.zeros(8)})


@contextlib.contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(options, capture_output=True, timeout=20).returncode != 0:
        pytest.skip("a small file system needs root and the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=20)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_full_disk_is_an_alarm_and_training_goes_on(tmp_path: Path, asynchronous: bool) -> None:
    with tmpfs(tmp_path / "disk", "1m"):
        catalog = Catalog(tmp_path / "disk" / "checkpoints")
        events: list[dict[str, Any]] = []
        writer = CheckpointWriter(catalog, group=0, keep=5, asynchronous=asynchronous, on_event=events.append)
        for step, scale in ((5, 1), (10, 100), (15, 1)):
            writer.save(step, 0, 0, 1, state_of(step, scale))
            assert writer.wait()
        assert [(event["status"], event["step"]) for event in events] == [
            ("written", 5), ("failed", 10), ("written", 15)
        ]  # fmt: skip
        assert "No space left on device" in events[1]["reason"] and "MiB free in" in events[1]["reason"]
        assert same(read_back(catalog)[0], state_of(15)) and catalog.messages == []


def test_a_read_only_disk_is_an_alarm_and_training_goes_on(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "4m"):
        catalog = Catalog(tmp_path / "disk" / "checkpoints")
        events: list[dict[str, Any]] = []
        writer = CheckpointWriter(catalog, group=0, on_event=events.append)
        for step, mode in ((5, "rw"), (10, "ro"), (15, "rw")):
            subprocess.run(["mount", "-o", f"remount,{mode}", str(tmp_path / "disk")], check=True, timeout=20)
            writer.save(step, 0, 0, 1, state_of(step))
            assert writer.wait()
            assert read_back(catalog)[1]["step"] == (5 if step == 10 else step)
        assert [event["status"] for event in events] == ["written", "failed", "written"]
        assert "Read-only file system" in events[1]["reason"]
