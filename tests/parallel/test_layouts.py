"""Every layout of a group computes what one process computes: losses, gradients, norms and initial weights."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from group_cases import Outcome, run_group, small_model
from ranks import run_ranks

from trainer.config import ModelConfig, ParallelConfig

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120), pytest.mark.usefixtures("fork_server")]
COUNTS = [1, 2, 3, 4, 5]
PLAIN = small_model()
QWEN = small_model(qk_norm=True, tied_embeddings=True, head_dim=16)
LAYOUTS: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "tp2": (QWEN, {"tp": 2}),
    "pp2-1f1b": (PLAIN, {"pp": 2}),
    "pp2-1f1b-tied": (QWEN, {"pp": 2}),
    "pp2-gpipe": (PLAIN, {"pp": 2, "pp_schedule": "gpipe"}),
    "pp2-interleaved": (PLAIN, {"pp": 2, "pp_schedule": "interleaved_1f1b", "pp_virtual_stages": 2}),
    "dp2": (QWEN, {"dp_shard": 2, "activation_checkpointing": True}),
    "pp4-1f1b": (PLAIN, {"pp": 4}),
    "tp2-pp2": (QWEN, {"tp": 2, "pp": 2}),
    "tp2-dp2": (QWEN, {"tp": 2, "dp_shard": 2}),
    "pp2-dp2": (QWEN, {"pp": 2, "dp_shard": 2}),
    "pp2-dp2-interleaved": (PLAIN, {"pp": 2, "dp_shard": 2, "pp_schedule": "interleaved_1f1b", "pp_virtual_stages": 2}),
}


@functools.cache
def _reference(qwen: bool) -> Outcome:
    return run_group(0, QWEN if qwen else PLAIN, ParallelConfig(), COUNTS)


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_equals_one_process(layout: str) -> None:
    model, degrees = LAYOUTS[layout]
    parallel = ParallelConfig(**degrees)
    expected = _reference(model is QWEN)
    world = parallel.tp * parallel.pp * parallel.dp_shard
    outcomes = run_ranks(world, run_group, model, parallel, COUNTS)
    names: set[str] = set()
    weights: dict[str, torch.Tensor] = {}
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(expected.losses, rel=1e-5)
        assert outcome.evaluations == pytest.approx(expected.evaluations, rel=1e-5)
        assert outcome.norms == pytest.approx(expected.norms, rel=1e-5)
        assert outcome.losses == outcomes[0].losses, "ranks disagree on the loss"
        assert outcome.norms == outcomes[0].norms, "ranks disagree on the norm"
        assert outcome.last_backward_calls == [1] * len(COUNTS)
        weights |= outcome.weights
        for found, wanted in zip(outcome.gradients, expected.gradients, strict=True):
            names |= set(found)
            for name, gradient in found.items():
                assert _relative(gradient, wanted[name]) < 1e-5, name
    assert names == set(expected.gradients[0])
    assert set(weights) == set(expected.weights)
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.weights.items())
