"""What fault tolerance costs while nothing fails: seconds per step of each backend, as ratios in one run.

Variants take turns, round by round, so that a noisy machine hits all alike; the median over the steps of a round
(without its first ones) is one sample. Reported is the median of the rounds' ratios to the first variant and to ckpt.

    python scripts/bench_overhead.py [--rounds 5] [--steps 12] [--model mini] [--groups 2] [--variants ddp,ckpt,...]

Variants: ddp (a hand-written DistributedDataParallel loop), ckpt, rep, spare, exact (spare with exact sums).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import statistics
import sys
import tempfile
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from fault_tolerance.runtime.forkclient import ForkServerClient
from trainer import config as configuration
from trainer.config import Config, ModelConfig
from trainer.data.prepare import prepare

SCRIPTS = Path(__file__).resolve().parent
WARM_UP = 3
PATIENCE_SECONDS = 600.0
LOG_CHARACTERS = 4000
"""Of the log of a failed task, from its end."""

BACKENDS: dict[str, dict[str, Any]] = {
    "ckpt": {"backend": "ckpt"},
    "rep": {"backend": "rep", "redundancy": 2, "placement": "partition"},
    "spare": {"backend": "spare", "redundancy": 2},
    "exact": {"backend": "spare", "redundancy": 2, "exact": True},
}


class Server:
    """A warm fork server whose tasks are waited for."""

    def __init__(self, module: str, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._ends: queue.Queue[dict[str, Any]] = queue.Queue()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(SCRIPTS)}
        self._client = ForkServerClient(module, environment, self._ends.put)

    def run(self, tasks: list[dict[str, Any]], killed: Collection[str] = ()) -> None:
        """Runs tasks side by side; raises RuntimeError if one fails that is not among the `killed` by intention."""
        self._client.start([{"environment": {}, **task} for task in tasks])
        logs = {task["name"]: Path(task["log"]) for task in tasks}
        failed = ""
        while logs:
            try:
                message = self._ends.get(timeout=self._patience)
            except queue.Empty:
                if failed:
                    break
                failed = f"{', '.join(sorted(logs))}: not done within {self._patience:.0f} s"
                self._client.kill(None)
                continue
            name, status = message.get("task"), message.get("status")
            if message["type"] == "exited" and name in logs:
                log = logs.pop(name)
                if status != 0 and name not in killed and not failed:
                    failed = f"{name} ended with status {status}:\n{log.read_text()[-LOG_CHARACTERS:]}"
                    self._client.kill(None)
            elif message["type"] == "gone":
                raise RuntimeError("the fork server died")
        if failed:
            raise RuntimeError(failed)

    def close(self) -> None:
        self._client.close(10)


def base_config(options: argparse.Namespace) -> Config:
    config = Config(run_dir="set per run")
    model = yaml.safe_load((SCRIPTS.parent / "conf" / "model" / f"{options.model}.yaml").read_text(encoding="utf-8"))
    config.model = ModelConfig(**model)
    config.parallel.groups, config.parallel.micro_batches = options.groups, options.micro_batches
    config.train.steps = options.steps
    config.train.sequence_length = options.length
    config.train.global_batch = options.groups * options.micro_batches * options.batch
    config.train.validation_batches = 0
    config.checkpoint.every_steps = 0
    config.logging.wandb, config.logging.progress = "disabled", False
    config.launch.threads_per_worker = 1
    return config


def trainer_seconds(server: Server, config: Config, folder: Path, variant: str) -> float:
    """Median seconds between commits of one run."""
    for key, value in BACKENDS[variant].items():
        setattr(config.fault_tolerance, key, value)
    config.run_dir = str(folder)
    folder.mkdir()
    configuration.save(config, folder / "wanted.yaml")
    server.run([{"name": variant, "log": str(folder / "log"), "config": str(folder / "wanted.yaml")}])
    times = [json.loads(line)["time"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(gaps[WARM_UP - 1 :])


def ddp_seconds(server: Server, config: Config, folder: Path) -> float:
    """Median seconds per step of the DDP loop."""
    folder.mkdir()
    configuration.save(config, folder / "wanted.yaml")
    shared = {
        "config": str(folder / "wanted.yaml"),
        "store": str(folder / "store"),
        "result": str(folder / "result.json"),
        "prepared": asdict(prepare(config.data, progress=False)),
    }
    ranks = range(config.parallel.groups)
    server.run([{**shared, "name": f"ddp {rank}", "rank": rank, "log": str(folder / f"log-{rank}")} for rank in ranks])
    return statistics.median(json.loads((folder / "result.json").read_text())["seconds"][WARM_UP:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="steps of a run; the first three are not counted")
    parser.add_argument("--model", default="mini", help="a file of conf/model")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4, help="sequences per unit")
    parser.add_argument("--length", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--variants", default="ddp,ckpt,spare,exact", help="comma-separated; the first is the base")
    options = parser.parse_args()
    variants = options.variants.split(",")
    samples: dict[str, list[float]] = {variant: [] for variant in variants}
    prepare(base_config(options).data, progress=False)
    runs = Server("trainer.farm")
    loops = Server("ddp_loop") if "ddp" in variants else None
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for number in range(options.rounds):
                for variant in variants if number % 2 == 0 else reversed(variants):
                    folder = Path(scratch) / f"{number}-{variant}"
                    config = base_config(options)
                    if variant == "ddp":
                        assert loops is not None
                        seconds = ddp_seconds(loops, config, folder)
                    else:
                        seconds = trainer_seconds(runs, config, folder, variant)
                    samples[variant].append(seconds)
                    print(f"round {number} {variant}: {seconds:.4f} s/step", file=sys.stderr, flush=True)
    finally:
        runs.close()
        if loops is not None:
            loops.close()
    bases = [variants[0], *(["ckpt"] if "ckpt" in variants[1:] else [])]
    for variant in variants:
        ratios = ", ".join(ratio_text(samples[variant], samples[base], base) for base in bases)
        print(f"{variant:8} {statistics.median(samples[variant]):.4f} s/step   {ratios}")
    return 0


def ratio_text(samples: list[float], base: list[float], name: str) -> str:
    """Median and range of the rounds' ratios to another variant."""
    ratios = [one / other for one, other in zip(samples, base, strict=True)]
    return f"{statistics.median(ratios):.3f}x {name} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    sys.exit(main())
