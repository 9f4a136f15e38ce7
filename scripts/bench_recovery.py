"""The stall at a SIGKILL: from the kill to the survivors' commit, beside torchft on the same model, groups and kills.

A group kills itself after its backward pass, right before its all-reduce; several groups do so in one run, one after
another, and the runs of the trainer and of torchft take turns. For each kill:

- trainer: from the kill to the survivors' commit of that very step with the whole gradient (`in all`), and less the
  longest patch compute of a survivor (`stall`); its parts are the time until the controller heard of the death
  (`notice`) and those that the run's own `replan` event has;
- torchft: from the kill to the survivors' next committed step (`first` survivor, and `in all`), which is the struck
  step done again without the lost group's gradient. Its process group's timeout is the join timeout, since in a ring
  only a dead rank's neighbours see an error and the others wait that long; or (`abort at an error`) the loop helps it
  to do what the trainer does, and whoever sees an error lets go of the process group at once.

    python scripts/bench_recovery.py [--runs 5] [--kills 3] [--groups 8] [--model tiny] [--no-torchft]

torchft is optional (`pip install 'spare-trainer[bench]'`). A start or a recovery of it that fails with a short join
timeout is counted, not hidden. Figures are medians over runs and kills in milliseconds; the load average tells how
far to believe them.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_overhead import Server, base_config

from fault_tolerance.placement import make_placement
from trainer import config as configuration
from trainer.config import Config, FailureEvent
from trainer.data.prepare import prepare
from trainer.run_folder import RunFolder

PATIENCE_SECONDS = 240.0
FIRST_KILL, STEPS_BETWEEN = 8, 6
"""Steps: the first ones warm up, and a torchft step that was discarded needs a few to settle."""
PARTS = ("agree", "take_up", "tear_down", "replan", "patch", "rebuild", "reduce")

Sample = dict[str, float]
"""Seconds of one kill by name."""


def victims(groups: int, redundancy: int, kills: int) -> list[int]:
    """The first `kills` groups, from the last one down, whose deaths leave every shard type a host.

    Raises:
        ValueError: there are not so many.
    """
    hosts = make_placement("cyclic", groups, redundancy).hosts
    dead: list[int] = []
    for group in reversed(range(1, groups)):
        if len(dead) < kills and all(set(of) - {*dead, group} for of in hosts):
            dead.append(group)
    if len(dead) < kills:
        raise ValueError(f"--kills {kills}: only {len(dead)} deaths are masked with --redundancy {redundancy}")
    return dead


def kill_time(mark: Path) -> float:
    """Unix time of an injected failure: its mark is written right before the blow."""
    return mark.stat().st_mtime_ns / 1e9


def lines(path: Path) -> list[dict[str, Any]]:
    """A JSON lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def trainer_samples(events: list[dict[str, Any]], killed: list[tuple[int, float]]) -> list[Sample]:
    """Seconds of each kill, from the run's events and (group, Unix time) of the kills.

    Raises:
        ValueError: a kill was not masked by a recovery of its own.
    """
    samples = []
    for group, at in killed:
        replans = [event for event in events if event["event"] == "replan" and event["groups"] == [group]]
        if len(replans) != 1:
            raise ValueError(f"the death of group {group} was not recovered from by itself: {replans}")
        seconds = replans[0]["seconds"]
        whole = replans[0]["committed_unix_time"] - at
        parts = {part: seconds[part] for part in PARTS}
        notice = whole - seconds["total"]
        samples.append({"in all": whole, "stall": whole - seconds["patch"], "notice": notice, **parts})
    return samples


def torchft_samples(commits: dict[int, list[dict[str, Any]]], killed: list[tuple[int, float]]) -> list[Sample]:
    """Seconds of each kill, from each group's committed steps and (group, Unix time) of the kills in order.

    The step that was struck is the one after the victim's last.

    Raises:
        ValueError: the groups had parted into several quorums before the kill.
    """
    samples = []
    dead: set[int] = set()
    for group, at in killed:
        dead.add(group)
        last = max((commit["step"] for commit in commits[group]), default=-1)
        following = [
            next((commit["time"] - at for commit in of if commit["step"] > last), float("inf"))
            for survivor, of in commits.items()
            if survivor not in dead
        ]
        if min(following) < 0:
            raise ValueError(f"the groups had parted before group {group} was killed")
        samples.append({"first": min(following), "in all": max(following)})
    return samples


