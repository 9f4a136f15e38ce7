"""How fast RECTLR plans: whole failure sequences to wipe-out, per failure, beside the networkx reference.

Each sequence kills groups in a seeded random order, one per step, until a type has no live host. Timed is
`Spare.on_failure` with all phases, the patch and the new plan. Medians and p99 are CPU time of the process, so that
other work on the machine does not count; `--clock wall` measures what a clock on the wall shows.

    python scripts/bench_planning.py                # N = 1000, r = 20 and N = 10,000, r = 14; about half a minute
    python scripts/bench_planning.py --all          # also micro-batches at N = 10,000 (minutes)
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from fault_tolerance.placement import cyclic
from fault_tolerance.policies import Replan, make_policy
from fault_tolerance.rulers import find_ruler


@dataclass(frozen=True)
class Case:
    """One instance: `published` computes the first S types of each stack, `micro_batch` each unit once."""

    name: str
    groups: int
    redundancy: int
    micro_batches: int

    @property
    def options(self) -> dict:
        """Arguments of `make_policy`."""
        published = self.name == "published"
        return {
            "groups": self.groups,
            "redundancy": self.redundancy,
            "micro_batches": self.micro_batches,
            "granularity": "micro_batch" if self.name == "micro_batch" else "shard",
            "duplicates": published,
        }


@dataclass(frozen=True)
class Timing:
    """Milliseconds per failure over a sequence."""

    failures: int
    median_ms: float
    p99_ms: float
    max_ms: float
    mean_ms: float
    final_stacks: float


CASES = [
    Case("published", 600, 9, 16),
    Case("published", 1000, 20, 16),
    Case("shard", 1000, 20, 16),
    Case("micro_batch", 1000, 20, 16),
    Case("published", 10_000, 14, 16),
]
LARGE = Case("micro_batch", 10_000, 14, 16)


def sequence(case: Case, solver: str, clock: Callable[[], float], most: int | None = None, seed: int = 0) -> Timing:
    """Kill groups one after another until wipe-out, or `most` of them."""
    policy = make_policy("spare", solver=solver, **case.options)
    order = list(range(case.groups))
    random.Random(seed).shuffle(order)
    plan = policy.on_start()
    seconds: list[float] = []
    for step, group in enumerate(order[:most]):
        policy.plan_step(step)
        start = clock()
        outcome = policy.on_failure([group])
        seconds.append(clock() - start)
        if not isinstance(outcome, Replan):
            break
        plan = outcome.plan
        policy.on_commit()
    ordered = sorted(1000 * second for second in seconds)
    return Timing(
        failures=len(ordered),
        median_ms=ordered[len(ordered) // 2],
        p99_ms=ordered[int(0.99 * (len(ordered) - 1))],
        max_ms=ordered[-1],
        mean_ms=sum(ordered) / len(ordered),
        final_stacks=plan.stacks,
    )


def restart_ms(case: Case, clock: Callable[[], float]) -> float:
    """Median milliseconds of `on_restart`."""
    policy = make_policy("spare", **case.options)
    taken = []
    for _ in range(9):
        policy.on_failure([1])
        start = clock()
        policy.on_restart()
        taken.append(clock() - start)
    return 1000 * sorted(taken)[4]


def main() -> None:
    """Print the table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also micro-batches at N = 10,000")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--reference-failures", type=int, default=6, help="failures that networkx solves (0: none)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    clock = time.process_time if args.clock == "cpu" else time.perf_counter

    find_ruler.cache_clear()
    start = clock()
    placement = cyclic(10_000, 64)
    ruler_seconds = clock() - start
    rows = []
    if not args.json:
        print(f"cyclic placement N=10000, r=64: {ruler_seconds:.3f} s, repeated differences {placement.repeats}")
        print(
            f"{'work':<12}{'N':>7}{'r':>4}{'m':>4}{'failures':>10}{'median ms':>11}{'p99 ms':>9}{'max ms':>9}"
            f"{'restart ms':>12}{'final S':>9}{'networkx / ours':>17}"
        )
    for case in [*CASES, LARGE] if args.all else CASES:
        timing = sequence(case, "incremental", clock)
        ratio = None
        if args.reference_failures and case.groups <= 1000:
            count = args.reference_failures
            reference = sequence(case, "networkx", clock, most=count)
            ours = sequence(case, "incremental", clock, most=count)
            ratio = reference.mean_ms / ours.mean_ms
        rows.append({**asdict(case), **asdict(timing), "restart_ms": restart_ms(case, clock), "networkx_ratio": ratio})
        if not args.json:
            print(
                f"{case.name:<12}{case.groups:>7}{case.redundancy:>4}{case.micro_batches:>4}{timing.failures:>10}"
                f"{timing.median_ms:>11.3f}{timing.p99_ms:>9.2f}{timing.max_ms:>9.2f}{rows[-1]['restart_ms']:>12.2f}"
                f"{timing.final_stacks:>9.2f}" + (f"{ratio:>17.0f}" if ratio else f"{'-':>17}"),
                flush=True,
            )
    if args.json:
        print(json.dumps({"clock": args.clock, "ruler_seconds": ruler_seconds, "rows": rows}))


if __name__ == "__main__":
    main()
