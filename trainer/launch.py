"""The launcher: controller, store and all groups of a run on this machine; or the controller alone, on a head node.

It imports no torch until the fork server, which imports it too, has been started, so that both load side by side. It
never forks: it hosts the store, which has threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from fault_tolerance.runtime.controller import Controller
from fault_tolerance.runtime.deadlines import Deadlines
from fault_tolerance.runtime.forkclient import ForkServerClient, Task
from fault_tolerance.runtime.wire import Message, parse_address
from trainer import config as configuration
from trainer.checkpoint.catalog import Catalog
from trainer.config import Config
from trainer.data.prepare import prepare
from trainer.data.prepared import PreparedData
from trainer.failure_driver import FailureDriver
from trainer.metrics.recorder import RunRecorder
from trainer.policy import policy_of
from trainer.resume import StartingPoint
from trainer.run_folder import RunFolder, fingerprint
from trainer.threads import threads_per_worker

Happening = tuple[str, Any]
"""What the main thread reacts to: (kind, payload)."""


class _Stopped(BaseException):
    """A signal came while the run was still being prepared."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Launcher:
    """One run: from a checked configuration to an exit status.

    Args:
        inherit: this process has a single thread and has imported the worker: fork the fork server from it.
    """

    def __init__(self, config: Config, inherit: bool = False) -> None:
        self._inherit = inherit
        self.config = config
        self.folder = RunFolder(Path(config.run_dir).absolute())
        self.deadlines = Deadlines(config.fault_tolerance.timeout_seconds)
        self.happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self.local = config.launch.mode == "local"
        self.forkserver: ForkServerClient | None = None
        self.catalog = Catalog(config.checkpoint.dir or self.folder.checkpoints)
        self._running: dict[str, int] = {}
        self._unended: set[str] = set()
        self._supervising = False
        self._ending = False
        self._epoch = 0
        self._failures = FailureDriver.of(config, self._kill)

    # -- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Trains; returns the exit status (0 well, 1 failed, 128 + n at signal n)."""
        recorder: RunRecorder | None = None
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._on_signal)
            self.folder.logs.mkdir(parents=True, exist_ok=True)
            self.folder.summary.unlink(missing_ok=True)  # of an earlier run here: this one has not ended
            configuration.save(self.config, self.folder.config)
            if self.local:
                self._start_forkserver(self._inherit)
            self.prepared = prepare_data(self.config)
            recorder = self.recorder = RunRecorder(self.config, self.folder.path)
            self.start = StartingPoint(self.config, self.catalog, self._on_rejected, self.prepared.fingerprint)
            recorder.start()
            self._start_store()
            self._start_controller()
            if self.local:
                self._start_workers(epoch=0)
            status, final = self._supervise()
        except _Stopped as stopped:
            if recorder is not None:
                recorder.warning(f"{stopped}: the run ends")
            status, final = 128 + stopped.number, {}
        except Exception:
            if recorder is not None:
                recorder.finish({})
            raise
        finally:
            self._ending = True
            if self.forkserver is not None:
                self.forkserver.close(patience=self.deadlines.shutdown)
            self.folder.processes.unlink(missing_ok=True)
        if recorder is not None:
            recorder.finish(final)
        return status

    def _on_signal(self, number: int, _: Any) -> None:
        """A run that is supervised ends in order; one whose data are being prepared is simply left."""
        if self._supervising:
            self.happenings.put(("signal", number))
        elif not self._ending:
            self._ending = True
            raise _Stopped(number)

    def _supervise(self) -> tuple[int, dict[str, Any]]:
        """Reacts to what happens until the run ends."""
        self._supervising = True
        while True:
            kind, payload = self.happenings.get()
            if kind == "restart":
                epoch, reason = payload
                self._restart(epoch, reason)
            elif kind == "finished":
                self._call_controller(self.controller.stop())
                return 0, _agreed_result(payload)
            elif kind == "fatal":
                self.recorder.warning(payload)
                self._call_controller(self.controller.stop())
                return 1, {}
            elif kind == "signal":
                self.recorder.warning(f"{signal.Signals(payload).name}: the run ends")
                # at SIGTERM a scheduler may only move the controller: workers elsewhere wait for the next one
                self._call_controller(self.controller.stop(over=payload == signal.SIGINT))
                return 128 + payload, {}
            elif kind == "gone":
                self._renew_forkserver()

    # -- controller and store ---------------------------------------------------------------------------------------

    def _start_store(self) -> None:
        import torch.distributed as dist

        listener = socket.create_server((self._store_host(), 0), backlog=4096)
        host, self.store_port = listener.getsockname()[:2]
        self._store = dist.TCPStore(
            host,
            self.store_port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=self.deadlines.startup),
            master_listen_fd=listener.detach(),
        )

    def _store_host(self) -> str:
        """Address that the store listens on: launch.address, or beside workers elsewhere the controller's."""
        address = self.config.launch.address
        if self.local or address != "127.0.0.1":
            return address
        return parse_address(self.config.launch.controller or "", "launch.controller")[0]

    def _start_controller(self) -> None:
        settings = self.config.fault_tolerance
        self.controller = Controller(
            groups=self.config.parallel.groups,
            ranks_per_group=self.config.parallel.ranks_per_group,
            deadlines=self.deadlines,
            supervisor=self,
            fingerprint=fingerprint(self.config),
            resume=self._with_store(self.start.first()),
            masks_failures=policy_of(self.config).masks_failures,
            max_restarts_without_progress=settings.max_restarts_without_progress,
            least_restart_seconds=self.config.emulate.restart_seconds,
        )
        host, port = self.config.launch.address, 0
        if not self.local:
            host, port = parse_address(self.config.launch.controller or "", "launch.controller")
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._on_controller_error)
        threading.Thread(target=self._loop.run_forever, name="controller", daemon=True).start()
        self.controller_address = self._call_controller(self.controller.start(host, port))

    def _with_store(self, start: Message) -> Message:
        return {**start, "store_port": self.store_port}

    def _on_rejected(self, message: str) -> None:
        """A checkpoint was passed over."""
        self.recorder.warning(message)
        self.recorder.event("checkpoint", status="rejected", cause=message)

    def _call_controller(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(self.deadlines.timeout)

    def _on_controller_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Nobody waits for what runs in the controller's loop: an error there would leave a run that waits for ever."""
        error = context.get("exception")
        if isinstance(error, OSError) and (
            {"transport", "socket"} & context.keys()
        ):  # a connection, or no more sockets
            self.recorder.warning(f"controller: {context['message']} ({error})")
            return
        lines = traceback.format_exception(error) if error is not None else []
        self.recorder.message("".join(lines).rstrip())
        self.happenings.put(("fatal", f"the controller failed: {error or context['message']}"))

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)

    # -- Supervisor: called by the controller -----------------------------------------------------------------------

    def on_event(self, kind: str, **fields: Any) -> None:
        if kind == "worker_error":
            label = f"group {fields['groups'][0]} rank {fields['rank']}"
            self.recorder.message("\n".join(f"[{label}] {line}" for line in fields["traceback"].rstrip().splitlines()))
        self.recorder.event(kind, **fields)
        if self._failures is not None:
            if kind in ("start", "restart"):
                self._failures.begin(fields["step"])
            elif kind == "failure":
                self._failures.died(fields["groups"])

    def on_step(self, record: Message) -> None:
        self.recorder.step(record)
        if self._failures is not None:
            self._failures.step(record["step"] + 1)

    def evict(self, group: int, reason: str) -> None:
        self._kill(group)

    def restart(self, epoch: int, reason: str) -> None:
        if self._failures is not None:
            self._failures.pause()
        self.happenings.put(("restart", (epoch, reason)))

    def finished(self, results: dict[int, Message]) -> None:
        self.happenings.put(("finished", results))

    def fatal(self, reason: str) -> None:
        self.happenings.put(("fatal", reason))

    # -- workers on this machine ------------------------------------------------------------------------------------

    def _name(self, group: int, rank: int) -> str:
        return f"group {group} rank {rank} of epoch {self._epoch}"

    def _kill(self, group: int) -> None:
        """SIGKILL to every process of a group on this machine (elsewhere its scheduler ends it)."""
        if self.forkserver is not None:
            self.forkserver.kill([self._name(group, rank) for rank in range(self.config.parallel.ranks_per_group)])

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment["OMP_NUM_THREADS"] = str(threads_per_worker(self.config))
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return environment

    def _start_forkserver(self, inherit: bool) -> None:
        modules = ["trainer.worker"]
        modules += ["trainer.parallel.pipeline"] if self.config.parallel.pp > 1 else []
        modules += ["trainer.parallel.sharding"] if self.config.parallel.dp_shard > 1 else []
        self.forkserver = ForkServerClient(",".join(modules), self._environment(), self._from_forkserver, inherit)

    def _renew_forkserver(self) -> None:
        """Starts a new fork server where the old one has died; the controller has the workers begin anew."""
        if self.forkserver is not None and self.forkserver.is_gone:
            self.recorder.warning("the fork server died, and all workers with it: a new one starts")
            self.forkserver.close(patience=self.deadlines.shutdown)
            self._start_forkserver(inherit=False)

    def _start_workers(self, epoch: int) -> None:
        assert self.forkserver is not None
        self._epoch = epoch
        parallel = self.config.parallel
        shared: Task = {
            "epoch": epoch,
            "config": str(self.folder.config),
            "controller": list(self.controller_address),
            "interface": self._environment()["GLOO_SOCKET_IFNAME"],
            "prepared": asdict(self.prepared),
            "environment": {},
        }
        tasks = []
        for group in range(parallel.groups):
            for rank in range(parallel.ranks_per_group):
                local_rank = group * parallel.ranks_per_group + rank
                own = {"name": self._name(group, rank), "log": str(self.folder.log(group, rank))}
                tasks.append({**shared, **own, "group": group, "rank": rank, "local_rank": local_rank})
        self._unended.update(task["name"] for task in tasks)
        self.forkserver.start(tasks)

    def _from_forkserver(self, message: dict[str, Any]) -> None:
        """In the reader thread of the fork server."""
        if message["type"] == "started":
            self._running[message["task"]] = message["pid"]
            self._write_processes()
        elif message["type"] == "exited":
            self._running.pop(message["task"], None)
            self._write_processes()
            self._worker_ended(message["task"], message["pid"], message["status"])
            self._unended.discard(message["task"])
        elif message["type"] == "gone" and not self._ending:
            for task in sorted(self._unended):
                self._worker_ended(task, self._running.pop(task, 0), -signal.SIGKILL)
            self._unended.clear()
            self.happenings.put(("gone", None))

    def _worker_ended(self, task: str, pid: int, status: int) -> None:
        if self._ending or status == 0:
            return
        place, _, epoch = task.partition(" of epoch ")
        _, group, _, rank = place.split()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self._soon(self.controller.worker_ended, int(group), int(epoch), f"rank {rank} (process {pid}) {how}")

    def _write_processes(self) -> None:
        scratch = self.folder.processes.with_suffix(".new")
        places = {task.partition(" of epoch ")[0]: pid for task, pid in self._running.items()}
        try:
            scratch.write_text(json.dumps(places, indent=1), encoding="utf-8")
            scratch.replace(self.folder.processes)
        except OSError as error:  # a full disk must not stop the run
            self.recorder.warning(f"{self.folder.processes} is not up to date: {error}")

    def _restart(self, epoch: int, reason: str) -> None:
        """Global restart: no worker of the old epoch lives when the new ones start."""
        if self.forkserver is not None:
            self.forkserver.kill(None)
            self._await_no_worker()
            self._renew_forkserver()
        self._soon(self.controller.workers_ended, self._with_store(self.start.again()))
        if self.forkserver is not None:
            self._start_workers(epoch)

    def _await_no_worker(self) -> None:
        deadline = time.monotonic() + self.deadlines.timeout
        while self._unended and time.monotonic() < deadline:
            time.sleep(0.005)
        if self._unended:
            raise RuntimeError(f"workers live on after SIGKILL: {', '.join(sorted(self._unended))}")


def prepare_data(config: Config) -> PreparedData:
    prepared = prepare(config.data, progress=config.logging.progress)
    if prepared.vocab_size > config.model.vocab_size:
        raise ValueError(
            f"model.vocab_size={config.model.vocab_size} is below the tokenizer's {prepared.vocab_size}: "
            f"set model.vocab_size={prepared.vocab_size} or more"
        )
    return prepared


def _agreed_result(results: dict[int, Message]) -> dict[str, Any]:
    """The groups' results; all must hold the same weights.

    Raises:
        RuntimeError: they do not.
    """
    hashes = {group: result["weights_sha256"] for group, result in results.items()}
    if len(set(hashes.values())) > 1:
        raise RuntimeError(f"groups ended with different weights: {hashes}")
    return dict(next(iter(results.values())))
