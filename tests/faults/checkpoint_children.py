"""Processes that save checkpoints and die at a chosen moment: a program of its own that imports torch once and forks.

    python checkpoint_children.py FOLDER

It is single-threaded, so forking is safe; what it saw goes to standard output as JSON, by the names of its functions.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from trainer.checkpoint.catalog import Catalog
from trainer.checkpoint.loader import load
from trainer.checkpoint.writer import STAGES, CheckpointWriter

DEADLINE_SECONDS = 20.0
PARTS = 2


def state_of(step: int, rows: int = 64) -> dict[str, torch.Tensor]:
    """Eight tensors whose every element tells the step."""
    return {f"tensor{i}": torch.full((rows, 16 + i), step + i / 8) for i in range(8)}


def fork(work: Callable[[], None]) -> int:
    """Run `work` in a child; its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


def end_of(pid: int) -> int:
    """Exit status of a child, negative for a signal; it is killed after the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"child {pid} was not done in {DEADLINE_SECONDS} s")


def save_steps(folder: Path, part: int, steps: list[int], generation: int, die: tuple[int, str] | None = None) -> None:
    """What a worker does: save its part at each step, and kill itself in a stage of one of them."""
    now = {"step": 0}

    def hook(stage: str) -> None:
        if die == (now["step"], stage):
            os.kill(os.getpid(), signal.SIGKILL)

    writer = CheckpointWriter(Catalog(folder), group=part, keep=3, phase_hook=hook)
    for step in steps:
        writer.wait()
        now["step"] = step
        writer.save(step, generation, part, PARTS, state_of(step), {"step": step})
    assert writer.wait()


def seen(folder: Path) -> dict[str, Any]:
    """What a restart would find: the newest verified step, whether every tensor is of that step, what was rejected."""
    catalog = Catalog(folder)
    found = catalog.newest_verified()
    if found is None:
        return {"step": None, "pure": True, "messages": catalog.messages}
    path, manifest = found
    rows = manifest["extra"].get("rows", 64)
    into = {name: torch.empty_like(tensor) for name, tensor in state_of(0, rows).items()}
    load(path, manifest["parts"], into)
    pure = all(torch.equal(into[name], tensor) for name, tensor in state_of(manifest["step"], rows).items())
    return {"step": manifest["step"], "pure": pure, "messages": catalog.messages}


def stages(root: Path) -> list[dict[str, Any]]:
    """Two groups save steps 10 and 20; the second dies in one stage of step 20; then the run restarts and saves 20."""
    results = []
    for stage in STAGES:
        folder = root / stage
        first = end_of(fork(lambda folder=folder: save_steps(folder, 0, [10, 20], 1)))
        second = end_of(fork(lambda folder=folder, stage=stage: save_steps(folder, 1, [10, 20], 1, (20, stage))))
        after_death = seen(folder)
        pointer = (folder / "latest").read_text().strip()
        removed = Catalog(folder).remove_stale()
        again = [end_of(fork(lambda folder=folder, part=part: save_steps(folder, part, [20], 2))) for part in range(2)]
        left = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
        results.append(
            {
                "stage": stage,
                "exits": [first, second, *again],
                "after_death": after_death,
                "pointer": pointer,
                "removed": [step for step, _ in removed],
                "after_restart": seen(folder),
                "left": left,
            }
        )
    return results


def moments(root: Path) -> list[dict[str, Any]]:
    """One group saves without pause and is killed from outside at moments spread over several saves."""
    results = []
    rows = 6000

    def work(folder: Path) -> None:
        writer = CheckpointWriter(Catalog(folder), group=0, keep=2)
        for step in range(1, 1000):
            writer.save(step, 1, 0, 1, state_of(step, rows), {"rows": rows})

    for index in range(8):
        folder = root / str(index)
        pid = fork(lambda folder=folder: work(folder))
        until = time.monotonic() + DEADLINE_SECONDS
        while not (folder / "latest").exists() and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(0.03 + 0.017 * index)
        os.kill(pid, signal.SIGKILL)
        status = end_of(pid)
        newest = max(int(path.name.split("-")[1]) for path in Catalog(folder).entries())
        results.append({"exit": status, "newest": newest, **seen(folder)})
        shutil.rmtree(folder)
    return results


def writers(root: Path) -> dict[str, Any]:
    """Four groups in step save together: one checkpoint each time, published by one of them, nothing left over."""
    steps, groups = list(range(1, 8)), 4
    barrier = multiprocessing.get_context("fork").Barrier(groups)

    def work(part: int) -> None:
        events: list[dict[str, Any]] = []
        writer = CheckpointWriter(Catalog(root), group=part, keep=2, on_event=events.append)
        for step in steps:
            barrier.wait(DEADLINE_SECONDS)  # the commit: no group is a step ahead
            writer.save(step, 1, part, groups, state_of(step), {"step": step})
        assert writer.wait()
        (root / f"events-{part}").write_text(json.dumps(events))

    exits = [end_of(pid) for pid in [fork(lambda part=part: work(part)) for part in range(groups)]]
    events = [event for part in range(groups) for event in json.loads((root / f"events-{part}").read_text())]
    names = sorted(path.name for path in root.iterdir() if not path.name.startswith("events-"))
    said = sorted((event["step"], event["status"]) for event in events)
    return {"exits": exits, "names": names, "events": said, **seen(root)}


if __name__ == "__main__":
    found: dict[str, Any] = {}
    for scenario in (stages, moments, writers):
        place = Path(sys.argv[1]) / scenario.__name__
        place.mkdir()
        found[scenario.__name__] = scenario(place)
    print(json.dumps(found))
