"""A bucket that is reported during the backward pass is final: what overlapped reduction rests on."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fault_tolerance.runtime.buckets import GradientBuckets
from trainer.config import ModelConfig, ParallelConfig
from trainer.parallel.group_model import GroupModel
from trainer.parallel.mesh import GroupMesh


@pytest.fixture
def model() -> GroupModel:
    parallel = ParallelConfig(groups=1, micro_batches=1)
    small = ModelConfig(vocab_size=128, hidden_size=32, intermediate_size=64, layers=3, heads=2, kv_heads=1)
    mesh = GroupMesh(parallel, torch.device("cpu"))
    return GroupModel(small, parallel, mesh=mesh, sequence_length=16, compute_dtype=torch.float32, seed=0)


def test_buckets_reported_in_the_backward_pass_are_final_and_in_order(model: GroupModel) -> None:
    parameters = [parameter for _, parameter in model.named_parameters()]
    buckets = GradientBuckets(parameters, bucket_bytes=4096, keep_local=True)
    buckets.watch_backward()
    blocks = torch.randint(0, 128, (2, 2, 17), generator=torch.Generator().manual_seed(0))
    early: dict[int, torch.Tensor] = {}
    buckets.begin_step()
    model.run(
        blocks,
        on_last_backward=lambda: buckets.arm(lambda i: early.__setitem__(i, buckets.load_bucket(i, [0]).clone())),
    )
    buckets.disarm()
    assert len(buckets) > 3
    assert list(early) == list(range(len(buckets)))
    for index, seen in early.items():
        assert torch.equal(seen, buckets.load_bucket(index, [0])), f"bucket {index} changed after it was reported"


@pytest.mark.parametrize("preset", [True, False], ids=["preset gradients", "no gradients"])
def test_every_hook_runs_once_per_unit(model: GroupModel, preset: bool) -> None:
    calls: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parameter.grad = torch.zeros_like(parameter) if preset else None
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: calls.update([name]))
    model.run(torch.randint(0, 128, (3, 2, 17), generator=torch.Generator().manual_seed(0)))
    assert calls == Counter({name: 3 for name, _ in model.named_parameters()})
