"""AdamW, its learning-rate schedule and the clipping factor.

Weight decay: matrices and embeddings decay, vectors (norm scales, biases) do not. That is the practice of GPT-3's
reimplementations and of Megatron-LM (nanoGPT's "dim >= 2" rule); a norm scale has no scale freedom to regularise, and
decaying it only pulls activations towards zero.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trainer.config import OptimConfig

SCHEDULES = ("cosine", "wsd", "constant")


def build_optimizer(named_parameters: list[tuple[str, nn.Parameter]], cfg: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, in two kinds of groups: decayed (2-D and more) and not decayed.

    Fused (one pass over memory per step) on CPU and CUDA; a fused call takes tensors of one mesh only, so there is a
    group for each. The state is of the parameters' type, float32.
    """
    trainable = [parameter for _, parameter in named_parameters if parameter.requires_grad]
    decayed = [parameter for parameter in trainable if parameter.ndim >= 2]
    plain = [parameter for parameter in trainable if parameter.ndim < 2]
    groups = [
        {"params": together, "weight_decay": decay}
        for parameters, decay in ((decayed, cfg.weight_decay), (plain, 0.0))
        for together in _by_mesh(parameters)
    ]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in trainable)
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=(cfg.betas[0], cfg.betas[1]), eps=cfg.eps, fused=fused)


def _by_mesh(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters that lie on the same device mesh (or on none) together, in order of first appearance."""
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return list(groups.values())


def learning_rate(step: int, cfg: OptimConfig, total_steps: int) -> float:
    """Learning rate of step `step` (from 0) of `total_steps`; a pure function, so nothing of it needs saving.

    Linear warm-up to the peak over `warmup_steps`, then: cosine to min_lr_ratio x peak at the last step (Loshchilov and
    Hutter, 2017); wsd, which stays at the peak and falls linearly over the last `decay_steps` (Hu et al., MiniCPM,
    2024); or constant.

    Raises:
        ValueError: optim.schedule is unknown.
    """
    if cfg.schedule not in SCHEDULES:
        raise ValueError(f"optim.schedule={cfg.schedule} is unknown; one of {', '.join(SCHEDULES)}")
    if step < cfg.warmup_steps:
        return cfg.lr * (step + 1) / (cfg.warmup_steps + 1)
    last = total_steps - 1
    lowest = cfg.lr * cfg.min_lr_ratio
    if cfg.schedule == "cosine":
        progress = _progress(step, cfg.warmup_steps, last)
        return lowest + (cfg.lr - lowest) * 0.5 * (1.0 + math.cos(math.pi * progress))
    if cfg.schedule == "wsd":
        decay_steps = cfg.decay_steps if cfg.decay_steps is not None else total_steps // 5
        start = max(cfg.warmup_steps, last - decay_steps)
        return cfg.lr + (lowest - cfg.lr) * _progress(step, start, last)
    return cfg.lr


def _progress(step: int, start: int, last: int) -> float:
    """0 at `start`, 1 at `last` and after; 0 if there is nothing in between."""
    if last <= start:
        return 0.0
    return min(1.0, max(0.0, (step - start) / (last - start)))


def apply_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Factor for all gradients so that their global norm is at most `max_norm`; 1 if it is, or if `max_norm` is 0.

    The formula of torch.nn.utils.clip_grad_norm_, with its 1e-6, so that clipped steps equal a plain loop's.
    """
    return min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0
