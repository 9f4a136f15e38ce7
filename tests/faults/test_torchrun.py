"""One torchrun per group with the controller beside them, as on a cluster: torchrun restarts what a death took."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from farm import tiny_config

from trainer.config import Config

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

SECONDS = 150.0
GROUPS = 2
MASKING = {
    "fault_tolerance__redundancy": 2,
    "fault_tolerance__exact": True,
    "emulate__unit_seconds": 0.15,  # slow enough that a worker can start again while the others train
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def overrides(config: Config, prefix: str = "") -> Iterator[str]:
    """What one types for a configuration."""
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), getattr(type(config)(), field.name)
        if dataclasses.is_dataclass(value):
            yield from overrides(value, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        elif value != default:
            yield f"{prefix}{field.name}={json.dumps(value) if isinstance(value, list) else value}"


class Cluster:
    """A controller and one torchrun per group on this machine."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder, self.run_dir = config, folder, Path(config.run_dir)
        self.options = [*overrides(config), f"launch.controller=127.0.0.1:{free_port()}"]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start_controller()
        for group in range(GROUPS):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=1"]
            torchrun += ["--max-restarts=3", "--monitor-interval=0.1", "--rdzv-backend=c10d"]
            torchrun += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-id={group}", "-m", "trainer"]
            self.processes[f"group-{group}"] = self._start(
                f"group-{group}", torchrun, "worker", f"launch.group={group}"
            )

    def start_controller(self) -> None:
        self.processes["controller"] = self._start("controller", [sys.executable, "-m", "trainer"], "controller")

    def _start(self, name: str, command: list[str], mode: str, *options: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *self.options, f"launch.mode={mode}", *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def metrics(self) -> list[dict[str, Any]]:
        path = self.run_dir / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def until_step(self, step: int) -> None:
        end = time.monotonic() + SECONDS
        while not any(line["step"] + 1 >= step for line in self.metrics()):
            assert self.processes["controller"].poll() is None, self.logs()
            assert time.monotonic() < end, self.logs()
            time.sleep(0.01)

    def until_it_waits(self, group: int) -> None:
        """The worker that its torchrun has started again was told that the run goes on without it."""
        end, log = time.monotonic() + SECONDS, self.folder / f"group-{group}.log"
        while f"group {group} rank 0 waits:" not in log.read_text():
            assert self.processes["controller"].poll() is None, f"the run was over too soon\n{self.logs()}"
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)

    def worker(self, group: int) -> int:
        """Process id of a group's worker."""
        torchrun = self.processes[f"group-{group}"].pid
        children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
        return int(children[0])

    def finish(self) -> dict[str, Any]:
        for name, process in self.processes.items():
            try:
                status = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} did not end\n{self.logs()}") from None
            assert status == 0, f"{name} ended with status {status}\n{self.logs()}"
        return json.loads((self.run_dir / "summary.json").read_text())

    def logs(self) -> str:
        return "\n".join(f"[{path.stem}]\n{path.read_text()[-4000:]}" for path in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def cluster(tokens: Path, tmp_path: Path) -> Iterator[Any]:
    """Starts a cluster with options; at the end nothing of it is left."""
    started: list[Cluster] = []

    def start(**options: Any) -> Cluster:
        config = tiny_config(tmp_path / "run", tokens, train__steps=60, checkpoint__asynchronous=False, **options)
        started.append(Cluster(config, tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_a_killed_worker_is_started_again_by_its_torchrun(cluster: Any, undisturbed: Any) -> None:
    run = cluster()
    run.until_step(12)
    os.kill(run.worker(1), signal.SIGKILL)
    summary = run.finish()
    assert summary["weights_sha256"] == undisturbed(run).summary["weights_sha256"]
    assert (summary["failures"], summary["global_restarts"]) == (1, 1)


def test_a_masked_death_then_a_wipe_out(cluster: Any, undisturbed: Any) -> None:
    """The worker that its torchrun starts again waits for the next global restart, and is part of it."""
    run = cluster(fault_tolerance__backend="spare", **MASKING)
    run.until_step(12)
    os.kill(run.worker(1), signal.SIGKILL)
    run.until_it_waits(1)
    os.kill(run.worker(0), signal.SIGKILL)
    summary = run.finish()
    assert summary["weights_sha256"] == undisturbed(run).summary["weights_sha256"]
    assert (summary["failures"], summary["masked_failures"], summary["global_restarts"]) == (2, 1, 1)


def test_a_run_ends_well_for_a_worker_that_waits_for_a_restart(cluster: Any, undisturbed: Any) -> None:
    run = cluster(fault_tolerance__backend="rep", **MASKING)
    run.until_step(12)
    os.kill(run.worker(1), signal.SIGKILL)
    run.until_it_waits(1)
    summary = run.finish()
    assert summary["weights_sha256"] == undisturbed(run).summary["weights_sha256"]
    assert (summary["failures"], summary["masked_failures"], summary["global_restarts"]) == (1, 1, 0)


def test_controllers_that_are_ended_and_started_again(cluster: Any, undisturbed: Any) -> None:
    """SIGTERM (a scheduler moves the controller) and SIGKILL do not end the run: workers wait for the next one."""
    run = cluster()
    for number, step in ((signal.SIGTERM, 12), (signal.SIGKILL, 27)):
        run.until_step(step)
        run.processes["controller"].send_signal(number)
        run.processes["controller"].wait(SECONDS)
        run.start_controller()
    summary = run.finish()
    assert summary["weights_sha256"] == undisturbed(run).summary["weights_sha256"]
    events = (run.run_dir / "events.jsonl").read_text().splitlines()
    starts = [event["step"] for event in map(json.loads, events) if event["event"] == "start"]
    assert starts[0] == 0 and 5 <= starts[1] < starts[2], "each controller resumes from a checkpoint"
