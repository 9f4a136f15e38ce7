"""The hardware's peak for MFU: data sheets for GPUs, a measured matrix product for CPUs."""

from __future__ import annotations

import time

GPU_PEAKS: tuple[tuple[str, float], ...] = (
    ("GB300", 2.5e15),
    ("B300", 2.25e15),
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("H200", 989.5e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("GH200", 989.5e12),
    ("H100", 989.5e12),
    ("H800", 989.5e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("A10G", 70e12),
    ("L4", 121e12),
)
"""Dense bfloat16 FLOP/s by a part of the device name, first match counts (NVIDIA's data sheets)."""


def gpu_peak(device_name: str) -> float | None:
    """Dense bfloat16 FLOP/s of a GPU by `torch.cuda.get_device_name()`; None for one that is not in the table."""
    for part, peak in GPU_PEAKS:
        if part in device_name:
            return peak
    return None


def measure_cpu_peak(seconds: float = 0.2, size: int = 1024) -> float:
    """FLOP/s of float32 matrix products with this process's torch threads: the best of those done in `seconds`."""
    import torch

    with torch.no_grad():
        left, right = torch.randn(size, size), torch.randn(size, size)
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = time.perf_counter()
            torch.mm(left, right)
            best = min(best, time.perf_counter() - begin)
    return 2.0 * size**3 / best
