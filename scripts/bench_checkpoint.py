"""What a checkpoint costs training: the stall of an asynchronous save against a synchronous one.

A model with AdamW trains; saves of both kinds alternate, so that a noisy machine hits both alike. Two figures:
  stall     how long `save` keeps training waiting (the copy into host memory; a synchronous save: all of it)
  slowdown  how much longer the steps take while the background writes, in all, on top of the stall
Both as a share of the synchronous save beside it; medians over the pairs. The first asynchronous save is given with
and without its staging memory made beforehand (`prepare`, as the trainer does while the first step runs).

    python scripts/bench_checkpoint.py [--model small] [--pairs 6] [--parts 1] [--threads 1] [--folder DIR]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path

import torch
import yaml

from trainer.checkpoint.catalog import Catalog
from trainer.checkpoint.state import training_state
from trainer.checkpoint.writer import CheckpointWriter
from trainer.config import ModelConfig, OptimConfig, ParallelConfig
from trainer.optim import build_optimizer
from trainer.parallel.group_model import GroupModel
from trainer.parallel.mesh import GroupMesh

CONFIGS = Path(__file__).resolve().parents[1] / "conf" / "model"


class Training:
    """A model that trains on random tokens."""

    def __init__(self, config: ModelConfig, batch: int, length: int) -> None:
        parallel = ParallelConfig(groups=1)
        mesh = GroupMesh(parallel, torch.device("cpu"))
        self.model = GroupModel(
            config, parallel, mesh=mesh, sequence_length=length, compute_dtype=torch.float32, seed=0
        )
        self.optimizer = build_optimizer(self.model.named_parameters(), OptimConfig())
        self.blocks = torch.randint(0, config.vocab_size, (1, batch, length + 1))
        for _, parameter in self.model.named_parameters():
            parameter.grad = torch.zeros_like(parameter)

    def step(self) -> float:
        """One optimizer step; its seconds."""
        began = time.perf_counter()
        for _, parameter in self.model.named_parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        self.model.run(self.blocks)
        self.optimizer.step()
        return time.perf_counter() - began

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds."""
        return training_state(self.model.named_parameters(), self.optimizer)


class Saves:
    """Saves part 0 of `parts` under step numbers that only grow."""

    def __init__(self, folder: Path, training: Training, parts: int) -> None:
        self.catalog, self.training, self.parts = Catalog(folder), training, parts
        self.step = 0
        self.failures: list[dict] = []

    def writer(self, asynchronous: bool) -> CheckpointWriter:
        """A new writer, whose staging memory does not exist yet."""
        return CheckpointWriter(self.catalog, group=0, keep=1, asynchronous=asynchronous, on_event=self._note)

    def _note(self, event: dict) -> None:
        if event["status"] == "failed" and "never completed" not in event["reason"]:
            self.failures.append(event)

    def save(self, writer: CheckpointWriter) -> float:
        """Start a save; seconds that it kept the caller waiting."""
        self.step += 1
        began = time.perf_counter()
        writer.save(self.step, 0, 0, self.parts, self.training.state())
        return time.perf_counter() - began


def first_stalls(saves: Saves) -> tuple[float, float]:
    """Seconds of the first asynchronous save, with the staging memory made beforehand and without."""
    stalls = []
    for prepared in (True, False):
        writer = saves.writer(asynchronous=True)
        if prepared:
            writer.prepare(0, saves.parts, saves.training.state())
            writer.wait()
        stalls.append(saves.save(writer))
        writer.wait()
    return stalls[0], stalls[1]


def measure(saves: Saves, pairs: int) -> dict[str, list[float]]:
    """Seconds by pair: of a synchronous save, of an asynchronous stall, of the steps' slowdown during the write."""
    training = saves.training
    synchronous, asynchronous = saves.writer(asynchronous=False), saves.writer(asynchronous=True)
    found: dict[str, list[float]] = {"synchronous": [], "stall": [], "slowdown": [], "step": []}
    for pair in range(-1, pairs):  # the first pair warms up
        usual = statistics.median(training.step() for _ in range(3))
        waited = saves.save(synchronous)
        training.step()
        stall = saves.save(asynchronous)
        slow = []
        while not asynchronous.wait(timeout=0.0):
            slow.append(training.step() - usual)
        if pair >= 0:
            for name, seconds in zip(found, (waited, stall, sum(slow), usual), strict=True):
                found[name].append(seconds)
    return found


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small", help="name of a config in conf/model")
    parser.add_argument("--batch", type=int, default=1, help="sequences per step")
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence")
    parser.add_argument("--pairs", type=int, default=6, help="measured saves of each kind")
    parser.add_argument("--parts", type=int, default=1, help="groups that share the work; this process is one of them")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads")
    parser.add_argument("--folder", help="where to save; a temporary folder when empty")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable(logging.ERROR)  # with --parts the other parts are missing on purpose; real failures end the run
    config = ModelConfig(**yaml.safe_load((CONFIGS / f"{options.model}.yaml").read_text()))
    training = Training(config, options.batch, options.length)
    training.step()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        saves = Saves(Path(folder), training, options.parts)
        prepared, unprepared = first_stalls(saves)
        found = measure(saves, options.pairs)
    if saves.failures:
        raise SystemExit(f"a save failed: {saves.failures[0]['reason']}")
    state = training.state()
    size = sum(tensor.nbytes for tensor in state.values())
    print(f"{options.model}: {size / 1e6:.0f} MB in {len(state)} tensors, part 1 of {options.parts}")
    middle = {name: statistics.median(values) for name, values in found.items()}
    print(f"synchronous save {middle['synchronous']:.2f} s, step {middle['step']:.2f} s")
    for name in ("stall", "slowdown"):
        shares = [seconds / whole for seconds, whole in zip(found[name], found["synchronous"], strict=True)]
        spread = f"(pairs from {min(shares):.1%} to {max(shares):.1%})"
        print(f"{name:>8}: {middle[name]:.3f} s, {statistics.median(shares):.1%} of a synchronous save {spread}")
    whole = middle["synchronous"]
    print(f"first asynchronous save: stall {prepared / whole:.1%} prepared, {unprepared / whole:.1%} unprepared")


if __name__ == "__main__":
    main()
