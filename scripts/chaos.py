"""Sends signals to the workers of a run that goes on: what happens to it is then for all to see.

    python scripts/chaos.py RUN_FOLDER --group 3                       SIGKILL to rank 0 of group 3
    python scripts/chaos.py RUN_FOLDER --group 3 --rank 1 --signal SIGSTOP
    python scripts/chaos.py RUN_FOLDER --every 20 --seed 1             a random worker about every 20 seconds

The run folder's processes.json says who runs as which process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from trainer.run_folder import RunFolder

SIGNALS = ("SIGKILL", "SIGTERM", "SIGSTOP", "SIGCONT", "SIGINT", "SIGABRT")

PATIENCE_SECONDS = 120.0
"""How long random strikes wait for a run that has no workers to come back."""

Workers = dict[tuple[int, int], int]
"""Process ids by (group, rank)."""


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: sent; 2: there was nobody to send it to, and one line says why."""
    options = _parse(arguments)
    try:
        if options.every is not None:
            return at_random(options.folder, options.every, options.seed, options.signal, options.count)
        if options.group is None:
            raise ValueError("say whom: --group NUMBER, or --every SECONDS for random ones")
        strike(options.folder, options.group, options.rank, options.signal)
    except ValueError as problem:
        print(f"chaos: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def workers(folder: Path) -> Workers:
    """The live workers of a run; none between two epochs, or where its launcher was killed.

    Raises:
        ValueError: there is no such run on this machine, or it is over.
    """
    if not folder.is_dir():
        raise ValueError(f"no such run: {folder} is not a folder")
    try:
        named = json.loads((folder / "processes.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        if RunFolder(folder).summary.exists():
            raise ValueError(f"the run in {folder} has ended") from None
        if (folder / "config.yaml").exists():
            raise ValueError(f"the run in {folder} has no workers on this machine (yet)") from None
        raise ValueError(f"no such run: {folder} holds no processes.json") from None
    found = {}
    for name, pid in named.items():
        words = name.split()  # group 3 rank 0
        if is_worker(pid):
            found[int(words[1]), int(words[3])] = pid
    return found


def is_worker(pid: int) -> bool:
    """Whether this process id is still that of a worker, and not of somebody who got the number later."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"forkserver" in command


def strike(folder: Path, group: int, rank: int, name: str) -> None:
    """Sends a signal to one worker.

    Raises:
        ValueError: it does not exist; names those that do.
    """
    living = workers(folder)
    if (group, rank) not in living:
        groups = sorted({number for number, _ in living})
        if group in groups:
            ranks = ", ".join(str(number) for of, number in sorted(living) if of == group)
            raise ValueError(f"group {group} has no rank {rank}; it has {ranks}")
        there = ", ".join(map(str, groups)) or "none (the run restarts, or its launcher was killed)"
        raise ValueError(f"group {group} does not live in {folder}; live groups: {there}")
    pid = living[group, rank]
    try:
        os.kill(pid, getattr(signal, name))
    except ProcessLookupError:
        raise ValueError(f"group {group} rank {rank} (process {pid}) has just ended") from None
    print(f"{name} sent to group {group} rank {rank} (process {pid})", flush=True)


def at_random(folder: Path, every: float, seed: int, name: str, count: int | None) -> int:
    """Strikes random workers at exponentially distributed intervals, until the run is over or `count` were struck."""
    draw = random.Random(seed)
    workers(folder)  # an unknown run is said at once
    struck, seen = 0, time.monotonic()
    while count is None or struck < count:
        time.sleep(draw.expovariate(1.0 / every))
        try:
            living = sorted(workers(folder))
        except ValueError:
            break  # it has ended
        if living:
            seen = time.monotonic()
            with contextlib.suppress(ValueError):  # that one died in this very moment
                strike(folder, *draw.choice(living), name)
                struck += 1
        elif time.monotonic() - seen > PATIENCE_SECONDS:
            break
    print(f"chaos: {struck} signals were sent", flush=True)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos.py", description="Send signals to the workers of a run that goes on.")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="folder of the run (run_dir)")
    parser.add_argument("--group", type=int, help="group to strike")
    parser.add_argument("--rank", type=int, default=0, help="rank inside the group (default: 0)")
    parser.add_argument("--signal", default="SIGKILL", choices=SIGNALS, help="what to send (default: SIGKILL)")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="strike random workers, at this mean interval")
    parser.add_argument("--seed", type=int, default=0, help="seed of --every (default: 0)")
    parser.add_argument("--count", type=int, help="end --every after this many (default: with the run)")
    options = parser.parse_args(arguments)
    if options.every is not None and options.every <= 0:
        parser.error(f"--every {options.every:g}: seconds above 0, for example --every 20")
    if options.every is not None and options.group is not None:
        parser.error("--group and --every exclude each other")
    return options


if __name__ == "__main__":
    sys.exit(main())