def step_seconds(times: list[float]) -> float:
    """Median seconds between commits before the first kill."""
    return statistics.median(after - before for before, after in itertools.pairwise(times[2:FIRST_KILL]))


def bench_config(options: argparse.Namespace) -> Config:
    """The run that both sides train."""
    config = base_config(options)
    config.train.steps = FIRST_KILL + options.kills * STEPS_BETWEEN
    config.model.layers = options.layers
    config.fault_tolerance.backend, config.fault_tolerance.redundancy = "spare", options.redundancy
    return config


def run_trainer(server: Server, config: Config, folder: Path, groups: list[int]) -> tuple[float, list[Sample]]:
    """One run of the trainer; seconds per step, and one sample per kill."""
    config.run_dir = str(folder)
    config.failures.kind = "trace"
    config.failures.events = [
        FailureEvent(FIRST_KILL + index * STEPS_BETWEEN, group, "reduce") for index, group in enumerate(groups)
    ]
    folder.mkdir()
    configuration.save(config, folder / "wanted.yaml")
    server.run([{"name": folder.name, "log": str(folder / "log"), "config": str(folder / "wanted.yaml")}])
    marks = RunFolder(folder).injected
    killed = [(group, kill_time(marks / f"struck-{index}")) for index, group in enumerate(groups)]
    times = [record["time"] for record in lines(folder / "metrics.jsonl")]
    return step_seconds(times), trainer_samples(lines(folder / "events.jsonl"), killed)


def run_torchft(
    server: Server,
    config: Config,
    folder: Path,
    groups: list[int],
    options: argparse.Namespace,
    *,
    join_milliseconds: int,
    abort: bool,
) -> tuple[float, list[Sample]]:
    """One run of torchft seconds per step, and one sample per kill."""
    folder.mkdir()
    config.run_dir = str(folder)
    configuration.save(config, folder / "wanted.yaml")
    shared = {
        "config": str(folder / "wanted.yaml"),
        "prepared": asdict(prepare(config.data, progress=False)),
        "marks": str(folder),
        "lighthouse": {
            "join_timeout_ms": join_milliseconds,
            "quorum_tick_ms": options.tick,
            "heartbeat_timeout_ms": options.heartbeat_timeout,
        },
        "heartbeat_milliseconds": options.heartbeat,
        "collective_seconds": PATIENCE_SECONDS / 3 if abort else options.collective or join_milliseconds / 1000,
        "abort": abort,
        "survivors": config.parallel.groups - len(groups),
        "timeout_seconds": PATIENCE_SECONDS / 3,
    }
    tasks = []
    for group in range(config.parallel.groups):
        own: dict[str, Any] = {"name": f"{folder.name} group {group}", "log": str(folder / f"log-{group}")}
        own |= {"group": group, "result": str(folder / f"commits-{group}.jsonl"), "kill": None, "kill_at": None}
        if group in groups:
            own["kill"] = groups.index(group)
            own["kill_at"] = FIRST_KILL + own["kill"] * STEPS_BETWEEN
        tasks.append({**shared, **own})
    server.run(tasks, killed=[task["name"] for task in tasks if task["kill"] is not None])
    killed = [(group, kill_time(folder / f"struck-{index}")) for index, group in enumerate(groups)]
    commits = {task["group"]: lines(Path(task["result"])) for task in tasks}
    return step_seconds([commit["time"] for commit in commits[0]]), torchft_samples(commits, killed)


