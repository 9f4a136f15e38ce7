"""Gradient buckets: what adds up where, and exact sums that know no order."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fault_tolerance.runtime.buckets import ALIGNMENT, GradientBuckets
from fault_tolerance.runtime.exact_buckets import GRID_BITS, ExactGradientBuckets

TOKENS = 64
UNITS = 6


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3, bias=False))


def backward(net: nn.Module, unit: int) -> None:
    """The gradient of one unit; its scale differs widely between units, so that rounding depends on the order."""
    data = torch.Generator().manual_seed(unit)
    (net(torch.randn(4, 7, generator=data)).pow(2).sum() * 10.0 ** (unit % 4 - 2)).backward()


def summed(buckets: GradientBuckets, slots: list[int]) -> torch.Tensor:
    """The whole reduced buffer of one group alone."""
    for bucket in range(len(buckets)):
        buckets.load_bucket(bucket, slots)
        buckets.store_bucket(bucket)
    buckets.load_statistics(slots)
    buckets.finish()
    return buckets.reduced.clone()


def exact(net: nn.Module, slots: int = 1) -> ExactGradientBuckets:
    return ExactGradientBuckets(
        list(net.parameters()), bucket_bytes=64, tokens_per_step=TOKENS, units_per_step=UNITS, slots=slots
    )


def of_kind(kind: str, net: nn.Module, slots: int = 1) -> GradientBuckets:
    """Buckets that keep local sums: "exact" ones or "plain" ones."""
    if kind == "exact":
        return exact(net, slots)
    return GradientBuckets(list(net.parameters()), bucket_bytes=64, keep_local=True, slots=slots)


@given(st.permutations(range(UNITS)))
def test_exact_sums_are_the_same_bits_in_every_order(order: list[int]) -> None:
    net = model()
    buckets = exact(net)
    results = []
    for units in (range(UNITS), order):
        buckets.begin_step()
        for unit in units:
            backward(net, unit)
        results.append(summed(buckets, [0]))
    assert torch.equal(*results)


@given(st.lists(st.integers(0, 2), min_size=UNITS, max_size=UNITS))
def test_exact_sums_are_the_same_bits_over_any_groups(group_of_unit: list[int]) -> None:
    """Each group adds up its own units; the groups' sums are then added, here as float64 as an all-reduce would."""
    alone = exact(net := model())
    alone.begin_step()
    for unit in range(UNITS):
        backward(net, unit)
    total = [torch.zeros_like(alone.load_bucket(bucket, [0])) for bucket in range(len(alone))]
    for group in range(3):
        buckets = exact(other := model())
        buckets.begin_step()
        for unit in range(UNITS):
            if group_of_unit[unit] == group:
                backward(other, unit)
        for bucket, sums in enumerate(total):
            sums.add_(buckets.load_bucket(bucket, [0]))
    for bucket, sums in enumerate(total):
        alone.load_bucket(bucket, [0]).copy_(sums)
        alone.store_bucket(bucket)
    scattered = alone.reduced.clone()
    assert torch.equal(scattered, summed(alone, [0]))


def test_exact_sums_are_those_of_autograd_to_the_grid() -> None:
    net, plain = model(), model()
    buckets = exact(net)
    buckets.begin_step()
    for unit in range(UNITS):
        backward(net, unit)
        backward(plain, unit)
    summed(buckets, [0])
    for found, parameter in zip(buckets.reduced_gradients(), plain.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=UNITS * TOKENS * 2.0**-GRID_BITS)


@pytest.mark.parametrize(("scale", "finite"), [(1e3, True), (1e9, False), (math.inf, False), (math.nan, False)])
def test_sums_beyond_the_exact_range_count_as_not_finite(scale: float, finite: bool) -> None:
    net = model()
    buckets = exact(net)
    buckets.begin_step()
    (net(torch.ones(1, 7)).sum() * scale).backward()
    assert bool(summed(buckets, [0]).isfinite().all()) is finite
    buckets.begin_step()  # and the next step is clean again
    backward(net, 1)
    assert summed(buckets, [0]).isfinite().all()


