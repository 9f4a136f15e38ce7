"""Writing one part: what a group's ranks put on disk together, each its own slices, and the checksums of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from trainer.checkpoint.files import describe_files

warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


class PartFailed(RuntimeError):
    """A rank of the group could not write; the message says which and why."""


class Ranks:
    """The ranks of one group as the background thread sees them: all report, all learn who failed."""

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        alone = process_group is None or dist.get_world_size(process_group) == 1
        self.process_group = None if alone else process_group
        self.rank = 0 if self.process_group is None else dist.get_rank(self.process_group)

    def gather(self, own: Any) -> list[Any]:
        """What each rank said, by rank."""
        if self.process_group is None:
            return [own]
        said: list[Any] = [None] * dist.get_world_size(self.process_group)
        dist.all_gather_object(said, own, group=self.process_group)
        return said

    def together(self, work: Callable[[], Any]) -> list[Any]:
        """Do `work` on every rank; its results by rank, or PartFailed on all of them if it failed on any."""
        result, reason = None, None
        try:
            result = work()
        except Exception as error:  # the peers must learn of it, whatever it is
            reason = explain(error)
            if self.process_group is None:
                raise PartFailed(reason) from error
        said = self.gather((reason, result))
        failures = [f"rank {rank}: {why}" for rank, (why, _) in enumerate(said) if why]
        if failures:
            raise PartFailed("; ".join(failures))
        return [result for _, result in said]


def write_part(folder: Path, share: dict[str, Tensor], ranks: Ranks, stage: Callable[[str], None]) -> dict[str, Any]:
    """Write this rank's slices of `share` into `folder`, durably. {file name: {"bytes", "sha256"}} of the whole part.

    `stage` is told "write" and "fsync" as they begin.

    Raises:
        PartFailed: some rank could not.
    """
    stage("write")
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        dcp.save(
            share,
            storage_writer=dcp.FileSystemWriter(folder, sync_files=False, overwrite=False),
            planner=planner,
            process_group=ranks.process_group,
            no_dist=ranks.process_group is None,
        )
    except (Exception, CheckpointException) as error:  # torch wraps what its storage raised, outside of Exception
        raise PartFailed(explain(error)) from error
    stage("fsync")
    described = ranks.together(lambda: _settle(folder, ranks.rank))
    return {name: what for files in described for name, what in files.items()}


def _settle(folder: Path, rank: int) -> dict[str, Any]:
    """Force this rank's files to disk and describe them as they read back."""
    names = [path.name for path in folder.glob(f"__{rank}_*")] + ([".metadata"] if rank == 0 else [])
    for name in names:
        descriptor = os.open(folder / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return describe_files(folder, names)


def explain(error: BaseException) -> str:
    """The root of a failure in one line: the operating system's words where there are any."""
    wrapped = getattr(error, "failures", None)  # torch's CheckpointException: {rank: (exception, traceback)}
    if isinstance(wrapped, dict) and wrapped:
        return "; ".join(f"rank {rank}: {explain(cause[0])}" for rank, cause in sorted(wrapped.items()))
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    cause = next((one for one in chain if isinstance(one, OSError)), chain[0])
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0]}" if text else type(cause).__name__
