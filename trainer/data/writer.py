"""Writing token files: ids of documents, each followed by the end-of-text id."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from trainer.data.encoders import Encoder
from trainer.data.sources import Part, Source

_BATCH_CHARACTERS = 1 << 20


def dtype_of(vocab_size: int) -> str:
    """Smallest type of a token file that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def encode_part(source: Source, part: Part, encoder: Encoder) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Tokens of a part in batches of about a million characters.

    Returns:
        Pairs of ids, in `dtype_of(vocab_size)` [tokens], and the documents' ends in them as offsets behind each
        end-of-text id.
    """
    texts: list[str] = []
    ends: list[bool] = []
    characters = 0
    for text, ends_document in source.read(part):
        texts.append(text)
        ends.append(ends_document)
        characters += len(text)
        if characters >= _BATCH_CHARACTERS:
            yield _encode(texts, ends, encoder)
            texts, ends, characters = [], [], 0
    if texts:
        yield _encode(texts, ends, encoder)


def _encode(texts: list[str], ends: list[bool], encoder: Encoder) -> tuple[np.ndarray, list[int]]:
    dtype = np.dtype(dtype_of(encoder.vocab_size)).newbyteorder("<")
    end_of_text = np.array([encoder.end_of_text], dtype=dtype)
    arrays: list[np.ndarray] = []
    document_ends: list[int] = []
    total = 0
    for ids, ends_document in zip(encoder.encode(texts), ends, strict=True):
        arrays.append(ids.astype(dtype))
        total += len(ids)
        if ends_document:
            arrays.append(end_of_text)
            total += 1
            document_ends.append(total)
    return np.concatenate(arrays), document_ends


class TokenWriter:
    """Appends ids to a token file and hashes them; on disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self._stream = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._hash = hashlib.sha256()
        self.tokens = 0

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        self._stream.close()

    def append(self, ids: np.ndarray) -> None:
        """Write ids [tokens] of the file's type."""
        data = ids.tobytes()
        self._stream.write(data)
        self._hash.update(data)
        self.tokens += len(ids)

    def sha256(self) -> str:
        """sha256 (hex) of what was written."""
        return self._hash.hexdigest()
