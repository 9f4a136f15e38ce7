"""What a group computes, in a form that can be compared between layouts: full gradients, losses, norms, weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.config import ModelConfig, ParallelConfig
from trainer.parallel.group_model import GroupModel
from trainer.parallel.mesh import GroupMesh

LENGTH = 16
ROWS = 4
VOCABULARY = 128


def small_model(**changes: Any) -> ModelConfig:
    """A model of four layers that all degrees up to 2 x 2 can split; its weights are large enough to matter."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "layers": 4,
        "heads": 4,
        "kv_heads": 2,
        "init_std": 0.2,
    }
    return ModelConfig(**{**sizes, **changes})


def unit_blocks(units: int) -> Tensor:
    """Tokens of `units` units, [units, ROWS, LENGTH + 1]."""
    return torch.randint(0, VOCABULARY, (units, ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(units))


@dataclass
class Outcome:
    """What one rank saw. Gradients and weights are full tensors of its pipeline stages."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    last_backward_calls: list[int] = field(default_factory=list)


def _full(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def run_group(
    _rank: int, model: ModelConfig, parallel: ParallelConfig, counts: list[int], dtype: torch.dtype = torch.float32
) -> Outcome:
    """Run `counts[i]` units in call i on one GroupModel, gradients accumulating over the calls into preset buffers."""
    group = GroupModel(
        model,
        parallel,
        mesh=GroupMesh(parallel, torch.device("cpu")),
        sequence_length=LENGTH,
        compute_dtype=dtype,
        seed=5,
    )
    outcome = Outcome(weights={name: tensor.clone() for name, tensor in group.full_named_tensors()})
    parameters = group.named_parameters()
    for _, parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    preset = [parameter.grad for _, parameter in parameters]
    for units in counts:
        calls: list[int] = []
        outcome.evaluations.append(float(group.evaluate(unit_blocks(units))))
        outcome.losses.append(float(group.run(unit_blocks(units), lambda calls=calls: calls.append(1))))
        outcome.last_backward_calls.append(len(calls))
        assert all(parameter.grad is grad for (_, parameter), grad in zip(parameters, preset, strict=True))
        local = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in preset]
        outcome.norms.append(float(group.gradient_norm(local)))
        outcome.gradients.append({name: _full(grad) for (name, _), grad in zip(parameters, preset, strict=True)})
    return outcome
