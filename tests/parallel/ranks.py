"""Runs a function on several real ranks over gloo: forked from a server that has imported torch once.

Every wait is bounded and no process is left behind, whatever the function does.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch._dynamo", "trainer.parallel.group_model", "trainer.weights"])


def start_server() -> None:
    """Start the fork server that all ranks come from; it ends with this process."""
    forkserver.ensure_running()


def _main(
    rank: int, world: int, folder: str, timeout: float, connection: Connection, function: Callable[..., Any], args: Any
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        store = dist.FileStore(os.path.join(folder, "store"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout))
        connection.send_bytes(pickle.dumps(("result", function(rank, *args))))
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        connection.send_bytes(pickle.dumps(("error", traceback.format_exc())))
    connection.close()


def run_ranks(world: int, function: Callable[..., Any], *args: Any, timeout: float = 100.0) -> list[Any]:
    """Results of function(rank, *args) for each rank of `world`, in order.

    `function` runs with the default process group set up; it and what it returns must be picklable. Raises
    AssertionError with a rank's traceback if one fails, or if not all are done within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    processes, pipes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_main, args=(rank, world, folder, timeout, sender, function, args), daemon=True
            )
            process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        try:
            return _collect(pipes, deadline)
        finally:
            for process in processes:
                process.join(max(0.0, min(5.0, deadline - time.monotonic())))
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        assert ready, f"ranks {[rank for rank in range(len(pipes)) if rank not in results]} were not done in time"
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = pipes.index(pipe)
            try:
                kind, value = pickle.loads(pipe.recv_bytes())
            except EOFError:
                kind, value = "error", "the process died without a word"
            assert kind == "result", f"rank {rank} failed:\n{value}"
            results[rank] = value
    return [results[rank] for rank in range(len(pipes))]
