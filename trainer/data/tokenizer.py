"""Which tokenizer data.tokenizer names, checked and identified without importing a heavy library.

So a warm cache stays cheap; `encoders` does the work.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "added_tokens.json", "*.model")
_SMALLEST_BPE = 257  # 256 bytes and end of text


def resolve(tokenizer: str, bpe_vocab_size: int) -> dict[str, Any]:
    """Check data.tokenizer and say what identifies it, as JSON-able values for a cache key.

    A folder or tokenizer.json is identified by its content; a hub name by the name alone.

    Raises:
        ValueError: it cannot exist, or data.bpe_vocab_size does not hold the bytes.
    """
    if tokenizer == "bytes":
        return {"tokenizer": "bytes"}
    version = importlib.metadata.version("tokenizers")
    if tokenizer == "bpe":
        if bpe_vocab_size < _SMALLEST_BPE:
            raise ValueError(
                f"data.bpe_vocab_size={bpe_vocab_size} must be at least {_SMALLEST_BPE} (bytes and end of text)"
            )
        return {"tokenizer": "bpe", "vocab_size": bpe_vocab_size, "tokenizers": version}
    path = Path(tokenizer).expanduser()
    if path.is_dir():
        files = sorted({file for pattern in _TOKENIZER_FILES for file in path.glob(pattern) if file.is_file()})
        if not files:
            raise ValueError(f"data.tokenizer={tokenizer}: the folder holds no tokenizer files (tokenizer.json ...)")
        hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        return {"tokenizer": hashes, "tokenizers": version}
    if path.is_file():
        return {"tokenizer": hashlib.sha256(path.read_bytes()).hexdigest(), "tokenizers": version}
    if (
        tokenizer.startswith(("/", ".", "~"))
        or tokenizer.count("/") > 1
        or tokenizer.endswith(".json")
        or not tokenizer
    ):
        raise ValueError(unknown_tokenizer(tokenizer, "no such folder or file"))
    return {"tokenizer": f"hub:{tokenizer}", "tokenizers": version}


def location(tokenizer: str) -> str | None:
    """Absolute path of a tokenizer on this machine, its name on the hub, None for bytes."""
    if tokenizer == "bytes":
        return None
    path = Path(tokenizer).expanduser()
    return str(path.absolute()) if path.exists() else tokenizer


def unknown_tokenizer(tokenizer: str, reason: str) -> str:
    """Message of a ValueError about data.tokenizer."""
    return (
        f"data.tokenizer={tokenizer}: {reason}; bytes, bpe, or a folder or name of a transformers tokenizer would fit"
    )
