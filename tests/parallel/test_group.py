"""What else a group of several ranks promises: bfloat16, compilation, tied weights that stay tied, clear refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from group_cases import LENGTH, Outcome, run_group, small_model, unit_blocks
from ranks import run_ranks
from torch.distributed.tensor import DTensor

from fault_tolerance.runtime.exact_buckets import ExactGradientBuckets
from trainer.config import ModelConfig, ParallelConfig
from trainer.parallel.group_model import TIED_WEIGHT, GroupModel
from trainer.parallel.mesh import GroupMesh
from trainer.weights import weights_sha256

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120), pytest.mark.usefixtures("fork_server")]
QWEN = small_model(qk_norm=True, tied_embeddings=True, head_dim=16)


def _group(model: ModelConfig, parallel: ParallelConfig) -> GroupModel:
    mesh = GroupMesh(parallel, torch.device("cpu"))
    return GroupModel(model, parallel, mesh=mesh, sequence_length=LENGTH, compute_dtype=torch.float32, seed=5)


def _merged(outcomes: list[Outcome]) -> dict[str, torch.Tensor]:
    return {name: gradient for outcome in outcomes for name, gradient in outcome.gradients[-1].items()}


@pytest.mark.parametrize("degrees", [{"tp": 2, "dp_shard": 2}, {"pp": 2, "tp": 2}])
def test_bfloat16_keeps_float32_weights_and_gradients(degrees: dict[str, int]) -> None:
    expected = run_group(0, QWEN, ParallelConfig(), [2])
    outcomes = run_ranks(4, run_group, QWEN, ParallelConfig(**degrees), [2], torch.bfloat16)
    assert outcomes[0].losses == pytest.approx(expected.losses, rel=0.01)
    assert outcomes[0].losses != expected.losses
    for name, gradient in _merged(outcomes).items():
        assert gradient.dtype == torch.float32
        wanted = expected.gradients[-1][name]
        assert float((gradient - wanted).norm() / wanted.norm()) < 0.1, name


def _train_tied(_rank: int, parallel: ParallelConfig) -> tuple[str, torch.Tensor | None]:
    """Two optimizer steps, then a hash of the group's weights and this rank's copy of the tied weight."""
    group = _group(QWEN, parallel)
    parameters = dict(group.named_parameters())
    for step in range(2):
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        group.run(unit_blocks(2 + step))
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.sub_(parameter.grad, alpha=1e-3)
        group.evaluate(unit_blocks(1))
    world = torch.distributed.group.WORLD if torch.distributed.is_initialized() else None
    digest = weights_sha256(group.full_named_tensors(), world)
    tied = parameters.get(TIED_WEIGHT)
    if isinstance(tied, DTensor):
        tied = tied.full_tensor()
    return digest, None if tied is None else tied.detach().clone()


@pytest.mark.parametrize("degrees", [{"pp": 2}, {"pp": 2, "dp_shard": 2}])
def test_tied_weights_of_two_stages_stay_equal_bit_for_bit(degrees: dict[str, int]) -> None:
    _, expected = _train_tied(0, ParallelConfig())
    assert expected is not None
    parallel = ParallelConfig(**degrees)
    results = run_ranks(parallel.pp * parallel.dp_shard, _train_tied, parallel)
    copies = [tied for _, tied in results if tied is not None]
    assert len({digest for digest, _ in results}) == 1
    assert len(copies) == len(results) and all(torch.equal(copies[0], copy) for copy in copies)
    assert torch.allclose(copies[0], expected, rtol=1e-4, atol=1e-6)


def _exact_gradients(_rank: int, parallel: ParallelConfig) -> dict[str, torch.Tensor]:
    """Gradients of three units as exact sums make them."""
    group = _group(QWEN, parallel)
    blocks = unit_blocks(3)
    buckets = ExactGradientBuckets(
        [parameter for _, parameter in group.named_parameters()],
        bucket_bytes=1 << 12,
        tokens_per_step=blocks[..., 1:].numel(),
        units_per_step=len(blocks),
        parted=group.keep_tied_gradients_apart(),
    )
    for _ in range(2):  # the second step sees nothing of the first
        buckets.begin_step()
        for part in (blocks[:2], blocks[2:]):  # the last unit comes as a patch: everything is reduced again
            group.run(part)
            for bucket in range(len(buckets)):
                buckets.load_bucket(bucket, [0])
                buckets.store_bucket(bucket)
            buckets.load_statistics([0])
            buckets.finish()
            buckets.combine()
    gradients = zip(group.named_parameters(), buckets.reduced_gradients(), strict=True)
    return {name: gradient.clone() for (name, _), gradient in gradients}


def test_exact_sums_of_tied_weights_hold_both_stages_gradients() -> None:
    expected = _exact_gradients(0, ParallelConfig())
    first, last = run_ranks(2, _exact_gradients, ParallelConfig(pp=2))
    assert torch.equal(first[TIED_WEIGHT], last[TIED_WEIGHT])
    assert (first | last).keys() == expected.keys()
    for name, gradient in (first | last).items():
        assert float((gradient - expected[name]).norm() / expected[name].norm()) < 1e-5, name


def _initial_hash(_rank: int, parallel: ParallelConfig) -> str:
    return weights_sha256(_group(QWEN, parallel).full_named_tensors(), torch.distributed.group.WORLD)


def test_initial_weights_have_one_hash_in_every_layout() -> None:
    expected = weights_sha256(_group(QWEN, ParallelConfig()).full_named_tensors())
    for degrees in ({"tp": 2}, {"pp": 2}, {"dp_shard": 2}):
        assert run_ranks(2, _initial_hash, ParallelConfig(**degrees)) == [expected, expected]


def _refused(_rank: int, degrees: dict[str, Any]) -> str:
    with pytest.raises(ValueError) as refusal:
        _group(QWEN, ParallelConfig(**degrees)).run(unit_blocks(1)[:, :3])
    return str(refusal.value)


def test_wrong_group_sizes_and_batches_are_named() -> None:
    (first, _) = run_ranks(2, _refused, {"tp": 2, "pp": 2})
    assert "parallel.tp=2" in first and "needs 4 ranks" in first and "has 2" in first
    (first, _) = run_ranks(2, _refused, {"dp_shard": 2})
    assert "parallel.dp_shard=2" in first
