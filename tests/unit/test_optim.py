"""AdamW's groups, schedules and bitwise resume."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainer.checkpoint.state import training_state
from trainer.config import OptimConfig
from trainer.optim import apply_learning_rate, build_optimizer, clip_coefficient, learning_rate


class Net(nn.Module):
    """An embedding, a norm, a matrix with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.RMSNorm(8)
        self.out = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.embed(tokens))).square().sum()


def one_step(net: Net, optimizer: torch.optim.AdamW, step: int) -> None:
    optimizer.zero_grad()
    net(torch.randint(0, 11, (16,), generator=torch.Generator().manual_seed(step))).backward()
    optimizer.step()


def test_matrices_decay_and_vectors_do_not() -> None:
    net = Net()
    net.out.weight.requires_grad_(False)
    optimizer = build_optimizer(list(net.named_parameters()), OptimConfig(weight_decay=0.25))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    names = {name: decays.get(id(p)) for name, p in net.named_parameters()}
    assert names == {"embed.weight": 0.25, "norm.weight": 0.0, "out.bias": 0.0, "out.weight": None}


def test_without_gradient_only_decayed_weights_shrink() -> None:
    net = Net()
    optimizer = build_optimizer(list(net.named_parameters()), OptimConfig(lr=0.1, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in net.named_parameters():
        expected = before[name] * (0.95 if p.ndim == 2 else 1.0)
        torch.testing.assert_close(p.detach(), expected)


def test_fused_equals_the_formula() -> None:
    """Loshchilov and Hutter's update, written out."""
    cfg = OptimConfig(lr=0.01, weight_decay=0.1)
    weight = nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float32).view(2, 3))
    expected, mean, square = weight.detach().double().clone(), torch.zeros(2, 3).double(), torch.zeros(2, 3).double()
    optimizer = build_optimizer([("w", weight)], cfg)
    assert optimizer.param_groups[0]["fused"]
    for step in range(1, 5):
        gradient = torch.sin(torch.arange(6.0) * step).view(2, 3)
        weight.grad = gradient.clone()
        optimizer.step()
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.95 * square + 0.05 * gradient.double() ** 2
        expected *= 1 - cfg.lr * cfg.weight_decay
        expected -= cfg.lr * (mean / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + cfg.eps)
    torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps_before", [0, 3])
def test_resume_is_bitwise(steps_before: int) -> None:
    first, second = Net(), Net()
    optimizers = [build_optimizer(list(net.named_parameters()), OptimConfig()) for net in (first, second)]
    for step in range(steps_before):
        one_step(first, optimizers[0], step)
    saved = {k: v.clone() for k, v in training_state(first.named_parameters(), optimizers[0]).items()}
    for name, tensor in training_state(second.named_parameters(), optimizers[1]).items():
        tensor.copy_(saved[name])
    for step in range(steps_before, steps_before + 4):
        one_step(first, optimizers[0], step)
        one_step(second, optimizers[1], step)
    state, other = (training_state(n.named_parameters(), o) for n, o in zip((first, second), optimizers, strict=True))
    assert set(state) == set(other) and len(state) == 16
    assert all(torch.equal(state[name], other[name]) for name in state)
    assert float(state["optimizer/out.weight/step"]) == steps_before + 4


def test_warm_up_is_linear_and_never_zero() -> None:
    cfg = OptimConfig(lr=1.0, warmup_steps=4)
    assert [learning_rate(s, cfg, 100) for s in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_cosine_ends_at_its_minimum() -> None:
    cfg = OptimConfig(lr=2.0, warmup_steps=10, min_lr_ratio=0.1, schedule="cosine")
    assert learning_rate(10, cfg, 111) == 2.0
    assert learning_rate(60, cfg, 111) == pytest.approx((2.0 + 0.2) / 2)
    assert learning_rate(35, cfg, 111) == pytest.approx(0.2 + 1.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert learning_rate(110, cfg, 111) == pytest.approx(0.2)
    assert learning_rate(500, cfg, 111) == pytest.approx(0.2)


def test_wsd_is_flat_then_falls_linearly() -> None:
    cfg = OptimConfig(lr=1.0, warmup_steps=2, min_lr_ratio=0.0, schedule="wsd", decay_steps=10)
    rates = [learning_rate(s, cfg, 41) for s in range(41)]
    assert rates[2:31] == [1.0] * 29
    assert rates[30:] == pytest.approx([1 - k / 10 for k in range(11)])
    cfg.decay_steps = None
    assert [learning_rate(s, cfg, 101) for s in (80, 90, 100)] == pytest.approx([1.0, 0.5, 0.0])


def test_constant() -> None:
    cfg = OptimConfig(lr=0.3, warmup_steps=0, schedule="constant")
    assert {learning_rate(s, cfg, 10) for s in range(12)} == {0.3}


def test_unknown_schedule_names_the_option() -> None:
    with pytest.raises(ValueError, match=r"optim\.schedule=linear.*cosine, wsd, constant"):
        learning_rate(0, OptimConfig(schedule="linear"), 10)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    schedule=st.sampled_from(["cosine", "wsd", "constant"]),
    warmup=st.integers(0, 30),
    decay=st.none() | st.integers(1, 60),
    total=st.integers(1, 60),
    ratio=st.floats(0, 1),
)
def test_any_schedule_rises_then_never_rises_again(
    schedule: str, warmup: int, decay: int | None, total: int, ratio: float
) -> None:
    cfg = OptimConfig(lr=1.0, schedule=schedule, warmup_steps=warmup, decay_steps=decay, min_lr_ratio=ratio)
    rates = [learning_rate(s, cfg, total) for s in range(total + 5)]
    assert all(0.0 <= rate <= 1.0 and math.isfinite(rate) for rate in rates)
    assert all(a < b for a, b in itertools.pairwise(rates[: warmup + 1]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(rates[warmup:]))


def test_apply_learning_rate_reaches_all_groups() -> None:
    optimizer = build_optimizer(list(Net().named_parameters()), OptimConfig())
    apply_learning_rate(optimizer, 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]


def test_clip_coefficient_is_that_of_torch() -> None:
    for size in (0.1, 1.0, 30.0):
        clipped, plain = nn.Parameter(torch.zeros(5)), torch.arange(5.0) * size
        clipped.grad = plain.clone()
        norm = float(torch.nn.utils.clip_grad_norm_([clipped], 1.0))
        torch.testing.assert_close(plain * clip_coefficient(norm, 1.0), clipped.grad, rtol=1e-6, atol=0)
    assert clip_coefficient(0.5, 1.0) == 1.0
    assert clip_coefficient(4.0, 0.0) == 1.0
