"""A worker: one rank of one group. Builds everything for a rank, trains, and hands in the result.

The same code runs forked on one machine (`run`, a task from the launcher) and under torchrun (`run_under_torchrun`);
they differ only in how a rank learns who it is.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # every optimizer imports it at its first use: here a fork server does it once for all workers
import torch.distributed as dist

from fault_tolerance.backends.base import GlobalRestart, Vote
from fault_tolerance.backends.live import LiveBackend
from fault_tolerance.policies.base import Policy
from fault_tolerance.runtime.buckets import GradientBuckets
from fault_tolerance.runtime.communicator import Communicator
from fault_tolerance.runtime.deadlines import Deadlines
from fault_tolerance.runtime.exact_buckets import ExactGradientBuckets
from fault_tolerance.runtime.generation import Generation
from fault_tolerance.runtime.injection import Injector, Strike
from fault_tolerance.runtime.membership import EXIT_RESTART, Membership, Refused
from trainer import config as configuration
from trainer.checkpoint.catalog import Catalog
from trainer.checkpoint.loader import load as load_checkpoint
from trainer.checkpoint.schedule import CheckpointSchedule
from trainer.checkpoint.state import training_state
from trainer.checkpoint.writer import CheckpointWriter
from trainer.config import Config
from trainer.data.dataset import BlockDataset
from trainer.data.prepared import PreparedData
from trainer.emulate import Pacer
from trainer.loop import Diverged, TrainingLoop
from trainer.memory import keep_freed_memory
from trainer.optim import build_optimizer
from trainer.parallel.group_model import GroupModel
from trainer.parallel.mesh import GroupMesh
from trainer.policy import policy_of
from trainer.run_folder import RunFolder, fingerprint
from trainer.threads import threads_per_worker
from trainer.weights import weights_sha256


@dataclass
class Identity:
    """Who this rank is, and whom it talks to."""

    group: int
    rank: int
    local_rank: int
    epoch: int | None
    controller: tuple[str, int]
    interface: str | None
    """Network interface for gloo; None: the one of this host's name."""


def run(task: dict[str, Any]) -> int:
    """Entry of a forked worker; returns its exit status."""
    identity = Identity(
        task["group"], task["rank"], task["local_rank"], task["epoch"], tuple(task["controller"]), task["interface"]
    )
    config = configuration.load(Path(task["config"]))
    return _guarded(config, identity, PreparedData.from_dict(task["prepared"]))


def run_under_torchrun(config: Config, prepared: PreparedData, controller: tuple[str, int]) -> int:
    """Entry of a worker that torchrun started: rank and world of the group come from its environment."""
    assert config.launch.group is not None
    identity = Identity(
        config.launch.group,
        int(os.environ["RANK"]),
        int(os.environ["LOCAL_RANK"]),
        None,
        controller,
        os.environ.get("GLOO_SOCKET_IFNAME"),
    )
    return _guarded(config, identity, prepared)


def _guarded(config: Config, identity: Identity, prepared: PreparedData) -> int:
    """Trains; whatever goes wrong reaches the controller before this process ends."""
    membership: Membership | None = None
    try:
        membership = _join(config, identity)
        train(config, identity, prepared, membership)
        return 0
    except GlobalRestart as restart:
        assert membership is not None
        membership.request_restart(str(restart))
        time.sleep(membership.deadlines.shutdown)  # the controller's "stop" ends this process
        return EXIT_RESTART
    except Exception as error:
        if isinstance(error, Refused) and error.ended:
            print(error, file=sys.stderr)
            return 0  # a scheduler need not start this process again
        traceback.print_exc()
        if membership is None:
            return 1
        if isinstance(error, Diverged) or (isinstance(error, ValueError) and not membership.is_training):
            membership.fatal(str(error))  # the data or the user's options: a restart would end the same way
            time.sleep(membership.deadlines.shutdown)  # the controller's "stop" ends this process
        else:
            membership.failed(f"{type(error).__name__}: {error}", traceback.format_exc())
        return 1


