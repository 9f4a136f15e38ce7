"""The hardware's peak for MFU: data sheets for GPUs, a measured matrix product for CPUs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from trainer.config import Config
from trainer.threads import threads_per_worker

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


def run_peak(config: Config) -> float | None:
    """FLOP/s of all devices of a run together, seen from the launcher; None where they are not known.

    For GPUs this machine's kind times the ranks; for CPUs one measured core times those in use (local runs only).
    """
    gpu = installed_gpu()
    if config.device == "cuda" or (config.device == "auto" and gpu is not None):
        peak = gpu_peak(gpu) if gpu is not None and config.train.dtype != "float32" else None
        return None if peak is None else peak * config.parallel.world
    if config.launch.mode != "local":
        return None
    cores = len(os.sched_getaffinity(0))
    return measure_core_peak() * min(cores, threads_per_worker(config) * config.parallel.world)


def installed_gpu() -> str | None:
    """Model name of this machine's first GPU, read without touching the GPU; None if there is none."""
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return None


def measure_core_peak(seconds: float = 0.15, size: int = 256) -> float:
    """FLOP/s of float32 matrix products on one core: the best of those done in `seconds`, at least one.

    Small ones, so that on a busy machine some of them run undisturbed between two switches of the scheduler.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.randn(size, size), torch.randn(size, size)
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end or best == float("inf"):
            begin = time.perf_counter()
            torch.mm(left, right)
            best = min(best, time.perf_counter() - begin)
    finally:
        torch.set_num_threads(threads)
    return 2.0 * size**3 / best
