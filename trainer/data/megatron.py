"""Megatron's indexed data set: `X.bin` holds token ids, `X.idx` says of which type and where each sequence lies.

The index, little-endian: 9 bytes `MMIDIDX` and two zeros; uint64 version (1); uint8 code of the type; uint64 sequences
S; uint64 entries D of the document index; int32 [S] lengths in tokens; int64 [S] offsets in bytes; int64 [D] document
index, which counts sequences from 0 and ends with S (D = documents + 1).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_VERSION = 1
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_WRITTEN = {"uint16": 8, "int32": 4}


def read_index(path: Path) -> tuple[str, int]:
    """Type and number of the tokens of the .bin beside an index.

    Ids are read as one stream in file order, so the sequences must follow each other without gaps, as Megatron writes
    them.

    Returns:
        NumPy name of the integer type, tokens.

    Raises:
        ValueError: not such an index, of another version, cut short, of floats, or with gaps.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise ValueError(f"data.paths: {path} is not a Megatron index (it does not start with MMIDIDX)")
        _, version, code, sequences, documents = _HEADER.unpack(header)
        if version != _VERSION:
            raise ValueError(
                f"data.paths: {path} has version {version} of Megatron's index; version {_VERSION} is read"
            )
        dtype = _CODES.get(code, f"code {code}")
        if "int" not in dtype:
            raise ValueError(f"data.paths: {path} holds {dtype}, which are not token ids")
        if size < _HEADER.size + 12 * sequences + 8 * documents:
            raise ValueError(f"data.paths: {path} is cut short at {size} bytes for {sequences} sequences")
        lengths = np.fromfile(stream, dtype="<i4", count=sequences)
        offsets = np.fromfile(stream, dtype="<i8", count=sequences)
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    if not np.array_equal(offsets, starts * np.dtype(dtype).itemsize):
        raise ValueError(
            f"data.paths: the sequences of {path} do not follow each other in the .bin; write it anew in order"
        )
    return dtype, int(ends[-1]) if sequences else 0


def index_dtype(vocab_size: int) -> str:
    """Type in which Megatron stores ids of a vocabulary: it has no uint32."""
    return "uint16" if vocab_size <= 1 << 16 else "int32"


def write_index(path: Path, dtype: str, lengths: np.ndarray) -> None:
    """Write the index of a .bin; on disk when this returns.

    Args:
        path: of the .idx.
        dtype: of `index_dtype`.
        lengths: int64 [S], tokens of each sequence; a sequence is a document.

    Raises:
        ValueError: a document has 2^31 tokens or more.
    """
    if len(lengths) and int(lengths.max()) >= 1 << 31:
        raise ValueError("data: a document has more tokens than Megatron's index can say (2^31); split it")
    sizes = lengths.astype("<i4")
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    with open(path, "wb") as stream:
        stream.write(_HEADER.pack(_MAGIC, _VERSION, _WRITTEN[dtype], len(sizes), len(sizes) + 1))
        stream.write(sizes.tobytes())
        stream.write((starts * np.dtype(dtype).itemsize).astype("<i8").tobytes())
        stream.write(np.arange(len(sizes) + 1, dtype="<i8").tobytes())
        stream.flush()
        os.fsync(stream.fileno())