def _join(config: Config, identity: Identity) -> Membership:
    """Says hello to the controller; under a scheduler it may have to wait until the run forms anew."""
    deadlines = Deadlines(config.fault_tolerance.timeout_seconds)
    deadline = time.monotonic() + deadlines.startup
    waits = False
    while True:
        try:
            return Membership(
                *identity.controller,
                group=identity.group,
                rank=identity.rank,
                epoch=identity.epoch,
                fingerprint=fingerprint(config),
                deadlines=deadlines,
            )
        except Refused as error:
            if not error.retry:
                raise
            deadline = time.monotonic() + deadlines.startup  # the run goes on without this group, for now
            if not waits:
                waits = True
                print(f"group {identity.group} rank {identity.rank} waits: {error}", file=sys.stderr, flush=True)
        except OSError as error:
            if (waits or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))) and _is_complete(config):
                raise Refused("the run is complete", retry=False, ended=True) from error
            if time.monotonic() > deadline:
                raise RuntimeError(f"no controller within {deadlines.startup:.0f} s: {error}") from error
        time.sleep(deadlines.heartbeat_interval)


def _is_complete(config: Config) -> bool:
    """Whether the run's summary says that it has come to its end: then no controller will come any more."""
    try:
        summary = json.loads(RunFolder(Path(config.run_dir)).summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return summary.get("steps", 0) >= config.train.steps and summary.get("weights_sha256") is not None


def train(config: Config, identity: Identity, prepared: PreparedData, membership: Membership) -> None:
    """Builds this rank, trains, and hands in the result."""
    device = _device(config, identity)
    if device.type == "cpu":
        keep_freed_memory()
    _seed_everything(config)
    store_address = identity.controller[0], membership.resume["store_port"]  # the controller's host holds it
    deadlines = membership.deadlines
    _start_group(config, identity, membership, store_address, device)
    mesh = GroupMesh(config.parallel, device)
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=deadlines.collective)) if mesh.size > 1 else None
    writing = dist.new_group(backend="gloo", timeout=timedelta(seconds=deadlines.collective)) if mesh.size > 1 else None
    model = GroupModel(
        config.model,
        config.parallel,
        mesh=mesh,
        sequence_length=config.train.sequence_length,
        compute_dtype=_compute_dtype(config, device),
        seed=config.seed,
    )
    optimizer = build_optimizer(model.named_parameters(), config.optim)
    data = open_data(config, prepared)
    injector = make_injector(config, identity.group, identity.rank)
    resume = membership.resume
    if resume["checkpoint"]:
        load_checkpoint(resume["checkpoint"], resume["parts"], training_state(model.named_parameters(), optimizer))
    policy = policy_of(config)
    buckets = _buckets(config, model, policy, overlap=mesh.size == mesh.degrees["tp"])
    vote = _vote(control)
    first = membership.ready()
    backend = LiveBackend(
        policy,
        membership,
        first,
        buckets,
        connect=lambda generation: _connect(membership, generation, store_address, identity, device),
        vote=vote,
        injector=injector,
    )
    checkpoints = _checkpoint_writer(config, identity, membership, writing)
    schedule = CheckpointSchedule(config)
    writers = schedule.writers(range(config.parallel.groups))
    if schedule.is_on and identity.group in writers:
        checkpoints.prepare(identity.group, len(writers), training_state(model.named_parameters(), optimizer))
    loop = TrainingLoop(
        config,
        model=model,
        optimizer=optimizer,
        data=data,
        backend=backend,
        checkpoints=checkpoints,
        membership=membership,
        injector=injector,
        pacer=Pacer(config.emulate, config.parallel.micro_batches, membership),
        vote=vote,
        first_step=first.committed,
        extra=_extra(config, prepared),
    )
    loop.run()
    membership.done(_result(loop, model, control))


def _device(config: Config, identity: Identity) -> torch.device:
    wanted = config.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda: torch sees no CUDA device; use device=auto or device=cpu")
    if wanted == "cuda":
        if identity.local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"device={config.device}: rank {identity.local_rank} of this machine has no GPU, torch sees "
                f"{torch.cuda.device_count()}; start fewer ranks here or use device=cpu"
            )
        device = torch.device("cuda", identity.local_rank)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def _compute_dtype(config: Config, device: torch.device) -> torch.dtype:
    if config.train.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.train.dtype]


def _seed_everything(config: Config) -> None:
    """Nothing random is drawn outside seeded functions of (seed, index); the global generators are set all the same."""
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)
    torch.set_num_threads(threads_per_worker(config))
    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # what use_deterministic_algorithms does beside importing inductor
        torch.set_deterministic_debug_mode("warn")


