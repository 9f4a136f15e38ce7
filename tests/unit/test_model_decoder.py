"""The decoder and its parts against plain torch: losses, gradients, counts, initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.config import ModelConfig, ParallelConfig
from trainer.model import loss as loss_module
from trainer.model.decoder import Decoder, DecoderLayer
from trainer.model.initialise import BLOCK_ROWS, initial_rows
from trainer.model.linear import Linear
from trainer.model.loss import chunk_rows, linear_cross_entropy
from trainer.model.norm import RMSNorm
from trainer.model.rotary import inverse_frequencies, rotary_tables, rotate
from trainer.model.size import flops_per_token, parameter_count
from trainer.parallel.group_model import GroupModel
from trainer.parallel.layers import split_layers
from trainer.parallel.mesh import GroupMesh

SMALL = ModelConfig(vocab_size=64, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, init_std=0.2)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _group(parallel: ParallelConfig, model: ModelConfig = SMALL, dtype: torch.dtype = torch.float32) -> GroupModel:
    mesh = GroupMesh(parallel, torch.device("cpu"))
    return GroupModel(model, parallel, mesh=mesh, sequence_length=12, compute_dtype=dtype, seed=1)


def _blocks(units: int) -> Tensor:
    return torch.randint(0, 64, (units, 3, 13), generator=torch.Generator().manual_seed(units))


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def _gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    return torch.autograd.grad(function(*leaves), leaves)


@pytest.mark.parametrize("elements", [64 * 128, 10**9])
def test_fused_loss_equals_cross_entropy(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_ELEMENTS_CPU", elements)
    hidden, weight = _random(300, 16), _random(64, 16, seed=1)
    targets = torch.arange(300) % 64
    assert (chunk_rows(300, 64, torch.device("cpu")) < 300) == (elements < 10**9)

    def plain(h: Tensor, w: Tensor) -> Tensor:
        return 3.0 * F.cross_entropy(h @ w.t(), targets, reduction="sum")

    def fused(h: Tensor, w: Tensor) -> Tensor:
        return 3.0 * linear_cross_entropy(h, w, targets)

    assert float(fused(hidden, weight)) == pytest.approx(float(plain(hidden, weight)), rel=1e-6)
    for found, expected in zip(_gradients(fused, hidden, weight), _gradients(plain, hidden, weight), strict=True):
        assert _relative(found, expected) < 1e-5


def test_fused_loss_in_bfloat16_gives_float32_sums() -> None:
    hidden, weight = _random(40, 16).bfloat16().requires_grad_(), _random(64, 16, seed=1).requires_grad_()
    total = linear_cross_entropy(hidden, weight, torch.arange(40))
    total.backward()
    assert total.dtype == weight.grad.dtype == torch.float32 and hidden.grad.dtype == torch.bfloat16
    expected = F.cross_entropy(hidden.float() @ weight.t(), torch.arange(40), reduction="sum")
    assert total.item() == pytest.approx(expected.item(), rel=0.01)


def test_rms_norm_equals_torch() -> None:
    norm, x, pull = RMSNorm(24, 1e-5), 3 * _random(5, 7, 24), _random(5, 7, 24, seed=2)
    weight = _random(24, seed=3)

    def ours(x: Tensor, weight: Tensor) -> Tensor:
        return (torch.func.functional_call(norm, {"weight": weight}, (x,)) * pull).sum()

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return (F.rms_norm(x, (24,), weight, 1e-5) * pull).sum()

    assert float(ours(x, weight)) == pytest.approx(float(plain(x, weight)), rel=1e-5)
    for found, expected in zip(_gradients(ours, x, weight), _gradients(plain, x, weight), strict=True):
        assert _relative(found, expected) < 1e-5


def test_rotation_depends_on_distance_and_has_the_right_gradient() -> None:
    cos, sin = rotary_tables(32, inverse_frequencies(8, 100.0))
    q, k = _random(8).expand(1, 32, 1, 8), _random(8, seed=1).expand(1, 32, 1, 8)
    scores = rotate(q, cos, sin)[0, :, 0] @ rotate(k, cos, sin)[0, :, 0].t()
    for distance in (0, 3, 17):
        diagonal = torch.diagonal(scores, -distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-4)
    assert not torch.allclose(scores[5, 5], scores[5, 4], atol=1e-2)
    x = _random(2, 4, 3, 8).double().requires_grad_()
    tables = [table[:4].double() for table in (cos, sin)]
    assert torch.autograd.gradcheck(lambda x: rotate(x, *tables), (x,))


def test_llama3_scaling_keeps_fast_and_slows_slow_frequencies() -> None:
    plain = inverse_frequencies(64, 500000.0)
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled = inverse_frequencies(64, 500000.0, scaling)
    wavelengths = 2 * math.pi / plain
    assert torch.equal(scaled[wavelengths < 8192 / 4], plain[wavelengths < 8192 / 4])
    assert torch.allclose(scaled[wavelengths > 8192], plain[wavelengths > 8192] / 8)
    with pytest.raises(ValueError, match=r"rope_type=yarn"):
        inverse_frequencies(64, 1e4, {"rope_type": "yarn"})


def test_linear_adds_to_a_preset_gradient_in_place_and_runs_hooks() -> None:
    linear, x = Linear(6, 4), _random(2, 3, 6).requires_grad_()
    calls: list[Tensor] = []
    linear.weight.register_post_accumulate_grad_hook(calls.append)
    linear(x).square().sum().backward()
    expected, expected_x = linear.weight.grad.clone(), x.grad.clone()
    preset = torch.ones(4, 6)
    linear.weight.grad, x.grad = preset, None
    linear(x).square().sum().backward()
    assert linear.weight.grad is preset and torch.allclose(preset, expected + 1, rtol=1e-5)
    assert torch.allclose(x.grad, expected_x)
    assert len(calls) == 2 and calls[1] is linear.weight


@pytest.mark.parametrize("checkpointing", [False, True])
def test_run_sums_losses_and_gradients_over_units(checkpointing: bool) -> None:
    group = _group(ParallelConfig(activation_checkpointing=checkpointing))
    chunk, blocks, calls = group.parts[0], _blocks(3), []
    total = group.run(blocks, lambda: calls.append(group.named_parameters()[0][1].grad.clone()))
    found = [parameter.grad.clone() for _, parameter in group.named_parameters()]
    for _, parameter in group.named_parameters():
        parameter.grad = None
    logits = chunk(blocks[..., :-1].flatten(0, 1))
    plain = F.cross_entropy(logits.flatten(0, 1), blocks[..., 1:].flatten(), reduction="sum")
    plain.backward()
    assert total.dtype == torch.float64 and float(total) == pytest.approx(plain.item(), rel=1e-6)
    assert float(group.evaluate(blocks)) == pytest.approx(plain.item(), rel=1e-6)
    assert len(calls) == 1 and not torch.equal(calls[0], found[0]), "the last unit was still to come"
    for gradient, (name, parameter) in zip(found, group.named_parameters(), strict=True):
        assert _relative(gradient, parameter.grad) < 1e-5, name
    expected = torch.cat([parameter.grad.flatten() for _, parameter in group.named_parameters()]).norm()
    assert float(group.gradient_norm(found)) == pytest.approx(float(expected), rel=1e-5)


def test_bfloat16_computes_in_it_and_keeps_float32() -> None:
    group = _group(ParallelConfig(), dtype=torch.bfloat16)
    assert group.parts[0](_blocks(1)[0, :, :-1]).dtype == torch.bfloat16
    exact = float(_group(ParallelConfig()).run(_blocks(1)))
    assert float(group.run(_blocks(1))) == pytest.approx(exact, rel=0.02)
    assert {parameter.grad.dtype for _, parameter in group.named_parameters()} == {torch.float32}


def test_compiled_layers_are_one_graph_and_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_layer = torch.nn.Module.compile
    monkeypatch.setattr(
        DecoderLayer, "compile", lambda layer: compile_layer(layer, backend="aot_eager", fullgraph=True)
    )  # the compiler's own code generation takes half a minute; scripts/bench_single.py --compile runs it
    eager, compiled = _group(ParallelConfig()), _group(ParallelConfig(compile=True, activation_checkpointing=True))
    assert [name for name, _ in compiled.named_parameters()] == [name for name, _ in eager.named_parameters()]
    kept: dict[str, Tensor] = {}
    for units in (1, 2):  # the second time gradients are there, and are added to in place
        assert float(compiled.run(_blocks(units))) == pytest.approx(float(eager.run(_blocks(units))), rel=1e-5)
        for (name, found), (_, expected) in zip(compiled.named_parameters(), eager.named_parameters(), strict=True):
            assert _relative(found.grad, expected.grad) < 1e-5, name
            assert kept.setdefault(name, found.grad) is found.grad


def test_compiled_linear_layers_may_run_forward_twice_before_they_run_backward() -> None:
    """As in a pipeline: one micro-batch's backward adds to a gradient that another's forward has seen."""
    linear = Linear(6, 4)
    x = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))
    expected = torch.autograd.grad(linear(x).square().sum() + linear(2 * x).square().sum(), linear.weight)[0]
    hooks: list[Tensor] = []
    linear.weight.register_post_accumulate_grad_hook(lambda weight: hooks.append(weight.grad.clone()))
    linear.weight.grad = preset = torch.ones(4, 6)
    linear.compile(backend="aot_eager", fullgraph=True)
    losses = [linear(factor * x).square().sum() for factor in (1, 2)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for loss in losses:
            loss.backward()
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls["spare_trainer::add_weight_gradient"] == 2, "the product is not written out first"
    assert len(hooks) == 2 and torch.equal(hooks[1], preset)
    assert linear.weight.grad is preset and _relative(preset - 1, expected) < 1e-5


def test_the_future_does_not_change_the_past() -> None:
    chunk = _group(ParallelConfig()).parts[0]
    ids = _blocks(1)[0, :, :-1]
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 64
    before, after = chunk(ids), chunk(changed)
    assert torch.equal(before[:, :7], after[:, :7]) and not torch.equal(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("changes", [{}, {"tied_embeddings": True}, {"qk_norm": True, "head_dim": 12}])
def test_counts(changes: dict[str, object]) -> None:
    config = ModelConfig(**{**vars(SMALL), **changes})
    parameters = dict(Decoder(config, 8).named_parameters())
    assert parameter_count(config) == sum(parameter.numel() for parameter in parameters.values())
    matrices = sum(p.numel() for name, p in parameters.items() if p.ndim == 2 and "embed" not in name)
    if config.tied_embeddings:
        matrices += parameters["embed_tokens.weight"].numel()
    head_dim = config.head_dim or 8
    assert flops_per_token(config, 100) == 6 * matrices + 2 * 12 * 4 * head_dim * 100 / 2


def test_initial_rows_do_not_depend_on_the_slice_that_is_asked_for() -> None:
    shape = torch.Size([2 * BLOCK_ROWS + 100, 3])
    full = initial_rows(SMALL, 0, "lm_head.weight", shape, 0, shape[0])
    assert full.std() == pytest.approx(SMALL.init_std, rel=0.05)
    for first, last in ((0, 10), (500, 530), (BLOCK_ROWS, 2 * BLOCK_ROWS), (1100, shape[0]), (7, 7)):
        assert torch.equal(initial_rows(SMALL, 0, "lm_head.weight", shape, first, last), full[first:last])
    assert not torch.equal(initial_rows(SMALL, 1, "lm_head.weight", shape, 0, 5), full[:5])
    assert not torch.equal(initial_rows(SMALL, 0, "layers.0.mlp.up_proj.weight", shape, 0, 5), full[:5])
    written = initial_rows(SMALL, 0, "layers.0.mlp.down_proj.weight", shape, 0, shape[0])
    assert written.std() == pytest.approx(SMALL.init_std / 2, rel=0.05)


def test_layers_are_split_evenly_and_in_order() -> None:
    ranges = split_layers(11, 4)
    assert [(part.first, part.last) for part in ranges] == [(0, 3), (3, 6), (6, 9), (9, 11)]
    assert ranges[0].has_embedding and ranges[-1].has_output and not ranges[1].has_output


def test_a_mesh_of_one_has_no_axes() -> None:
    mesh = GroupMesh(ParallelConfig(), torch.device("cpu"))
    assert mesh.mesh is None and mesh.axis_or_none("tp") is None and mesh.coordinate("pp") == 0
    with pytest.raises(ValueError, match=r"parallel\.dp_shard=1"):
        mesh.axis("dp_shard")
