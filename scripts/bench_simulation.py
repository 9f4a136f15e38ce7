"""How fast the simulator is: seconds of one run, and how they grow with the number of groups.

    python scripts/bench_simulation.py            about a minute on a quiet core
    python scripts/bench_simulation.py --largest 10000 --repeats 3

CPU seconds, the least of the repeats, on one core. Beside them the share of the policy (the planning core) and the time
of a fixed Python loop, so that figures of different machines can be compared.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from fault_tolerance.cluster import ClusterProfile
from fault_tolerance.policies.base import Policy
from fault_tolerance.simulation.cases import METHODS, Case
from fault_tolerance.simulation.engine import simulate

SIZES = (200, 600, 1000, 2000, 5000, 10000)
TARGET_SECONDS = 0.5
"""10,000 steps at N = 600, r = 9."""


class Timed:
    """A policy that counts the seconds spent in it."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.groups, self.micro_batches = policy.groups, policy.micro_batches
        self.seconds = 0.0

    def __getattr__(self, name: str):
        method = getattr(self._policy, name)

        def timed(*arguments):
            start = time.process_time()
            answer = method(*arguments)
            self.seconds += time.process_time() - start
            return answer

        return timed


def measure(case: Case, repeats: int) -> tuple[float, float, int]:
    """Least CPU seconds of a run, the policy's seconds in a further one, and its failures."""
    case.scenario()  # the planner's mean failures are kept for later runs
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = case.run()
        seconds.append(time.process_time() - start)
    timed = Timed(case.policy())
    simulate(case.scenario(), timed, case.failures(), case.seed)
    return min(seconds), timed.seconds, result.failures


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=10_000, help="largest number of groups; default: %(default)s")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["rep", "spare", "spare_micro_batch"])
    options = parser.parse_args()
    start = time.process_time()
    for _ in range(10_000_000):
        pass
    print(f"10 million turns of an empty loop: {time.process_time() - start:.2f} s")
    cluster = replace(ClusterProfile(), steps=options.steps)
    print(f"{'method':18s} {'N':>6s} {'r':>3s} {'seconds':>8s} {'policy':>7s} {'failures':>8s}  ms per failure")
    for name in options.methods:
        redundancy = {"rep": 3, "spare": 9}.get(name, 6)
        for groups in (size for size in SIZES if size <= options.largest):
            # The largest runs take one repeat: they are long enough to be steady.
            case = Case(cluster, groups, METHODS[name], redundancy, 0, micro_batches=16)
            seconds, policy, failures = measure(case, options.repeats if groups <= 1000 else 1)
            target = f"  target {TARGET_SECONDS}" if (name, groups, options.steps) == ("spare", 600, 10_000) else ""
            print(
                f"{name:18s} {groups:6d} {redundancy:3d} {seconds:8.2f} {policy:7.2f} {failures:8d}  "
                f"{1000 * seconds / max(failures, 1):.3f}{target}",
                flush=True,
            )


if __name__ == "__main__":
    main()
