"""The policy of a backend by name."""

from __future__ import annotations

from fault_tolerance.policies.base import Policy
from fault_tolerance.policies.checkpoint_only import CheckpointOnly
from fault_tolerance.policies.replication import Replication
from fault_tolerance.policies.spare import Spare


def make_policy(
    backend: str,
    *,
    groups: int,
    redundancy: int = 1,
    micro_batches: int = 1,
    granularity: str = "micro_batch",
    placement: str = "cyclic",
    solver: str = "incremental",
    duplicates: bool = False,
) -> Policy:
    """The policy of `backend` (ckpt, rep or spare); options that it does not have are not read.

    Raises:
        ValueError: an option is unknown or does not fit; the message names it.
    """
    if backend == "ckpt":
        return CheckpointOnly(groups, micro_batches)
    if backend == "rep":
        return Replication(groups, redundancy, micro_batches, placement)
    if backend == "spare":
        return Spare(groups, redundancy, micro_batches, granularity, placement, solver, duplicates)
    raise ValueError(f"fault_tolerance.backend={backend} is unknown: choose ckpt, rep or spare")