class Report:
    """Collects samples by variant and prints medians."""

    def __init__(self) -> None:
        self.samples: dict[str, list[list[Sample]]] = {}
        self.steps: dict[str, list[float]] = {}
        self.failed: dict[str, list[str]] = {}

    def add(self, variant: str, step: float, samples: list[Sample]) -> None:
        self.samples.setdefault(variant, []).append(samples)
        self.steps.setdefault(variant, []).append(step)
        shown = ", ".join(f"{1000 * sample.get('stall', sample['in all']):.0f}" for sample in samples)
        load = os.getloadavg()[0]
        print(f"{variant}: step {1000 * step:.0f} ms, stalls {shown} ms, load {load:.1f}", file=sys.stderr, flush=True)

    def fail(self, variant: str, why: str) -> None:
        self.failed.setdefault(variant, []).append(why)
        print(f"{variant}: failed: {why.splitlines()[-1]}", file=sys.stderr, flush=True)

    def print(self) -> None:
        for variant in {**self.samples, **self.failed}:
            runs, failed = self.samples.get(variant, []), len(self.failed.get(variant, []))
            print(f"{variant}: {len(runs)} runs, {failed} failed", end="")
            if runs:
                print(f", step {1000 * statistics.median(self.steps[variant]):.0f} ms")
                self._print_samples(runs)
            else:
                print()

    @staticmethod
    def _print_samples(runs: list[list[Sample]]) -> None:
        for name in runs[0][0]:
            every = [sample[name] for run in runs for sample in run]
            by_kill = ", ".join(
                f"{1000 * statistics.median(run[index][name] for run in runs):.1f}" for index in range(len(runs[0]))
            )
            print(
                f"  {name:10} {1000 * statistics.median(every):8.1f} ms "
                f"({1000 * min(every):.1f} to {1000 * max(every):.1f}); by kill {by_kill}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each variant")
    parser.add_argument("--kills", type=int, default=3, help="kills in a run")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--redundancy", type=int, default=4)
    parser.add_argument("--model", default="tiny", help="a file of conf/model")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1, help="sequences per unit")
    parser.add_argument("--length", type=int, default=32, help="tokens per sequence")
    parser.add_argument("--folder", type=Path, help="new folder in which the runs' folders are kept")
    parser.add_argument("--no-torchft", action="store_true", help="the trainer alone")
    parser.add_argument("--join", type=int, nargs="+", default=[200, 1000], help="torchft: join timeouts (ms)")
    parser.add_argument("--tick", type=int, default=10, help="torchft: lighthouse's quorum tick (ms)")
    parser.add_argument("--heartbeat", type=int, default=20, help="torchft: heartbeat interval (ms)")
    parser.add_argument("--heartbeat-timeout", type=int, default=200, help="torchft: silence that is a death (ms)")
    parser.add_argument(
        "--collective", type=float, help="torchft: timeout of its process group (s); that of the join when not given"
    )
    options = parser.parse_args()
    options.steps = 0
    with_torchft = not options.no_torchft
    if with_torchft and importlib.util.find_spec("torchft") is None:
        parser.error("torchft is not installed: pip install 'spare-trainer[bench]', or give --no-torchft")
    groups = victims(options.groups, options.redundancy, options.kills)
    prepare(base_config(options).data, progress=False)
    report = Report()
    runs = Server("trainer.farm", PATIENCE_SECONDS)
    loops = Server("torchft_loop", PATIENCE_SECONDS) if with_torchft else None
    try:
        with tempfile.TemporaryDirectory() as temporary:
            scratch = options.folder or Path(temporary)
            scratch.mkdir(parents=True, exist_ok=options.folder is None)
            for number in range(options.runs):
                report.add("trainer", *run_trainer(runs, bench_config(options), scratch / f"{number}-trainer", groups))
                for join, abort in itertools.product(options.join, (False, True)) if loops is not None else ():
                    variant = f"torchft, join timeout {join} ms" + (", abort at an error" if abort else "")
                    folder = scratch / f"{number}-{variant}"
                    try:
                        result = run_torchft(
                            loops, bench_config(options), folder, groups, options, join_milliseconds=join, abort=abort
                        )
                    except (RuntimeError, ValueError, OSError) as error:
                        report.fail(variant, str(error))
                    else:
                        report.add(variant, *result)
    finally:
        runs.close()
        if loops is not None:
            loops.close()
    report.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
