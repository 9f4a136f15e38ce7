"""Memory of this process, as the metrics show it."""

from __future__ import annotations

import psutil
import torch


def memory_bytes(device: torch.device) -> int:
    """Peak bytes allocated on a CUDA device; resident bytes of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return psutil.Process().memory_info().rss
