"""What preparation hands to the workers: where the tokens lie, and what they are.

Plain values only, so that it travels as JSON from the launcher to any worker and into a checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

ITEM_BYTES = {"uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}
"""Bytes per id of each type of token file."""


@dataclass(frozen=True)
class TokenFile:
    """One memory-mapped file of token ids and nothing else."""

    path: str
    """Absolute path."""
    dtype: str
    """NumPy name of the (little-endian) integer type."""
    tokens: int
    """Ids in the file."""


@dataclass(frozen=True)
class PreparedData:
    """A tokenised corpus."""

    source: str
    """data.source that it came from."""
    files: tuple[TokenFile, ...]
    """Token files in their order; a block never spans two of them."""
    tokenizer: str | None
    """tokenizer.json, or the folder or name of a transformers tokenizer; None for bytes and for token files."""
    vocab_size: int
    """Every id is below it; model.vocab_size must be at least as large."""
    end_of_text: int | None
    """Id that follows each document; None where a token file does not say."""
    total_tokens: int
    """Ids in all files."""
    fingerprint: str
    """sha256 (hex) over the ids and the tokenizer: equal corpora have it equal on every machine."""

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PreparedData:
        """Read what `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PreparedData:
        """Build from `dataclasses.asdict` of another, also after a trip through JSON."""
        return cls(**{**values, "files": tuple(TokenFile(**file) for file in values["files"])})
