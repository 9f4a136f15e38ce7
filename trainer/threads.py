"""How many threads a worker computes with."""

from __future__ import annotations

import os

from trainer.config import Config


def threads_per_worker(config: Config) -> int:
    """Intra-op threads of one worker: the configured number, or this machine's cores shared by its ranks."""
    if config.launch.threads_per_worker:
        return config.launch.threads_per_worker
    ranks = config.parallel.world if config.launch.mode == "local" else config.parallel.ranks_per_group
    return max(1, len(os.sched_getaffinity(0)) // ranks)
