"""`make soak`: random runs with random signals from outside, for SOAK_MINUTES (60), each compared bit for bit.

Every choice comes from SOAK_SEED (0), and the seed of a round that failed is in the assertion's run folder name.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from typing import Any

import psutil
import pytest
from farm import Run

MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
SEED = int(os.environ.get("SOAK_SEED", "0"))
LEAK_SHARE = 0.2
"""Part of the time that is spent on one long run whose resources are watched."""

pytestmark = [pytest.mark.processes, pytest.mark.soak, pytest.mark.timeout(MINUTES * 60 + 600)]

SHAPES = [  # groups, tp, pp, dp_shard
    (2, 1, 1, 1),
    (4, 1, 1, 1),
    (8, 1, 1, 1),
    (3, 2, 1, 1),
    (3, 1, 2, 1),
    (3, 1, 1, 2),
    (2, 2, 2, 1),
]
SIGNALS = [signal.SIGKILL] * 7 + [signal.SIGSTOP] * 2 + [signal.SIGTERM]


def options(draw: random.Random) -> dict[str, Any]:
    """A random run."""
    groups, tp, pp, dp_shard = draw.choice(SHAPES)
    backend = draw.choice(["ckpt", "rep", "spare", "spare"])
    placement = draw.choice(["cyclic", "partition"]) if backend == "rep" else "cyclic"
    depths = [1] if backend == "ckpt" else range(2, groups + 1)
    if placement == "partition":
        depths = [depth for depth in depths if groups % depth == 0]
    return {
        "parallel__groups": groups,
        "parallel__tp": tp,
        "parallel__pp": pp,
        "parallel__dp_shard": dp_shard,
        "train__global_batch": groups * 2 * dp_shard,
        "train__steps": draw.randrange(20, 80),
        "fault_tolerance__backend": backend,
        "fault_tolerance__placement": placement,
        "fault_tolerance__redundancy": draw.choice(list(depths)),
        "fault_tolerance__granularity": draw.choice(["shard", "micro_batch"]) if backend == "spare" else "micro_batch",
        "fault_tolerance__exact": True,
        "fault_tolerance__timeout_seconds": 6.0,
        "fault_tolerance__max_restarts_without_progress": 50,
        "checkpoint__every_steps": draw.randrange(3, 12),
        "checkpoint__asynchronous": draw.random() < 0.7,
    }


def disturb(run: Run, draw: random.Random) -> int:
    """Sends random signals to random workers until the run is over; returns how many."""
    sent, pause = 0, draw.choice([0.3, 1.0, 3.0])
    while run.status(draw.expovariate(1 / pause)) is None and sent < 12:
        workers = sorted(run.processes().items())
        for (group, rank), _ in draw.sample(workers, min(len(workers), draw.choice([1, 1, 1, 2]))):
            with contextlib.suppress(KeyError, ProcessLookupError):  # it has just ended
                run.signal(group, rank, draw.choice(SIGNALS))
                sent += 1
    return sent


def test_random_runs_with_random_signals(start: Any, same: Any) -> None:
    end = time.monotonic() + MINUTES * 60 * (1 - LEAK_SHARE)
    rounds = sent = 0
    while time.monotonic() < end:
        draw = random.Random(1000 * SEED + rounds)
        run = start(run_dir=f"round-{1000 * SEED + rounds}", **options(draw))
        sent += disturb(run, draw)
        run.finish(seconds=300.0)
        summary = same(run)
        assert summary["failures"] >= summary["masked_failures"]
        shutil.rmtree(run.folder)
        rounds += 1
    print(f"{rounds} runs, {sent} signals")


def test_a_long_run_of_restarts_leaks_nothing(start: Any) -> None:
    draw = random.Random(SEED)
    run = start(
        parallel__groups=4,
        train__steps=1_000_000,
        fault_tolerance__backend="spare",
        fault_tolerance__redundancy=2,
        fault_tolerance__max_restarts_without_progress=1000,
        checkpoint__every_steps=20,
    )
    run.until_step(20)
    launcher = psutil.Process(run.launcher)
    (server,) = launcher.children()
    end = time.monotonic() + MINUTES * 60 * LEAK_SHARE
    samples = []
    while time.monotonic() < end:
        time.sleep(draw.uniform(0.1, 0.5))
        workers = sorted(run.processes())
        if len(workers) == 4:  # all are there again: nothing of the past may be left
            memory = launcher.memory_info().rss
            samples.append((launcher.num_fds(), launcher.num_threads(), server.num_fds(), len(run.left()), memory))
        done = len(run.steps)
        if workers:
            with contextlib.suppress(KeyError, ProcessLookupError):  # it has just ended
                run.signal(*draw.choice(workers))
        run.until(lambda done=done: len(run.steps) > done + 2, "training goes on")
    os.kill(run.launcher, signal.SIGTERM)
    run.finish(status=128 + signal.SIGTERM)
    assert len(samples) >= 3, "too few restarts: soak for longer"
    quarter = max(1, len(samples) // 4)
    for name, early, late in zip(
        ("descriptors of the launcher", "threads of the launcher", "descriptors of the fork server", "processes"),
        zip(*samples[:quarter], strict=True),
        zip(*samples[-quarter:], strict=True),
        strict=False,
    ):
        assert min(late) <= max(early) + 3, f"{name}: {early} at first, {late} at last"
    assert samples[-1][-1] < 1.3 * samples[0][-1] + 50e6, "the launcher's memory grows"
    print(f"{len(run.events('restart'))} restarts, samples {samples[0]} to {samples[-1]}")
