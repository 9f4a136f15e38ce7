"""What a checkpoint holds: a flat dictionary from names to tensors, the same in every layout.

`model/<parameter>` and `optimizer/<parameter>/<exp_avg|exp_avg_sq|step>`, where <parameter> is its fully qualified
name in the whole model. The tensors are the live ones, so loading into this dictionary in place restores the run;
which rank holds which slice is in the DTensors, so another layout reads what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def training_state(
    named_parameters: Iterable[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer | None
) -> dict[str, Tensor]:
    """Names to the live tensors of this rank: master weights and, with an optimizer, AdamW's averages and steps.

    An AdamW that has not stepped yet gets its state here, with the zeros that its first step would have made.
    """
    state: dict[str, Tensor] = {}
    fused = _fused_parameters(optimizer) if optimizer is not None else set()
    for name, parameter in named_parameters:
        state[f"model/{name}"] = parameter.detach()
        if optimizer is None or not parameter.requires_grad:
            continue
        slots = optimizer.state[parameter]
        if not slots:
            _first_state(slots, parameter, parameter in fused)
        for slot in sorted(slots):
            state[f"optimizer/{name}/{slot}"] = slots[slot]
    return state


def _fused_parameters(optimizer: torch.optim.Optimizer) -> set[Tensor]:
    return {
        p for group in optimizer.param_groups if group.get("fused") or group.get("capturable") for p in group["params"]
    }


def _first_state(slots: dict[str, Tensor], parameter: nn.Parameter, fused: bool) -> None:
    device = parameter.device if fused else torch.device("cpu")
    slots["step"] = torch.zeros((), dtype=torch.float32, device=device)
    for slot in ("exp_avg", "exp_avg_sq"):
        slots[slot] = torch.zeros_like(parameter.detach(), memory_format=torch.preserve_format)


def share_of(state: dict[str, Tensor], part: int, parts: int) -> list[str]:
    """The names that part `part` of `parts` writes: every name in exactly one part, bytes about equal.

    Largest first onto the lightest part (Graham's LPT rule, at most 4/3 of the best). Only names and whole sizes count,
    so all ranks of a stage, in all groups, agree without talking.
    """
    loads = [0] * parts
    mine = []
    for size, name in sorted(((-tensor.numel() * tensor.element_size(), name) for name, tensor in state.items())):
        lightest = min(range(parts), key=loads.__getitem__)
        loads[lightest] -= size
        if lightest == part:
            mine.append(name)
    return mine


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's slice."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
