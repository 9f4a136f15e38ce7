"""The weights' hash: independent of order and memory layout, sensitive to everything that matters."""

from __future__ import annotations

import torch

from trainer.weights import weights_sha256

NAMED = {
    "b": torch.arange(6.0).view(2, 3),
    "a": torch.tensor(1.5),
    "c": torch.ones(4, dtype=torch.bfloat16),
    "e": torch.empty(0, 3),
}


def test_order_and_strides_do_not_matter() -> None:
    turned = NAMED["b"].t().contiguous().t()
    assert not turned.is_contiguous()
    assert weights_sha256(sorted(NAMED.items())) == weights_sha256((NAMED | {"b": turned}).items())


def test_value_sign_of_zero_name_shape_and_type_matter() -> None:
    changed = [
        NAMED | {"a": torch.nextafter(NAMED["a"], torch.tensor(2.0))},
        NAMED | {"b": -NAMED["b"]},
        NAMED | {"b": NAMED["b"].view(3, 2)},
        NAMED | {"c": torch.ones(4, dtype=torch.float16)},
        NAMED | {"e": torch.empty(3, 0)},
        {("d" if name == "a" else name): tensor for name, tensor in NAMED.items()},
        {name: NAMED[name] for name in "abc"},
    ]
    hashes = [weights_sha256(named.items()) for named in [NAMED, *changed]]
    assert len(set(hashes)) == len(hashes)
    assert hashes[0] == weights_sha256(NAMED.items())


def test_a_parameter_that_needs_gradients() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    assert weights_sha256([("p", parameter)]) == weights_sha256([("p", torch.ones(2))])
