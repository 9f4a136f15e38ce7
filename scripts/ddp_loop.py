"""A hand-written DistributedDataParallel loop of the trainer's model: what `bench_overhead.py` compares with.

It is what one writes without fault tolerance: DDP with gradient accumulation, fused AdamW, clipping, the same data.
"""

from __future__ import annotations

import contextlib
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainer import config as configuration
from trainer.data.prepared import PreparedData
from trainer.optim import apply_learning_rate, build_optimizer, learning_rate
from trainer.parallel.group_model import GroupModel
from trainer.parallel.mesh import GroupMesh
from trainer.worker import open_data


def run(task: dict[str, Any]) -> int:
    """One DDP rank; rank 0 writes the seconds of each step and the last loss to `task["result"]`."""
    config = configuration.load(Path(task["config"]))
    rank, groups, micro_batches = task["rank"], config.parallel.groups, config.parallel.micro_batches
    torch.set_num_threads(config.launch.threads_per_worker)
    store = dist.FileStore(task["store"], groups)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=groups, timeout=timedelta(seconds=120))
    group_model = GroupModel(
        config.model,
        config.parallel,
        mesh=GroupMesh(config.parallel, torch.device("cpu")),
        sequence_length=config.train.sequence_length,
        compute_dtype=torch.float32,
        seed=config.seed,
    )
    model = DistributedDataParallel(group_model.parts[0], bucket_cap_mb=config.parallel.bucket_mib)
    optimizer = build_optimizer(group_model.named_parameters(), config.optim)
    data = open_data(config, PreparedData.from_dict(task["prepared"]))
    tokens = config.train.global_batch * config.train.sequence_length
    seconds = []
    for step in range(config.train.steps):
        began = time.perf_counter()
        total = torch.zeros(())
        for micro_batch in range(micro_batches):
            block = torch.from_numpy(data.unit(step, rank, micro_batch))
            last = micro_batch == micro_batches - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(block[:, :-1], block[:, 1:]).sum() * (groups / tokens)
                loss.backward()
            total += loss.detach() / groups
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.grad_clip)
        apply_learning_rate(optimizer, learning_rate(step, config.optim, config.train.steps))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        total.item()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        Path(task["result"]).write_text(json.dumps({"seconds": seconds, "loss": total.item()}), encoding="utf-8")
    return 0
