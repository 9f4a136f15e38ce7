"""One group's device mesh: the degrees of parallelism, checked once, and sub-meshes handed out by meaning."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config import ParallelConfig

AXES = ("pp", "dp_shard", "tp")
"""Axes of the mesh, outermost first: tp varies fastest, so that its ranks are neighbours."""


class GroupMesh:
    """The (pp, dp_shard, tp) mesh over the default process group, which holds exactly this group's ranks.

    Axes of degree 1 do not exist in the mesh; with one rank there is no mesh and no process group is needed.
    Raises ValueError if the default process group does not have tp x pp x dp_shard ranks.
    """

    def __init__(self, parallel: ParallelConfig, device: torch.device) -> None:
        self.device = device
        self.degrees = {"pp": parallel.pp, "dp_shard": parallel.dp_shard, "tp": parallel.tp}
        self.size = parallel.pp * parallel.dp_shard * parallel.tp
        self.mesh: DeviceMesh | None = None
        if self.size == 1:
            return
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if ranks != self.size:
            raise ValueError(
                f"parallel.tp={parallel.tp} x parallel.pp={parallel.pp} x parallel.dp_shard={parallel.dp_shard} needs "
                f"{self.size} ranks in a group, but its process group has {ranks}"
            )
        names = tuple(axis for axis in AXES if self.degrees[axis] > 1)
        self.mesh = init_device_mesh(device.type, tuple(self.degrees[axis] for axis in names), mesh_dim_names=names)

    def has(self, axis: str) -> bool:
        """Whether the axis has more than one rank."""
        return self.degrees[axis] > 1

    def axis(self, axis: str) -> DeviceMesh:
        """The one-dimensional mesh of `axis`; raises ValueError where its degree is 1."""
        if self.mesh is None or not self.has(axis):
            raise ValueError(f"parallel.{axis}=1: there is no mesh for it")
        return self.mesh[axis]

    def axis_or_none(self, axis: str) -> DeviceMesh | None:
        """The one-dimensional mesh of `axis`, or None where its degree is 1."""
        return self.axis(axis) if self.has(axis) else None

    def group(self, axis: str) -> dist.ProcessGroup:
        """Process group of `axis`; raises ValueError where its degree is 1."""
        return self.axis(axis).get_group()

    def coordinate(self, axis: str) -> int:
        """This rank's place along `axis`; 0 where its degree is 1."""
        return self.axis(axis).get_local_rank() if self.has(axis) else 0

    def sum(self, value: torch.Tensor, *axes: str) -> torch.Tensor:
        """Sum `value` in place over the named axes; equal on all their ranks afterwards."""
        for axis in axes:
            if self.has(axis):
                dist.all_reduce(value, group=self.group(axis))
        return value
