"""Copying the state aside quickly: the only part of a save that training waits for.

The buffers live from save to save. Fresh memory costs ten times the copy itself (the kernel zeroes each page at its
first touch), so they are touched beforehand, in huge pages where the system gives them; on CUDA they are pinned.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.checkpoint.state import local_tensor

ALIGNMENT = 4096


class StagingBuffers:
    """Host memory for one rank's share of a checkpoint."""

    def __init__(self) -> None:
        self._arena: mmap.mmap | None = None
        self._pinned: Tensor | None = None
        self._layout: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._views: dict[str, Tensor] = {}

    def reserve(self, state: dict[str, Tensor]) -> None:
        """Make and touch the memory that `stage(state)` will need; nothing to do if it is there already."""
        local = {name: local_tensor(tensor) for name, tensor in state.items()}
        layout = {name: (tensor.shape, tensor.dtype) for name, tensor in local.items()}
        if layout == self._layout:
            return
        total = sum(_padded(tensor) for tensor in local.values())
        pinned = any(tensor.is_cuda for tensor in local.values())
        self._views.clear()
        if pinned:
            if self._pinned is None or self._pinned.numel() < total:
                self._pinned = torch.empty(total, dtype=torch.uint8, pin_memory=True)
        elif self._arena is None or len(self._arena) < total:
            self._arena = _touched(total)
        offset = 0
        for name, tensor in local.items():
            self._views[name] = self._view(tensor, offset, pinned)
            offset += _padded(tensor)
        self._layout = layout

    def _view(self, tensor: Tensor, offset: int, pinned: bool) -> Tensor:
        if tensor.numel() == 0:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        if pinned:
            assert self._pinned is not None
            return self._pinned[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        assert self._arena is not None
        flat = torch.frombuffer(self._arena, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        return flat.view(tensor.shape)

    @torch.no_grad()
    def stage(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """A copy of `state` in host memory that the next call overwrites; DTensors stay DTensors."""
        self.reserve(state)
        on_device = False
        staged = {}
        for name, tensor in state.items():
            local, view = local_tensor(tensor), self._views[name]
            view.copy_(local, non_blocking=True)
            on_device |= local.is_cuda
            # The constructor, since from_local would move the slice back to the mesh's device.
            staged[name] = DTensor(view, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else view
        if on_device:
            torch.cuda.current_stream().synchronize()
        return staged


def _padded(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT if tensor.nbytes > ALIGNMENT else -(-tensor.nbytes // 64) * 64


def _touched(size: int) -> mmap.mmap:
    arena = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        arena.madvise(mmap.MADV_HUGEPAGE)
    torch.frombuffer(arena, dtype=torch.uint8).zero_()
    return arena
