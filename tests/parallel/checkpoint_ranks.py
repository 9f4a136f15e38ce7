"""Groups of several ranks that save, load in another layout and go on: a program that imports torch once and forks.

    python checkpoint_ranks.py FOLDER

It is single-threaded, so forking is safe; what the ranks saw goes to standard output as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from trainer.checkpoint.catalog import Catalog
from trainer.checkpoint.loader import load
from trainer.checkpoint.state import training_state
from trainer.checkpoint.writer import CheckpointWriter
from trainer.config import ModelConfig, OptimConfig, ParallelConfig
from trainer.optim import build_optimizer
from trainer.parallel.group_model import GroupModel
from trainer.parallel.mesh import GroupMesh
from trainer.weights import weights_sha256

DEADLINE_SECONDS = 40.0
MODEL = ModelConfig(
    vocab_size=98,
    hidden_size=32,
    intermediate_size=74,
    layers=2,
    heads=4,
    kv_heads=2,
    qk_norm=True,
    tied_embeddings=True,
)
CHAIN: list[dict[str, int]] = [{}, {"tp": 2}, {"pp": 2}, {"tp": 2, "dp_shard": 2}, {"dp_shard": 3}]
"""Each layout loads what the one before saved; 3 shards divide none of the sizes."""


class Group:
    """This rank's part of a small model with its optimizer and what saves it."""

    def __init__(self, layout: dict[str, int], seed: int) -> None:
        self.process_group = dist.new_group(backend="gloo") if dist.get_world_size() > 1 else None
        parallel = ParallelConfig(**layout)
        mesh = GroupMesh(parallel, torch.device("cpu"))
        self.model = GroupModel(MODEL, parallel, mesh=mesh, sequence_length=8, compute_dtype=torch.float32, seed=seed)
        self.optimizer = build_optimizer(self.model.named_parameters(), OptimConfig(lr=1e-2))

    def state(self) -> dict[str, torch.Tensor]:
        return training_state(self.model.named_parameters(), self.optimizer)

    def step(self, index: int) -> float:
        """One optimizer step on data of its own; the loss before it."""
        for _, parameter in self.model.named_parameters():
            parameter.grad = torch.zeros_like(parameter)
        generator = torch.Generator().manual_seed(index)
        loss = self.model.run(torch.randint(0, MODEL.vocab_size, (2, 6, 9), generator=generator))
        self.optimizer.step()
        return float(loss)

    def hash(self) -> str:
        """Hash of everything a checkpoint holds, as full tensors."""
        state = sorted(self.state().items())
        full = ((name, t.full_tensor() if isinstance(t, DTensor) else t) for name, t in state)
        return weights_sha256(full, self.process_group)

    def weights(self) -> str:
        return weights_sha256(self.model.full_named_tensors(), self.process_group)

    def save(self, folder: Path, parts: int = 2) -> None:
        """Save all parts, one after another, as so many groups would."""
        for part in range(parts):
            writer = CheckpointWriter(Catalog(folder), group=part, process_group=self.process_group)
            writer.save(2, 1, part, parts, self.state())
            assert writer.wait()

    def load(self, folder: Path) -> None:
        found = Catalog(folder).newest_verified()
        assert found is not None
        load(found[0], found[1]["parts"], self.state())


def begin(folder: Path) -> dict[str, Any]:
    """FSDP on two ranks: train, save, train on."""
    group = Group({"dp_shard": 2}, seed=1)
    losses = [group.step(index) for index in range(2)]
    saved, weights = group.hash(), group.weights()
    group.save(folder / "0")
    losses += [group.step(index) for index in (2, 3)]
    return {"saved": saved, "weights": weights, "losses": losses, "end": group.hash()}


def resume(folder: Path) -> dict[str, Any]:
    """The same layout, from the checkpoint."""
    group = Group({"dp_shard": 2}, seed=2)
    fresh = group.hash()
    group.load(folder / "0")
    loaded = group.hash()
    return {"fresh": fresh, "loaded": loaded, "losses": [group.step(i) for i in (2, 3)], "end": group.hash()}


def pass_on(folder: Path, index: int) -> dict[str, Any]:
    """Load what layout `index - 1` saved, save it again, and take a step."""
    group = Group(CHAIN[index], seed=3)
    group.load(folder / str(index))
    loaded, weights = group.hash(), group.weights()
    group.save(folder / str(index + 1))
    return {"layout": CHAIN[index], "loaded": loaded, "weights": weights, "losses": [group.step(i) for i in (2, 3)]}


def one_rank_cannot_write(folder: Path) -> dict[str, Any]:
    """The second rank may not write files of more than 100 bytes for a while: both learn of it, and go on."""
    group = Group({"dp_shard": 2}, seed=1)
    events: list[dict[str, Any]] = []
    writer = CheckpointWriter(Catalog(folder), group=0, process_group=group.process_group, on_event=events.append)
    for step in (1, 2, 3):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if step == 2 and dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        writer.save(step, 1, 0, 1, group.state())
        assert writer.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = Catalog(folder).newest_verified()
    return {"events": events, "newest": found[1]["step"] if found else None}


def on_ranks(folder: Path, world: int, work: Callable[..., dict[str, Any]], *arguments: Any) -> list[dict[str, Any]]:
    """Results of `work` on `world` forked ranks with a default process group over gloo."""
    place = folder / f"ranks-{time.monotonic_ns()}"
    place.mkdir()
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _child(place, rank, world, work, arguments)
        children.append(pid)
    deadline = time.monotonic() + DEADLINE_SECONDS
    statuses: dict[int, int] = {}
    while len(statuses) < world:
        for pid in set(children) - set(statuses):
            if time.monotonic() > deadline or any(statuses.values()):
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    assert not any(statuses.values()), f"{work.__name__}{arguments}: ranks ended with {list(statuses.values())}"
    return [json.loads((place / f"result-{rank}").read_text()) for rank in range(world)]


def _child(place: Path, rank: int, world: int, work: Callable[..., dict[str, Any]], arguments: tuple) -> None:
    try:
        torch.set_num_threads(1)
        logging.disable()
        store = dist.FileStore(str(place / "store"), world)
        timeout = timedelta(seconds=DEADLINE_SECONDS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
        (place / f"result-{rank}").write_text(json.dumps(work(place.parent, *arguments)))
        dist.barrier()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    found: dict[str, Any] = {"begin": on_ranks(root, 2, begin), "resume": on_ranks(root, 2, resume), "chain": []}
    for number, layout in enumerate(CHAIN):
        ranks = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("dp_shard", 1)
        found["chain"].append(on_ranks(root, ranks, pass_on, number))
    found["one_rank_cannot_write"] = on_ranks(root, 2, one_rank_cannot_write)
    print(json.dumps(found))
