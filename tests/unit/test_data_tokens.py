"""Token files where they lie: raw ones, Megatron's indexed ones, and ones with a description."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.config import DataConfig
from trainer.data.dataset import BlockDataset
from trainer.data.megatron import read_index, write_index
from trainer.data.prepare import prepare
from trainer.data.token_files import Description


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    return DataConfig(source="tokens", paths=[str(tmp_path / "x.bin")], cache_dir=str(tmp_path / "cache"))


def write_megatron(prefix: Path, documents: list[list[int]], dtype: str, code: int, **changes: Any) -> None:
    """A file as Megatron writes it, put together field by field from the format."""
    lengths = [len(document) for document in documents]
    width = np.dtype(dtype).itemsize
    np.array([token for document in documents for token in document], dtype=dtype).tofile(f"{prefix}.bin")
    index = changes.get("magic", b"MMIDIDX\x00\x00")
    index += struct.pack("<Q", changes.get("version", 1)) + struct.pack("<B", code)
    index += struct.pack("<Q", len(lengths)) + struct.pack("<Q", len(lengths) + 1)
    index += struct.pack(f"<{len(lengths)}i", *lengths)
    offsets = [sum(lengths[:number]) * width + changes.get("gap", 0) * (number > 0) for number in range(len(lengths))]
    index += struct.pack(f"<{len(lengths)}q", *offsets)
    index += struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))
    Path(f"{prefix}.idx").write_bytes(index[: changes.get("cut")])


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_raw_files_are_read_in_place(data: DataConfig, tmp_path: Path, dtype: str) -> None:
    data.token_dtype = dtype
    data.paths = [str(tmp_path / "b.bin"), str(tmp_path / "a*.bin")]
    for name, first in (("b", 0), ("a1", 100), ("a0", 200)):
        np.arange(first, first + 33, dtype=dtype).tofile(tmp_path / f"{name}.bin")
    prepared = prepare(data, progress=False)
    assert [Path(file.path).name for file in prepared.files] == ["b.bin", "a0.bin", "a1.bin"]
    assert (prepared.total_tokens, prepared.vocab_size, prepared.end_of_text) == (99, 233, None)
    blocks = BlockDataset(
        prepared,
        sequence_length=16,
        global_batch=6,
        types=1,
        micro_batches=1,
        seed=0,
        validation_fraction=0,
        shuffle=False,
    )
    assert blocks.unit(0, 0, 0)[:, 0].tolist() == [0, 16, 200, 216, 100, 116]


@pytest.mark.parametrize(("dtype", "code"), [("uint16", 8), ("int32", 4), ("int64", 5), ("uint8", 1)])
@pytest.mark.parametrize("ending", [".bin", ".idx", ""])
def test_megatron_files_are_read(data: DataConfig, tmp_path: Path, dtype: str, code: int, ending: str) -> None:
    write_megatron(tmp_path / "x", [[5, 6, 7], [8], list(range(20))], dtype, code)
    data.paths = [str(tmp_path / "x") + ending]
    prepared = prepare(data, progress=False)
    (file,) = prepared.files
    assert (file.dtype, file.tokens, Path(file.path).name) == (dtype, 24, "x.bin")
    assert prepared.vocab_size == 20
    blocks = BlockDataset(
        prepared,
        sequence_length=6,
        global_batch=1,
        types=1,
        micro_batches=1,
        seed=0,
        validation_fraction=0,
        shuffle=False,
    )
    assert blocks.unit(0, 0, 0).tolist() == [[5, 6, 7, 8, 0, 1, 2]]


def test_the_index_that_is_written_is_megatrons(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", [[1, 2, 3], [4], [5, 6]], "int32", 4)
    write_index(tmp_path / "y.idx", "int32", np.array([3, 1, 2]))
    assert (tmp_path / "y.idx").read_bytes() == (tmp_path / "x.idx").read_bytes()
    assert read_index(tmp_path / "y.idx") == ("int32", 6)
    with pytest.raises(ValueError, match="more tokens than Megatron's index can say"):
        write_index(tmp_path / "z.idx", "int32", np.array([1 << 31]))


@pytest.mark.parametrize(
    ("code", "changes", "message"),
    [
        (8, {"magic": b"NOTIDIDX\x00"}, "is not a Megatron index"),
        (8, {"cut": 20}, "is not a Megatron index"),
        (8, {"version": 2}, "has version 2 of Megatron's index"),
        (6, {}, "holds float64, which are not token ids"),
        (99, {}, "holds code 99, which are not token ids"),
        (8, {"cut": -4}, "is cut short"),
        (8, {"gap": 2}, "do not follow each other"),
        (4, {"gap": 0}, "do not follow each other"),
    ],
)
def test_a_bad_megatron_index(
    data: DataConfig, tmp_path: Path, code: int, changes: dict[str, Any], message: str
) -> None:
    write_megatron(tmp_path / "x", [[1, 2], [3]], "uint16", code, **changes)
    with pytest.raises(ValueError, match=message):
        prepare(data, progress=False)


def test_a_bin_shorter_than_its_index(data: DataConfig, tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", [[1, 2], [3]], "uint16", 8)
    os.truncate(tmp_path / "x.bin", 4)
    with pytest.raises(ValueError, match=r"x\.bin has 4 bytes, its index says 3 tokens of uint16"):
        prepare(data, progress=False)


def test_fingerprint_is_of_the_content(data: DataConfig, tmp_path: Path) -> None:
    np.arange(50, dtype="uint16").tofile(tmp_path / "x.bin")
    first = prepare(data, progress=False)
    os.rename(tmp_path / "x.bin", tmp_path / "y.bin")
    data.paths = [str(tmp_path / "y.bin")]
    assert prepare(data, progress=False).fingerprint == first.fingerprint
    np.arange(1, 51, dtype="uint16").tofile(tmp_path / "y.bin")
    changed = prepare(data, progress=False)
    assert changed.fingerprint != first.fingerprint and changed.vocab_size == 51


def describe(path: Path, ids: np.ndarray, **changes: Any) -> None:
    """Write a token file and its description, the description at least as new."""
    ids.tofile(path)
    values = {
        "tokens": len(ids),
        "dtype": str(ids.dtype),
        "vocab_size": 70,
        "end_of_text": 3,
        "sha256": hashlib.sha256(ids.tobytes()).hexdigest(),
        "tokenizer": None,
    }
    Description.path_of(path).write_text(json.dumps({**values, **changes}))


def test_a_description_knows_the_tokenizer(data: DataConfig, tmp_path: Path) -> None:
    tokens = np.arange(50, dtype="uint16")
    tokens.tofile(tmp_path / "x.bin")
    scanned = prepare(data, progress=False)
    (tmp_path / "x.tokenizer.json").write_text("{}")
    describe(tmp_path / "x.bin", tokens, tokenizer="x.tokenizer.json")
    described = prepare(data, progress=False)
    assert (described.vocab_size, described.end_of_text) == (70, 3)
    assert described.tokenizer == str(tmp_path / "x.tokenizer.json")
    assert described.fingerprint == scanned.fingerprint


def test_a_description_of_other_tokens_is_an_error(data: DataConfig, tmp_path: Path) -> None:
    tokens = np.arange(50, dtype="uint16")
    describe(tmp_path / "x.bin", tokens)
    tokens[::-1].tofile(tmp_path / "x.bin")
    newer = (tmp_path / "x.json").stat().st_mtime_ns + 10**9
    os.utime(tmp_path / "x.bin", ns=(newer, newer))
    with pytest.raises(ValueError, match=r"x\.bin is not what .*x\.json describes"):
        prepare(data, progress=False)
    tokens.tofile(tmp_path / "x.bin")
    os.utime(tmp_path / "x.bin", ns=(newer, newer))
    assert prepare(data, progress=False).vocab_size == 70


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 49}, r"has 50 tokens, its description 49"),
        ({"dtype": "uint32"}, r"data\.token_dtype=uint16: .* was written as uint32"),
        ({"surprise": 1}, r"x\.json does not describe"),
    ],
)
def test_a_description_that_does_not_fit(
    data: DataConfig, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    describe(tmp_path / "x.bin", np.arange(50, dtype="uint16"), **changes)
    with pytest.raises(ValueError, match=message):
        prepare(data, progress=False)


def test_files_of_two_tokenizers_do_not_mix(data: DataConfig, tmp_path: Path) -> None:
    describe(tmp_path / "x.bin", np.arange(50, dtype="uint16"))
    describe(tmp_path / "y.bin", np.arange(50, dtype="uint16"), vocab_size=80)
    data.paths.append(str(tmp_path / "y.bin"))
    with pytest.raises(ValueError, match="different tokenizers"):
        prepare(data, progress=False)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, r"data\.paths: .*x\.bin holds no tokens"),
        (b"123", {}, r"data\.token_dtype=uint16: .* has 3 bytes, which is no whole number"),
        (b"123456", {"token_dtype": "uint32"}, r"data\.token_dtype=uint32: .* has 6 bytes"),
        (b"12", {"token_dtype": "float32"}, r"data\.token_dtype=float32: one of uint16, uint32"),
        (b"\x93NUMPY\x01\x00", {}, r"is a \.npy file"),
    ],
)
def test_files_that_are_not_tokens(
    data: DataConfig, tmp_path: Path, content: bytes, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare(DataConfig(**{**vars(data), **options}), progress=False)


def test_missing_files_name_the_option(data: DataConfig, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.paths: .*x\.bin does not exist"):
        prepare(data, progress=False)
    (tmp_path / "x.idx").write_bytes(b"")
    data.paths = [str(tmp_path / "x.idx")]
    with pytest.raises(ValueError, match=r"x\.idx has no x\.bin beside it"):
        prepare(data, progress=False)