def _start_group(
    config: Config, identity: Identity, membership: Membership, store_address: tuple[str, int], device: torch.device
) -> None:
    """The group's own torch world."""
    timeout = timedelta(seconds=membership.deadlines.collective)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if identity.epoch is None:
        dist.init_process_group(backend, timeout=timeout)
        return
    store = dist.TCPStore(*store_address, is_master=False, timeout=timedelta(seconds=membership.deadlines.startup))
    prefixed = dist.PrefixStore(f"epoch{membership.epoch}/group{identity.group}", store)
    dist.init_process_group(
        backend, store=prefixed, rank=identity.rank, world_size=config.parallel.ranks_per_group, timeout=timeout
    )


def open_data(config: Config, prepared: PreparedData) -> BlockDataset:
    """The run's token blocks."""
    return BlockDataset(
        prepared,
        sequence_length=config.train.sequence_length,
        global_batch=config.train.global_batch,
        types=config.parallel.groups,
        micro_batches=config.parallel.micro_batches,
        seed=config.seed,
        validation_fraction=config.data.validation_fraction,
        shuffle=config.data.shuffle,
    )


def make_injector(config: Config, group: int, rank: int) -> Injector:
    """The failures that `failures.events` has for this rank."""
    events = config.failures.events if config.failures.kind == "trace" else []
    strikes = [Strike(event.step, event.group, event.phase, event.signal, event.rank) for event in events]
    return Injector(strikes, group=group, rank=rank, folder=RunFolder(Path(config.run_dir)).injected)


def _buckets(config: Config, model: GroupModel, policy: Policy, overlap: bool) -> GradientBuckets:
    """The gradient buffers that the policy needs: exact or plain sums, kept or reduced in place."""
    parameters = [parameter for _, parameter in model.named_parameters()]
    bucket_bytes = config.parallel.bucket_mib << 20
    buckets: GradientBuckets
    if config.fault_tolerance.exact:
        buckets = ExactGradientBuckets(
            parameters,
            bucket_bytes=bucket_bytes,
            tokens_per_step=config.train.global_batch * config.train.sequence_length,
            units_per_step=config.parallel.groups * config.parallel.micro_batches,
            slots=policy.sums_kept,
            parted=model.keep_tied_gradients_apart(),
        )
    else:
        buckets = GradientBuckets(
            parameters, bucket_bytes=bucket_bytes, keep_local=policy.masks_failures, slots=policy.sums_kept
        )
    if overlap:
        buckets.watch_backward()
    return buckets


def _checkpoint_writer(
    config: Config, identity: Identity, membership: Membership, writing: dist.ProcessGroup | None
) -> CheckpointWriter:
    return CheckpointWriter(
        Catalog(config.checkpoint.dir or RunFolder(Path(config.run_dir)).checkpoints),
        group=identity.group,
        process_group=writing,
        keep=config.checkpoint.keep,
        asynchronous=config.checkpoint.asynchronous,
        on_event=lambda event: _forward(membership, event),
        fence=lambda: membership.is_member,
        patience_seconds=membership.deadlines.save_patience,
    )


def _connect(
    membership: Membership,
    generation: Generation,
    store_address: tuple[str, int],
    identity: Identity,
    device: torch.device,
) -> Communicator:
    return Communicator(
        membership,
        generation,
        store_address=store_address,
        position=identity.rank,
        device=device,
        interface=identity.interface,
    )


def _vote(control: dist.ProcessGroup | None) -> Vote:
    """Element-wise minimum over the group's ranks."""

    def vote(values: Sequence[int]) -> list[int]:
        if control is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MIN, group=control)
        return tensor.tolist()

    return vote


def _forward(membership: Membership, event: dict[str, Any]) -> None:
    fields = dict(event)
    membership.event(fields.pop("event"), **fields)


def _extra(config: Config, prepared: PreparedData) -> dict[str, Any]:
    """What a checkpoint says of itself beside its step, which is also the data cursor."""
    return {
        "config": configuration.to_dict(config),
        "data_fingerprint": prepared.fingerprint,
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0]},
    }


def _result(loop: TrainingLoop, model: GroupModel, control: dist.ProcessGroup | None) -> dict[str, Any]:
    return {
        "final_loss": loop.final_loss,
        "validation_loss": loop.validation_loss,
        "weights_sha256": weights_sha256(model.full_named_tensors(), control),
    }
