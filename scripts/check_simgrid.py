"""Our simulator against an independent one on SimGrid: same policies, failures and draws, time-to-train side by side.

    apt-get install python3-simgrid        (Debian; for the system's Python version)
    python scripts/check_simgrid.py

Exit status 1 where a run differs by more than 1 %, 2 where SimGrid is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.simulation.cases import METHODS, Case

TOLERANCE = 0.01
METHOD_ROWS = (
    ("ckpt", 1),
    ("rep", 3),
    ("rep_partition", 4),
    ("spare", 6),
    ("spare_duplicates", 6),
    ("spare_micro_batch", 5),
)


def case_of(method: str, redundancy: int, groups: int, steps: int, seed: int) -> Case:
    """A small cluster under heavy failures: a step takes 22 s, some group dies every 120 s."""
    cluster = ClusterProfile(
        name="check",
        groups=groups,
        steps=steps,
        mtbf_s=120.0 if method != "ckpt" else 2400.0,
        restart_s=300.0,
        save_s=10.0,
        compute_s=20.0,
        all_reduce_s=2.0,
    )
    saves = {"masked_death_in_save": "rewritten" if seed % 2 else "survived"}
    return Case(cluster, groups, METHODS[method], redundancy, seed, micro_batches=4, options=saves)


def run_simgrid(method: str, redundancy: int, groups: int, steps: int, seed: int) -> dict[str, Any]:
    """The SimGrid run in a process of its own.

    Raises:
        RuntimeError: it failed; the message is its stderr.
    """
    arguments = [method, redundancy, groups, steps, seed]
    command = [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout.splitlines()[-1])


def _child(arguments: list[Any]) -> None:
    from fault_tolerance.simulation.simgrid_engine import SimGridRun

    case = case_of(*arguments)
    print(json.dumps(SimGridRun(case.scenario(), case.policy(), case.failures(), case.seed).run()))


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=[name for name, _ in METHOD_ROWS], help="default: all")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options.child)
        return 0
    worst = 0.0
    print(
        f"{'method':20s} {'r':>2s} {'seed':>4s} {'ours':>9s} {'SimGrid':>9s} {'differ':>10s}  failures restarts seconds"
    )
    for method, redundancy in [row for row in METHOD_ROWS if row[0] in options.methods]:
        for seed in range(options.seeds):
            start = time.perf_counter()
            ours = case_of(method, redundancy, options.groups, options.steps, seed).run()
            between = time.perf_counter()
            try:
                theirs = run_simgrid(method, redundancy, options.groups, options.steps, seed)
            except RuntimeError as error:
                print(f"error: {error}", file=sys.stderr)
                return 2
            seconds = between - start, time.perf_counter() - between
            difference = ours.wall_seconds / theirs["wall_seconds"] - 1
            worst = max(worst, abs(difference))
            print(
                f"{method:20s} {redundancy:2d} {seed:4d} {ours.wall_seconds:9.1f} {theirs['wall_seconds']:9.1f} "
                f"{100 * difference:+9.5f}%  {ours.failures:3d}/{theirs['failures']:3d} "
                f"{ours.global_restarts:3d}/{theirs['global_restarts']:3d}   {seconds[0]:.2f}/{seconds[1]:.2f}"
            )
    print(f"largest difference {100 * worst:.5f} %")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