@pytest.mark.parametrize("kind", ["plain", "exact"])
def test_nothing_of_an_earlier_step_is_left(kind: str) -> None:
    """Not even where a parameter or the whole group has no gradient; and a patch adds to what was reduced."""
    net = model()
    buckets = of_kind(kind, net)
    buckets.begin_step()
    backward(net, 3)
    whole = summed(buckets, [0])
    buckets.begin_step()
    net[0](torch.ones(1, 7)).sum().backward()
    summed(buckets, [0])
    assert not buckets.reduced_gradients()[2].any() and buckets.reduced_gradients()[0].any()
    buckets.begin_step()
    assert not summed(buckets, [0]).any()
    backward(net, 3)
    assert torch.equal(summed(buckets, [0]), whole)
    backward(net, 4)
    both = summed(buckets, [0])
    buckets.begin_step()
    backward(net, 4)
    torch.testing.assert_close(both, whole + summed(buckets, [0]))


@pytest.mark.parametrize("kind", ["plain", "exact"])
def test_slots_keep_sums_apart_until_it_is_known_which_count(kind: str) -> None:
    net = model()
    buckets = of_kind(kind, net, slots=3)
    single = []
    buckets.begin_step()
    for slot in range(3):
        buckets.select(slot)
        backward(net, slot)
        buckets.statistics[0] += slot + 1.0
    for slot in range(3):
        single.append(summed(buckets, [slot]))
    torch.testing.assert_close(summed(buckets, [0, 2]), single[0] + single[2])
    assert buckets.reduced_statistics[0] == 1.0 + 3.0
    assert not summed(buckets, []).any()


@pytest.mark.parametrize("kind", ["plain", "exact"])
def test_a_lost_collective_writes_to_no_buffer_that_counts(kind: str) -> None:
    net = model()
    buckets = of_kind(kind, net)
    buckets.begin_step()
    backward(net, 3)
    lost = [buckets.load_bucket(bucket, [0]) for bucket in range(len(buckets))]
    lost_statistics = buckets.load_statistics([0])
    buckets.renew_reduced()
    for bucket in range(len(buckets)):
        buckets.load_bucket(bucket, [0])
        buckets.store_bucket(bucket)
    buckets.load_statistics([0])
    buckets.finish()
    before, statistics = buckets.reduced.clone(), buckets.reduced_statistics.clone()
    for tensor in (*lost, lost_statistics):
        tensor.fill_(1e30)
    assert torch.equal(buckets.reduced, before)
    assert torch.equal(buckets.reduced_statistics, statistics)
    assert torch.equal(summed(buckets, [0]), before)  # the local sums are untouched too


def test_buckets_cover_every_gradient_once_and_are_announced_in_order() -> None:
    net = model()
    buckets = GradientBuckets(list(net.parameters()), bucket_bytes=64, keep_local=True)
    assert len(buckets) > 1
    bounds = buckets._bounds
    assert bounds[0][0] == 0
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    assert all(start % ALIGNMENT == 0 for start, _ in bounds)
    buckets.watch_backward()
    buckets.begin_step()
    announced: list[int] = []
    buckets.arm(announced.append)
    backward(net, 0)
    assert announced == list(range(len(buckets)))
    buckets.disarm()
    backward(net, 1)
    assert len(announced) == len(buckets)


def test_in_place_buckets_reduce_the_sums_themselves() -> None:
    net = model()
    buckets = GradientBuckets(list(net.parameters()), bucket_bytes=1 << 20, keep_local=False)
    buckets.begin_step()
    backward(net, 2)
    buckets.load_bucket(0, [0]).mul_(2.0)
    buckets.expose_reduced()
    plain = model()
    backward(plain, 2)
    for parameter, expected in zip(net.parameters(), plain.parameters(), strict=True):
        assert parameter.grad is not None
        assert expected.grad is not None
        torch.testing.assert_close(parameter.grad, 2.0 * expected.grad)
