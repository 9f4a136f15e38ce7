"""The controller's state machine, spoken to over real sockets by clients that do as they are told."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fault_tolerance.runtime import controller as controller_module
from fault_tolerance.runtime.controller import Controller, Phase
from fault_tolerance.runtime.deadlines import Deadlines
from fault_tolerance.runtime.membership import EXIT_FENCED, EXIT_RESTART
from fault_tolerance.runtime.wire import Connection, Message

TIMEOUT = 1.5
"""Deadlines of the controllers here: silence counts as death after a third of it (seconds)."""
PATIENCE = 20.0


class Witness:
    """A supervisor that takes notes, and begins anew at once when asked to."""

    def __init__(self) -> None:
        self.controller: Controller | None = None
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.steps: list[int] = []
        self.evicted: list[int] = []
        self.restarts: list[str] = []
        self.results: dict[int, Message] | None = None
        self.fatal_reason: str | None = None

    def on_event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def on_step(self, record: Message) -> None:
        self.steps.append(record["step"])

    def evict(self, group: int, reason: str) -> None:
        self.evicted.append(group)

    def restart(self, epoch: int, reason: str) -> None:
        assert self.controller is not None
        self.restarts.append(reason)
        asyncio.get_running_loop().call_soon(self.controller.workers_ended, {"checkpoint": None, "step": 4})

    def finished(self, results: dict[int, Message]) -> None:
        self.results = results

    def fatal(self, reason: str) -> None:
        self.fatal_reason = reason

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == kind]


class Client:
    """A worker's end of the wire; a thread of its own beats its heart."""

    def __init__(self, address: tuple[str, int], group: int, rank: int = 0, **hello: Any) -> None:
        self._connection = Connection(*address, timeout=PATIENCE)
        self._messages: list[Message] = []
        self._beating = threading.Event()
        self.send(type="hello", group=group, rank=rank, **{"pid": 1, "epoch": None, "fingerprint": "f", **hello})

    def send(self, **message: Any) -> None:
        self._connection.send(message)

    def expect(self, kind: str) -> Message:
        """The next message, which must be of this kind."""
        end = time.monotonic() + PATIENCE
        while not self._messages:
            assert time.monotonic() < end, f"no {kind} came"
            received = self._connection.receive(0.05)
            assert received is not None, f"the connection ended before {kind}"
            self._messages += received
        message = self._messages.pop(0)
        assert message["type"] == kind, message
        return message

    def ended(self) -> bool:
        """The controller has closed the connection, after whatever else it had to say."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self._connection.receive(0.05) is None:
                return True
        return False

    def beat(self) -> None:
        self._beating.set()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while self._beating.is_set():
            try:
                self.send(type="heartbeat", phase="reduce", progress=0)
            except OSError:
                return
            time.sleep(TIMEOUT / 20)

    def freeze(self) -> None:
        self._beating.clear()

    def reset(self) -> None:
        """Ends as a killed process with unread messages does."""
        self._connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.freeze()
        self._connection.close()


class Stage:
    """A controller in its own thread, and its clients."""

    def __init__(self, groups: int, ranks: int = 1, masks: bool = True, restarts: int = 2) -> None:
        self.witness = Witness()
        self.controller = Controller(
            groups=groups,
            ranks_per_group=ranks,
            deadlines=Deadlines(TIMEOUT),
            supervisor=self.witness,
            fingerprint="f",
            resume={"checkpoint": None, "step": 4},
            masks_failures=masks,
            max_restarts_without_progress=restarts,
        )
        self.witness.controller = self.controller
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.address = self.call(self.controller.start("127.0.0.1"))
        self.clients: list[Client] = []

    def call(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(PATIENCE)

    def join(self, group: int, rank: int = 0, **hello: Any) -> Client:
        self.clients.append(Client(self.address, group, rank, **hello))
        return self.clients[-1]

    def form(self) -> list[Client]:
        """All groups live, in generation 1 of this epoch, their hearts beating."""
        clients = [
            self.join(group, rank)
            for group in range(self.controller.groups)
            for rank in range(self.controller.ranks_per_group)
        ]
        for client in clients:
            client.expect("welcome")
            client.beat()
            client.send(type="ready")
        for client in clients:
            assert client.expect("generation")["committed"] == 4
        return clients

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, self.witness.events
            time.sleep(0.005)

    def close(self) -> None:
        self.call(self.controller.stop())
        for client in self.clients:
            client.close()
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(*arguments: Any, **keywords: Any) -> Stage:
        stages.append(Stage(*arguments, **keywords))
        return stages[-1]

    yield make
    for made in stages:
        made.close()


def test_a_death_is_agreed_on_by_all_survivors(stage: Callable[..., Stage]) -> None:
    run = stage(3)
    first, second, third = run.form()
    third.close()
    numbers = {client.expect("prepare")["generation"] for client in (first, second)}
    assert len(numbers) == 1
    (number,) = numbers
    first.send(type="acknowledge", generation=number, committed=7)
    time.sleep(0.05)
    assert run.controller.phase is Phase.AGREEING
    second.send(type="acknowledge", generation=number, committed=6)
    for client in (first, second):
        generation = client.expect("generation")
        assert generation["live"] == [0, 1]
        assert generation["deaths"] == [2]
        assert generation["committed"] == 7  # one passed the commit: the step counts for all
    assert run.witness.evicted == [2]
    run.until(lambda: run.witness.of("failure"))
    assert run.witness.of("failure")[0]["groups"] == [2]


def test_a_death_while_agreeing_is_part_of_the_same_generation(stage: Callable[..., Stage]) -> None:
    run = stage(4)
    clients = run.form()
    clients[3].close()
    first = clients[0].expect("prepare")["generation"]
    clients[0].send(type="acknowledge", generation=first, committed=4)
    clients[2].close()
    second = clients[0].expect("prepare")["generation"]
    assert second > first
    assert clients[1].expect("prepare")["generation"] == first
    assert clients[1].expect("prepare")["generation"] == second
    clients[1].send(type="acknowledge", generation=first, committed=4)  # late: no longer enough
    clients[0].send(type="acknowledge", generation=second, committed=4)
    time.sleep(0.05)
    assert run.controller.phase is Phase.AGREEING
    clients[1].send(type="acknowledge", generation=second, committed=4)
    for client in clients[:2]:
        generation = client.expect("generation")
        assert (generation["number"], generation["deaths"], generation["live"]) == (second, [2, 3], [0, 1])


def test_the_whole_group_leaves_with_one_rank(stage: Callable[..., Stage]) -> None:
    run = stage(2, ranks=2)
    clients = run.form()
    clients[3].close()
    assert "rank 1" in clients[2].expect("evicted")["reason"]
    assert clients[2].ended()


def test_silence_and_a_missing_acknowledgement_are_deaths(stage: Callable[..., Stage]) -> None:
    run = stage(3)
    clients = run.form()
    clients[2].freeze()
    number = clients[0].expect("prepare")["generation"]
    assert "silent" in clients[2].expect("evicted")["reason"]
    clients[0].send(type="acknowledge", generation=number, committed=4)
    clients[0].expect("prepare")  # group 1 beats, but never acknowledges
    assert clients[1].expect("prepare")["generation"] == number
    assert "did not acknowledge" in clients[1].expect("evicted")["reason"]
    assert run.witness.evicted == [2, 1]


def test_what_an_evicted_process_sends_does_not_count(stage: Callable[..., Stage]) -> None:
    run = stage(2)
    alive, zombie = run.form()
    zombie.freeze()
    zombie.expect("evicted")
    try:
        zombie.send(type="committed", record={"step": 4, "longest_compute_seconds": 0.1})
        zombie.send(type="done", result={})
    except OSError:
        pass
    assert zombie.ended()
    alive.send(type="committed", record={"step": 4, "longest_compute_seconds": 0.1})
    run.until(lambda: run.witness.steps)
    time.sleep(0.05)
    assert run.witness.steps == [4]
    assert run.witness.results is None


def test_a_pause_of_the_controller_is_nobodys_death(stage: Callable[..., Stage]) -> None:
    run = stage(3)
    clients = run.form()
    run.loop.call_soon_threadsafe(time.sleep, 2 * TIMEOUT)
    time.sleep(2.5 * TIMEOUT)
    assert run.controller.phase is Phase.RUNNING
    assert not run.witness.evicted
    clients[2].freeze()  # and afterwards it watches as before
    clients[0].expect("prepare")
    assert run.witness.evicted == [2]


def test_an_error_without_a_death_is_agreed_on_anew(stage: Callable[..., Stage]) -> None:
    run = stage(2)
    clients = run.form()
    clients[0].send(type="error", generation=1, error="connection reset")
    numbers = [client.expect("prepare")["generation"] for client in clients]
    for client, number in zip(clients, numbers, strict=True):
        client.send(type="acknowledge", generation=number, committed=4)
    for client in clients:
        assert client.expect("generation")["live"] == [0, 1]
    clients[1].send(type="error", generation=1, error="late news of the old generation")
    time.sleep(0.3)
    assert run.controller.phase is Phase.RUNNING
    assert run.controller.generation == numbers[0]


def test_restarts_without_progress_are_bounded_and_progress_renews_them(stage: Callable[..., Stage]) -> None:
    run = stage(1, restarts=2)
    for step in (4, 5, 5, 5):
        (client,) = run.form()
        client.send(type="committed", record={"step": step, "longest_compute_seconds": 0.1})
        run.until(lambda step=step: run.witness.steps[-1:] == [step])
        client.close()
        run.until(lambda: run.witness.fatal_reason or run.controller.phase is Phase.FORMING)
    assert run.witness.fatal_reason is not None
    assert "max_restarts_without_progress=2" in run.witness.fatal_reason
    assert len(run.witness.restarts) == 3


def test_without_masking_any_death_is_a_restart(stage: Callable[..., Stage]) -> None:
    run = stage(2, masks=False)
    clients = run.form()
    clients[0].close()
    assert "global restart" in clients[1].expect("stop")["reason"]
    run.until(lambda: run.controller.phase is Phase.FORMING)
    run.form()
    run.until(lambda: run.witness.of("restart"))
    assert run.witness.of("restart")[0]["to_step"] == 4


def test_the_run_ends_when_all_live_groups_are_done(stage: Callable[..., Stage]) -> None:
    run = stage(3)
    clients = run.form()
    clients[0].send(type="done", result={"hash": "x"})
    clients[1].close()
    number = clients[2].expect("prepare")["generation"]
    clients[2].send(type="done", result={"hash": "x"})  # before it could acknowledge
    clients[2].send(type="acknowledge", generation=number, committed=9)
    clients[2].expect("bye")
    run.until(lambda: run.witness.results)
    assert set(run.witness.results or ()) == {0, 2}
    assert [failure["groups"] for failure in run.witness.of("failure")] == [[1]]  # told before the end


def test_who_is_refused(stage: Callable[..., Stage]) -> None:
    run = stage(2)
    refusals = [
        (run.join(5), "does not exist", False),
        (run.join(0, fingerprint="other"), "configuration differs", False),
        (run.join(0, epoch=3), "epoch 3 is over", False),
    ]
    run.join(1).expect("welcome")
    refusals.append((run.join(1), "already here", True))
    for client, reason, retry in refusals:
        refused = client.expect("refused")
        assert reason in refused["reason"]
        assert refused["retry"] is retry
        assert client.ended()


def test_a_late_group_waits_for_the_next_restart(stage: Callable[..., Stage]) -> None:
    run = stage(2)
    run.form()
    refused = run.join(1).expect("refused")
    assert refused["retry"]
    assert "next global restart" in refused["reason"]
    assert not run.join(1, fingerprint="other").expect("refused")["retry"]


def test_the_end_is_told_to_those_who_train_and_to_those_who_wait(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "WAITING_PATIENCE", PATIENCE / Deadlines(TIMEOUT).heartbeat_interval)
    run = stage(2)
    first, _ = run.form()
    assert run.join(1).expect("refused")["retry"]
    stopping = asyncio.run_coroutine_threadsafe(run.controller.stop(over=True), run.loop)
    assert first.expect("stop")["ended"]
    assert not stopping.done(), "it stays until those who wait have asked again"
    refused = run.join(1).expect("refused")
    assert refused["ended"] and not refused["retry"]
    stopping.result(PATIENCE)


def test_a_controller_that_ends_alone_leaves_the_run_open(stage: Callable[..., Stage]) -> None:
    run = stage(1)
    (client,) = run.form()
    run.call(run.controller.stop())
    assert client.ended(), "no word of an end: its scheduler starts the worker again"


def test_strangers_harm_nobody(stage: Callable[..., Stage]) -> None:
    run = stage(1)
    (client,) = run.form()
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b'{"group": null, "rank": 0}\n', b"[1]\n", b"\xff\xfe\n"):
        with socket.create_connection(run.address) as stranger:
            stranger.sendall(noise)
            assert stranger.recv(100) == b""
    assert len(run.witness.of("protocol_error")) == 5
    client.send(type="done", result={})
    client.expect("bye")


def test_what_was_written_before_a_reset_counts(stage: Callable[..., Stage]) -> None:
    run = stage(2)
    clients = run.form()
    clients[1].freeze()
    run.loop.call_soon_threadsafe(time.sleep, 0.3)  # so that message and reset are noticed together
    clients[1].send(type="failed", error="ZeroDivisionError", traceback="line 1")
    clients[1].reset()
    run.until(lambda: run.witness.of("failure"))
    assert [error["error"] for error in run.witness.of("worker_error")] == ["ZeroDivisionError"]
    assert not run.witness.of("protocol_error")


WORKER = """
import sys, time
from fault_tolerance.runtime.deadlines import Deadlines
from fault_tolerance.runtime.membership import Membership
host, port, group, timeout = sys.argv[1], *map(float, sys.argv[2:])
identity = dict(group=int(group), rank=0, epoch=None, fingerprint="f")
worker = Membership(host, int(port), **identity, deadlines=Deadlines(timeout))
worker.ready()
worker.progress("reduce")
time.sleep(60)
"""


def start_worker(run: Stage, group: int) -> subprocess.Popen[str]:
    """A real worker's membership in a process of its own, whose main thread hangs once it is ready."""
    command = [sys.executable, "-c", WORKER, *map(str, (*run.address, group, TIMEOUT))]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def end_of(worker: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and last words; it must end by itself."""
    try:
        _, said = worker.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.communicate()
        raise
    return worker.returncode, said


@pytest.mark.processes
def test_a_frozen_worker_is_fenced_when_it_comes_back(stage: Callable[..., Stage]) -> None:
    run = stage(2)
    alive, zombie = run.join(0), start_worker(run, 1)
    alive.expect("welcome")
    alive.beat()
    alive.send(type="ready")
    alive.expect("generation")
    zombie.send_signal(signal.SIGSTOP)
    alive.expect("prepare")
    assert run.witness.evicted == [1]
    zombie.send_signal(signal.SIGCONT)
    status, said = end_of(zombie)
    assert status == EXIT_FENCED
    assert "evicted" in said


@pytest.mark.processes
def test_a_worker_leaves_when_told_to_stop_or_when_the_controller_is_gone(stage: Callable[..., Stage]) -> None:
    run = stage(2, masks=False)
    first, second = (start_worker(run, group) for group in range(2))
    run.until(lambda: run.controller.phase is Phase.RUNNING)
    first.kill()
    end_of(first)
    status, said = end_of(second)
    assert status == EXIT_RESTART
    assert "global restart" in said
    run.until(lambda: run.controller.phase is Phase.FORMING)
    third = start_worker(run, 0)
    run.until(lambda: run.witness.events and len(run.controller._members) == 1)
    run.call(run.controller.stop())
    status, said = end_of(third)
    assert status == EXIT_FENCED
    assert "the controller is gone" in said
