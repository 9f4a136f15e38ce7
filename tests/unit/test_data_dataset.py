"""Blocks by index: every row once per epoch, the same for every cut of the batch, nothing of the held-out split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.dataset import BlockDataset
from trainer.data.permutation import permute
from trainer.data.prepared import PreparedData, TokenFile

FIXED = settings(deadline=None, derandomize=True, max_examples=40)


def corpus(folder: Path, *sizes: int) -> PreparedData:
    """Files whose tokens count up from 0 over all of them, so that a token names its place."""
    files = []
    first = 0
    for number, size in enumerate(sizes):
        path = folder / f"{number}.bin"
        np.arange(first, first + size, dtype="<u4").tofile(path)
        files.append(TokenFile(str(path), "uint32", size))
        first += size
    return PreparedData("tokens", tuple(files), None, first + 1, None, first, "0")


def dataset(prepared: PreparedData, **changes: Any) -> BlockDataset:
    options: dict[str, Any] = {
        "sequence_length": 8,
        "global_batch": 12,
        "types": 3,
        "micro_batches": 2,
        "seed": 7,
        "validation_fraction": 0.1,
        "shuffle": True,
    }
    return BlockDataset(prepared, **{**options, **changes})


def step_rows(data: BlockDataset, step: int) -> np.ndarray:
    """All rows of a step, [global_batch, T + 1]."""
    units = [data.unit(step, type, micro) for type in range(data.types) for micro in range(data.micro_batches)]
    return np.concatenate(units)


@FIXED
@given(size=st.integers(1, 1500), seed=st.integers(-(2**63), 2**64), epoch=st.integers(0, 10**6))
def test_permutation_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    assert sorted(permute(position, size, seed, epoch) for position in range(size)) == list(range(size))


def test_permutation_of_a_huge_corpus_needs_no_memory() -> None:
    size = 10**15 + 37
    items = [permute(position, size, 3, 1) for position in range(200)]
    assert len(set(items)) == 200 and all(0 <= item < size for item in items)
    assert 0.3 < np.mean(items) / size < 0.7


def test_order_stays_the_same_over_versions() -> None:
    """A resumed run must not see another order than the one that it began with."""
    assert [permute(position, 1000, 0, 0) for position in range(6)] == [660, 352, 373, 831, 970, 297]


@pytest.mark.parametrize("size", [5, 16, 33])
def test_items_are_equally_likely_at_the_first_position(size: int) -> None:
    epochs = 2000
    counts = np.bincount([permute(0, size, 11, epoch) for epoch in range(epochs)], minlength=size)
    chi_square = float(((counts - epochs / size) ** 2).sum() / (epochs / size))
    assert chi_square < size - 1 + 5 * (2 * (size - 1)) ** 0.5


def test_neighbours_of_one_epoch_are_spread_in_the_next() -> None:
    first, second = ([permute(position, 1024, 5, epoch) for position in range(1024)] for epoch in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15
    assert abs(np.corrcoef(first, range(1024))[0, 1]) < 0.15


def test_units_are_runs_of_blocks_with_their_targets(tmp_path: Path) -> None:
    data = dataset(corpus(tmp_path, 1000))
    unit = data.unit(4, 2, 1)
    assert unit.shape == (2, 9) and unit.dtype == np.int64
    assert (np.diff(unit, axis=1) == 1).all() and (unit[:, 0] % 8 == 0).all()


@pytest.mark.parametrize(("types", "micro_batches"), [(1, 1), (2, 1), (2, 3), (4, 3), (12, 1), (1, 12)])
def test_every_cut_of_the_batch_sees_the_same_rows(tmp_path: Path, types: int, micro_batches: int) -> None:
    prepared = corpus(tmp_path, 1000, 333)
    whole = dataset(prepared, types=1, micro_batches=1)
    cut = dataset(prepared, types=types, micro_batches=micro_batches)
    for step in (0, 1, 30):
        np.testing.assert_array_equal(step_rows(cut, step), step_rows(whole, step))
    np.testing.assert_array_equal(
        cut.validation_unit(2, types - 1, micro_batches - 1), whole.validation_unit(2, 0, 0)[-cut.micro_batch_size :]
    )


def test_unit_does_not_depend_on_what_was_asked_before(tmp_path: Path) -> None:
    prepared = corpus(tmp_path, 1000)
    used = dataset(prepared)
    for step in range(50):
        used.unit(step, 0, 0)
    np.testing.assert_array_equal(used.unit(3, 1, 1), dataset(prepared).unit(3, 1, 1))


@FIXED
@given(
    blocks=st.integers(2, 200),
    fraction=st.floats(0.001, 0.5),
    shuffle=st.booleans(),
)
def test_an_epoch_has_each_training_block_once_and_no_held_out_one(
    tmp_path_factory: pytest.TempPathFactory, blocks: int, fraction: float, shuffle: bool
) -> None:
    prepared = corpus(tmp_path_factory.mktemp("corpus"), blocks * 4 + 1)
    data = dataset(
        prepared,
        sequence_length=4,
        global_batch=1,
        types=1,
        micro_batches=1,
        validation_fraction=fraction,
        shuffle=shuffle,
    )
    assert data.blocks == blocks and data.validation_blocks == max(1, round(fraction * blocks))
    held_out = {int(data.validation_unit(row, 0, 0)[0, 0]) // 4 for row in range(data.validation_blocks)}
    epochs = [
        [int(data.unit(epoch * data.train_blocks + row, 0, 0)[0, 0]) // 4 for row in range(data.train_blocks)]
        for epoch in range(2)
    ]
    assert len(held_out) == data.validation_blocks
    for epoch in epochs:
        assert sorted([*epoch, *held_out]) == list(range(blocks))
    if not shuffle:
        assert epochs[0] == epochs[1] == sorted(epochs[0])
    elif data.train_blocks > 10:
        assert epochs[0] != epochs[1] and epochs[0] != sorted(epochs[0])


def test_no_held_out_token_is_a_training_target(tmp_path: Path) -> None:
    data = dataset(corpus(tmp_path, 1001), global_batch=1, types=1, micro_batches=1)
    trained = {int(token) for row in range(data.train_blocks) for token in data.unit(row, 0, 0)[0, 1:]}
    held_out = {int(token) for row in range(data.validation_blocks) for token in data.validation_unit(row, 0, 0)[0, 1:]}
    assert not trained & held_out and trained | held_out == set(range(1, 1001))


def test_held_out_blocks_are_spread_evenly(tmp_path: Path) -> None:
    data = dataset(corpus(tmp_path, 8001), validation_fraction=0.1)
    places = [data.validation_block(index) for index in range(data.validation_blocks)]
    assert set(np.diff(places).tolist()) == {10}


def test_rows_run_on_over_the_end_of_an_epoch(tmp_path: Path) -> None:
    data = dataset(corpus(tmp_path, 8 * 20 + 1), validation_fraction=0, shuffle=False)
    rows = np.concatenate([step_rows(data, step) for step in range(4)])[:, 0] // 8
    assert rows.tolist() == [row % 20 for row in range(48)]


def test_seed_names_the_order(tmp_path: Path) -> None:
    prepared = corpus(tmp_path, 2000)
    assert not np.array_equal(dataset(prepared, seed=1).unit(0, 0, 0), dataset(prepared, seed=2).unit(0, 0, 0))


def test_blocks_never_span_files(tmp_path: Path) -> None:
    prepared = corpus(tmp_path, 20, 3, 0, 9, 41)
    data = dataset(prepared, validation_fraction=0, shuffle=False, global_batch=1, types=1, micro_batches=1)
    firsts = [int(data.unit(row, 0, 0)[0, 0]) for row in range(data.blocks)]
    assert firsts == [0, 8, 23, 32, 40, 48, 56, 64]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 1000}, r"train\.sequence_length=1000: the corpus of 500 tokens has 0 blocks"),
        ({"sequence_length": 499}, r"holds out 1, and at least one must be left"),
        ({"sequence_length": 0}, r"train\.sequence_length=0"),
        ({"global_batch": 10}, r"train\.global_batch=10 must be a multiple of .* 3 x 2"),
        ({"validation_fraction": 1.0}, r"data\.validation_fraction=1\.0"),
        ({"validation_fraction": -0.1}, r"data\.validation_fraction=-0\.1"),
    ],
)
def test_what_does_not_fit_names_its_option(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(corpus(tmp_path, 500), **changes)


def test_validation_without_a_split_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.validation_fraction=0"):
        dataset(corpus(tmp_path, 500), validation_fraction=0).validation_unit(0, 0, 0)


def test_a_token_file_that_changed_is_an_error(tmp_path: Path) -> None:
    prepared = corpus(tmp_path, 500)
    Path(prepared.files[0].path).write_bytes(b"short")
    with pytest.raises(ValueError, match="500 tokens of uint32 were prepared"):
        dataset(prepared)
    Path(prepared.files[0].path).unlink()
    with pytest.raises(ValueError, match="is gone"):
        dataset(prepared)
