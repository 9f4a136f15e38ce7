"""A torchft loop of the trainer's model: what `bench_recovery.py` compares with.

It is what torchft asks for, at its cheapest: a Manager per group with asynchronous quorum, its reconfigurable gloo
process group, and one managed all-reduce over the flat gradient. The step of a group that died is discarded by all and
done again without it; the batch shrinks. In a ring only the neighbours of a dead rank see an error, the others wait
out the process group's timeout; unless (`abort`, which torchft does not do by itself) whoever sees an error lets go of
its process group at once. A victim kills itself where the trainer's injection does, after its backward pass and right
before its all-reduce.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft.coordination import LighthouseServer
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from fault_tolerance.runtime.buckets import GradientBuckets
from trainer import config as configuration
from trainer.data.prepared import PreparedData
from trainer.optim import apply_learning_rate, build_optimizer, learning_rate
from trainer.parallel.group_model import GroupModel
from trainer.parallel.mesh import GroupMesh
from trainer.worker import open_data


def run(task: dict[str, Any]) -> int:
    """One group; appends a line {"step", "began", "time"} (Unix seconds) per committed step to `task["result"]`."""
    config = configuration.load(Path(task["config"]))
    group, marks = task["group"], Path(task["marks"])
    if group == 0:  # never a victim; a process of its own for the lighthouse would be one more for the cores
        lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, **task["lighthouse"])
        (marks / "new").write_text(f"http://localhost:{lighthouse.address().rpartition(':')[2]}")
        (marks / "new").rename(marks / "lighthouse")
    torch.set_num_threads(config.launch.threads_per_worker)
    torch.manual_seed(config.seed)
    model = GroupModel(
        config.model,
        config.parallel,
        mesh=GroupMesh(config.parallel, torch.device("cpu")),
        sequence_length=config.train.sequence_length,
        compute_dtype=torch.float32,
        seed=config.seed,
    )
    optimizer = build_optimizer(model.named_parameters(), config.optim)
    parameters = [parameter for _, parameter in model.named_parameters()]
    buckets = GradientBuckets(parameters, bucket_bytes=config.parallel.bucket_mib << 20, keep_local=False)
    data = open_data(config, PreparedData.from_dict(task["prepared"]))
    own = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=task["collective_seconds"])),
        load_state_dict=lambda state: _load(model, optimizer, state),
        state_dict=lambda: {"model": dict(model.named_parameters()), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=task["timeout_seconds"]),
        quorum_timeout=timedelta(seconds=task["timeout_seconds"]),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=own.port,
        lighthouse_addr=_await(task, lambda: list(marks.glob("lighthouse")))[0].read_text(),
        replica_id=f"group_{group}",
        hostname="localhost",
        heartbeat_interval=timedelta(milliseconds=task["heartbeat_milliseconds"]),
        init_sync=False,
    )
    (marks / f"ready-{group}").touch()
    # all groups are built before the first quorum, so that a short join timeout does not leave one out
    _await(task, lambda: len(list(marks.glob("ready-*"))) == config.parallel.groups)
    with Path(task["result"]).open("a", buffering=1, encoding="utf-8") as result:
        while manager.current_step() < config.train.steps:
            began = time.time()
            step = _train_step(config, manager, model, optimizer, buckets, data, task)
            if step is not None:
                result.write(json.dumps({"step": step, "began": began, "time": time.time()}) + "\n")
    manager.shutdown(wait=False)
    (marks / f"done-{group}").touch()
    if group == 0:  # the lighthouse stays until all are done: one that had to catch up comes later
        _await(task, lambda: len(list(marks.glob("done-*"))) == task["survivors"])
    return 0


def _train_step(
    config: configuration.Config,
    manager: Manager,
    model: GroupModel,
    optimizer: torch.optim.Optimizer,
    buckets: GradientBuckets,
    data: Any,
    task: dict[str, Any],
) -> int | None:
    """One attempt at a step; returns its number if it was committed."""
    manager.start_quorum()
    buckets.begin_step()
    step = manager.current_step()
    for micro_batch in range(config.parallel.micro_batches):
        model.run(torch.from_numpy(data.unit(step, task["group"], micro_batch))[None])
    _strike(task, step)
    manager.allreduce(buckets.reduced).wait()
    if task["abort"] and manager.errored():
        manager._pg.abort(errored=False)  # closes its sockets: the error reaches those who still wait
    if not manager.should_commit():
        return None
    buckets.expose_reduced()
    tokens = config.train.global_batch * config.train.sequence_length / config.parallel.groups
    norm = model.gradient_norm(buckets.reduced_gradients()).item() / tokens
    clip = min(1.0, config.optim.grad_clip / (norm + 1e-6))
    buckets.reduced.mul_(clip / tokens)
    apply_learning_rate(optimizer, learning_rate(step, config.optim, config.train.steps))
    optimizer.step()
    return step


def _load(model: GroupModel, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Takes over a peer's state: a group that missed a quorum is brought back so."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state["model"][name])
    optimizer.load_state_dict(state["optimizer"])


def _strike(task: dict[str, Any], step: int) -> None:
    """Kills this process in its step; the mark's time of modification is the time of the kill."""
    if task["kill_at"] is not None and step >= task["kill_at"]:
        (Path(task["marks"]) / f"struck-{task['kill']}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _await(task: dict[str, Any], what: Callable[[], Any]) -> Any:
    """Polls until `what` is true; returns it."""
    deadline = time.monotonic() + task["timeout_seconds"]
    while not (value := what()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the other groups did not come so far within {task['timeout_seconds']} s")
        time.sleep(0.005)
    return value
