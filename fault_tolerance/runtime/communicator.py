"""The communicator between groups: one per position in a group and generation, over the live groups.

Built directly over a store (no global state of torch.distributed), so a new generation is a new object. A failed or
stale one is dropped, never reused: dropping closes its sockets, and the error reaches every rank that still waits. A
collective that nobody fails (its peer is frozen) cannot be called off: it is left to a thread, with the buffers it
may still write to.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fault_tolerance.runtime.generation import Generation
from fault_tolerance.runtime.membership import DeadlineExceeded, Membership

Result = TypeVar("Result")


class MembershipChanged(RuntimeError):
    """A later generation is in the making: what was begun in the older one is void."""


class CommunicatorError(RuntimeError):
    """A collective failed, and no notice of a death has come yet."""


def _interruptible(
    call: Callable[[], Result], membership: Membership, generation: int, deadline: float, what: str
) -> Result:
    """Runs `call` in a thread that may be left behind, until it returns or a later generation begins."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)
        with membership.changed:
            membership.changed.notify_all()

    threading.Thread(target=run, name=what, daemon=True).start()
    _wait(membership, lambda: outcome.done() or membership.is_stale(generation), deadline, what)
    if not outcome.done():
        raise MembershipChanged(f"generation {generation} was superseded")
    try:
        return outcome.result()
    except Exception as error:
        raise CommunicatorError(f"{what}: {error}") from error


def _wait(membership: Membership, predicate: Callable[[], bool], deadline: float, what: str) -> None:
    """Waits for peers; one that does not come in time is the controller's to judge, so it is a failed collective."""
    try:
        membership.wait(predicate, deadline, what)
    except DeadlineExceeded as error:
        raise CommunicatorError(str(error)) from error


class Communicator:
    """Collectives among the same position of all live groups, in one generation.

    Args:
        store_address: host and port of the TCPStore that outlives workers.
        position: rank inside the group; each position has its own communicator.
        device: gloo for CPU tensors, NCCL for CUDA tensors.
        interface: network interface for gloo; None: the one of this host's name.
    """

    def __init__(
        self,
        membership: Membership,
        generation: Generation,
        *,
        store_address: tuple[str, int],
        position: int,
        device: torch.device,
        interface: str | None = None,
    ) -> None:
        self._membership, self.generation, self._device = membership, generation, device
        self.size = len(generation.live)
        self._works: list[Any] = []
        self._futures: list[torch.futures.Future[Any]] = []  # done before their callbacks run, a work only afterwards
        self._group: dist.ProcessGroup | None = None
        if self.size == 1:
            return
        deadlines = membership.deadlines

        def build() -> dist.ProcessGroup:
            # a store client of its own: one that a lost build still blocks must not block the next
            store = dist.TCPStore(*store_address, is_master=False, timeout=timedelta(seconds=deadlines.build))
            prefixed = dist.PrefixStore(f"generation{generation.number}/position{position}", store)
            rank = generation.live.index(membership.group)
            if device.type == "cuda":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timedelta(seconds=deadlines.collective)
                return dist.ProcessGroupNCCL(prefixed, rank, self.size, options)
            gloo = dist.ProcessGroupGloo._Options()
            gloo._timeout = timedelta(seconds=deadlines.collective)
            create = dist.ProcessGroupGloo.create_device
            gloo._devices = [create(interface=interface) if interface else create(hostname=socket.gethostname())]
            return dist.ProcessGroupGloo(prefixed, rank, self.size, gloo)

        self._group = _interruptible(
            build, membership, generation.number, deadlines.build, f"the communicator of generation {generation.number}"
        )

    def start_all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
        """Begins an all-reduce of `tensor` in place; `wait` ends it. Every rank must begin them in the same order.

        Raises:
            CommunicatorError: it could not be begun.
        """
        if self.size == 1:
            return
        assert self._group is not None, "this communicator was dropped"
        options = dist.AllreduceOptions()
        options.reduceOp = op
        try:
            work = self._group.allreduce([tensor], options)
        except RuntimeError as error:
            raise CommunicatorError(str(error)) from error
        future = work.get_future()
        future.add_done_callback(self._notify)
        self._works.append(work)
        self._futures.append(future)

    def _notify(self, _: Any) -> None:
        with self._membership.changed:
            self._membership.changed.notify_all()

    def wait(self, leave: int = 0) -> None:
        """Returns when all begun collectives but the last `leave` have succeeded.

        Raises:
            MembershipChanged: a later generation began.
            CommunicatorError: one failed.
        """
        number = self.generation.number
        count = max(0, len(self._works) - leave)
        _wait(
            self._membership,
            lambda: all(future.done() for future in self._futures[:count]) or self._membership.is_stale(number),
            self._membership.deadlines.collective,
            f"the all-reduce of generation {number}",
        )
        if self._membership.is_stale(number):
            raise MembershipChanged(f"generation {number} was superseded")
        try:
            for work in self._works[:count]:
                work.wait()
        except RuntimeError as error:
            raise CommunicatorError(str(error)) from error
        del self._works[:count], self._futures[:count]

    @property
    def is_quiet(self) -> bool:
        """Whether no begun collective can still write to its buffer."""
        return all(future.done() for future in self._futures)

    def drop(self) -> None:
        """Lets go of everything in a thread: a collective that still hangs keeps that thread, never the caller."""
        holder: list[Any] = [self._works, self._group, self._futures]
        self._works, self._group, self._futures = [], None, []
        must_abort = self._device.type == "cuda"  # NCCL: a crashed peer needs abort, never destroy

        def release() -> None:
            if must_abort and holder[1] is not None:
                holder[1].abort()
            holder.clear()

        threading.Thread(target=release, name="communicator release", daemon=True).start()
