"""data=tokens: files that are tokens already, raw or Megatron's, used where they lie.

They are read through once, to find ids that no vocabulary could hold and what fingerprints them; the cache keeps the
result. Beside a file of `scripts/prepare_data.py` lies its description (`X.json`), which spares the reading and knows
the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.data.cache import digest
from trainer.data.prepared import ITEM_BYTES, PreparedData, TokenFile
from trainer.data.sources import expand_paths, file_identity

if TYPE_CHECKING:
    from trainer.config import DataConfig

RAW_DTYPES = ("uint16", "uint32")
_SCAN_BYTES = 1 << 24


@dataclass(frozen=True)
class Description:
    """What `scripts/prepare_data.py` writes beside a token file."""

    tokens: int
    """Ids in the file."""
    dtype: str
    """NumPy name of their type."""
    vocab_size: int
    """Every id is below it."""
    end_of_text: int | None
    """Id that follows each document."""
    sha256: str
    """Of the file (hex)."""
    tokenizer: str | None
    """tokenizer.json relative to the description, or the folder or name of a transformers tokenizer."""

    @staticmethod
    def path_of(file: str | Path) -> Path:
        """Where the description of token file X.bin lies: X.json."""
        return Path(file).with_suffix(".json")

    def to_json(self) -> str:
        """JSON that `read` reads."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, file: str) -> Description | None:
        """Description of a token file; None if there is none.

        Raises:
            ValueError: there is one that cannot be read.
        """
        path = cls.path_of(file)
        if not path.is_file():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"data.paths: {path} does not describe {file} ({error}); remove it or write it anew"
            ) from None

    def tokenizer_path(self, file: str) -> str | None:
        """The tokenizer, a tokenizer.json beside the description as an absolute path."""
        beside = Path(file).parent / (self.tokenizer or "")
        return str(beside.absolute()) if beside.is_file() else self.tokenizer


def token_paths(data: DataConfig) -> list[str]:
    """Token files of data.paths: a .idx or a prefix, as Megatron's tools take, stands for its .bin.

    Raises:
        ValueError: one is not there, or data.token_dtype is not a type of token files.
    """
    if data.token_dtype not in RAW_DTYPES:
        raise ValueError(f"data.token_dtype={data.token_dtype}: one of {', '.join(RAW_DTYPES)} would fit")
    named = [path + ".bin" if _is_prefix(path) else path for path in data.paths]
    files = []
    for path in expand_paths(named, wanted="token files"):
        file = path.removesuffix(".idx") + ".bin" if path.endswith(".idx") else path
        if not os.path.isfile(file):
            raise ValueError(f"data.paths: {path} has no {os.path.basename(file)} beside it")
        if file.endswith(".json"):
            raise ValueError(f"data.paths: {file} is not a token file; a glob as in *.bin would fit")
        files.append(file)
    return list(dict.fromkeys(files))


def identity(paths: list[str], token_dtype: str) -> dict[str, Any]:
    """What a cache entry about the files depends on: their sizes and times, and those of what lies beside them."""
    beside = [file for path in paths for file in (_index_of(path), Description.path_of(path)) if file.is_file()]
    return {"tokens": [file_identity(str(file)) for file in [*paths, *beside]], "dtype": token_dtype}


def describe(paths: list[str], token_dtype: str, advance: Callable[[float, float], None]) -> PreparedData:
    """Check and fingerprint token files.

    Args:
        paths: of `token_paths`.
        token_dtype: type of raw files.
        advance: told (bytes done, bytes in all).

    Raises:
        ValueError: a file is empty, is not of its type, or is not what its description says.
    """
    files = [_token_file(path, token_dtype) for path in paths]
    total = sum(os.path.getsize(path) for path in paths)
    done = 0
    known: list[Description | None] = []
    found: list[Description] = []
    for file in files:
        description = Description.read(file.path)
        known.append(description)
        found.append(_check(file, description))
        done += os.path.getsize(file.path)
        advance(done, total)
    first = known[0]
    alike = first is not None and all(
        other and (other.vocab_size, other.end_of_text) == (first.vocab_size, first.end_of_text) for other in known
    )
    if all(known) and not alike:
        raise ValueError("data.paths: the files were written with different tokenizers, say their descriptions (.json)")
    return PreparedData(
        source="tokens",
        files=tuple(files),
        tokenizer=first.tokenizer_path(files[0].path) if first and alike else None,
        vocab_size=max(item.vocab_size for item in found),
        end_of_text=first.end_of_text if first and alike else None,
        total_tokens=sum(file.tokens for file in files),
        fingerprint=digest({"files": [[item.sha256, item.dtype] for item in found]}),
    )


def _token_file(path: str, token_dtype: str) -> TokenFile:
    """Type and length of a file, which must agree with its size."""
    size = os.path.getsize(path)
    index = _index_of(path)
    if index.is_file():
        from trainer.data.megatron import read_index

        dtype, tokens = read_index(index)
        if size != tokens * ITEM_BYTES[dtype]:
            raise ValueError(f"data.paths: {path} has {size} bytes, its index says {tokens} tokens of {dtype}")
    else:
        dtype, tokens = token_dtype, size // ITEM_BYTES[token_dtype]
        if size % ITEM_BYTES[dtype]:
            raise ValueError(f"data.token_dtype={dtype}: {path} has {size} bytes, which is no whole number of them")
        with open(path, "rb") as stream:
            if stream.read(6) == b"\x93NUMPY":
                raise ValueError(f"data.paths: {path} is a .npy file; write its array with tofile()")
    if not tokens:
        raise ValueError(f"data.paths: {path} holds no tokens")
    return TokenFile(path, dtype, tokens)


def _check(file: TokenFile, description: Description | None) -> Description:
    """A file's description, by reading the file unless one that is as new lies beside it."""
    if description is None:
        return _scan(file)
    if description.dtype != file.dtype and not _index_of(file.path).is_file():
        raise ValueError(f"data.token_dtype={file.dtype}: {file.path} was written as {description.dtype}")
    if description.tokens != file.tokens:
        raise ValueError(f"data.paths: {file.path} has {file.tokens} tokens, its description {description.tokens}")
    path = Description.path_of(file.path)
    older = os.stat(path).st_mtime_ns < os.stat(file.path).st_mtime_ns
    if older and _scan(file).sha256 != description.sha256:
        raise ValueError(f"data.paths: {file.path} is not what {path} describes; remove it or write it anew")
    return description


def _scan(file: TokenFile) -> Description:
    """Read a file through."""
    import numpy as np

    sha256 = hashlib.sha256()
    dtype = np.dtype(file.dtype).newbyteorder("<")
    largest = 0
    with open(file.path, "rb") as stream:
        while chunk := stream.read(_SCAN_BYTES):
            sha256.update(chunk)
            ids = np.frombuffer(chunk, dtype=dtype)
            largest = max(largest, int(ids.max()))
            if int(ids.min()) < 0:
                raise ValueError(f"data.paths: {file.path} holds negative ids")
    return Description(file.tokens, file.dtype, largest + 1, None, sha256.hexdigest(), None)


def _index_of(path: str) -> Path:
    """Where Megatron's index of X.bin lies: X.idx."""
    return Path(path).with_suffix(".idx")


def _is_prefix(path: str) -> bool:
    expanded = os.path.expanduser(path)
    return not os.path.exists(expanded) and os.path.isfile(expanded + ".bin")
