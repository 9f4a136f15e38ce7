"""Text to token ids: bytes, a byte-level BPE trained on the corpus, or a transformers tokenizer.

Text that spells a special token is encoded as ordinary text: only the end of a document gives the end-of-text id.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainer.data.hub import first_line, hub_reachable
from trainer.data.tokenizer import unknown_tokenizer

END_OF_TEXT = "<|endoftext|>"


class Encoder(Protocol):
    """Encodes documents."""

    vocab_size: int
    end_of_text: int

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text, integer [tokens], no special tokens added."""
        ...


class ByteEncoder:
    """UTF-8 bytes as ids 0 to 255; 256 ends a text."""

    vocab_size = 257
    end_of_text = 256

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text, uint8 [bytes]."""
        return [np.frombuffer(text.encode("utf-8", errors="replace"), dtype=np.uint8) for text in texts]


class FastEncoder:
    """A `tokenizers.Tokenizer`, which encodes a batch on all cores unless TOKENIZERS_PARALLELISM=false."""

    def __init__(self, tokenizer: Any, end_of_text: int, vocab_size: int | None = None) -> None:
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.end_of_text = end_of_text
        self.vocab_size = vocab_size or tokenizer.get_vocab_size()

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text, int64 [tokens]."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]


class SlowEncoder:
    """A transformers tokenizer without a fast form."""

    def __init__(self, tokenizer: Any, end_of_text: int) -> None:
        self._tokenizer = tokenizer
        self.end_of_text = end_of_text
        self.vocab_size = len(tokenizer)

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text, int64 [tokens]."""
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return [np.array(self._tokenizer(text, **options)["input_ids"], dtype=np.int64) for text in texts]


def load(tokenizer: str) -> Encoder:
    """Encoder of any data.tokenizer but `bpe`, which is first trained and then loaded from its tokenizer.json.

    Raises:
        ValueError: it is not a tokenizer, cannot be reached, or has no end-of-text token.
    """
    assert tokenizer != "bpe"
    if tokenizer == "bytes":
        return ByteEncoder()
    path = Path(tokenizer).expanduser()
    return _load_file(path) if path.is_file() else _load_transformers(str(path) if path.is_dir() else tokenizer)


def train_bpe(texts: Iterable[str], vocab_size: int, path: Path) -> None:
    """Train a byte-level BPE (the splitting of GPT-2) on texts and write it to `path` as tokenizer.json.

    Deterministic for the same texts and version of tokenizers. A short text may give a smaller vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer)
    model.save(str(path))


def _load_file(path: Path) -> Encoder:
    """A tokenizer.json; its end of text is the token of that name."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(unknown_tokenizer(str(path), f"not a tokenizer.json ({error})")) from None
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    if end_of_text is None:
        raise ValueError(
            f"data.tokenizer={path} has no token {END_OF_TEXT} to end documents; "
            "give the folder of a transformers tokenizer, whose eos_token is used"
        )
    return FastEncoder(tokenizer, end_of_text)


def _load_transformers(name: str) -> Encoder:
    """A transformers tokenizer from a folder, the local hub cache, or the hub."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        if os.path.isdir(name):
            raise ValueError(unknown_tokenizer(name, first_line(error))) from None
        if not hub_reachable():
            raise ValueError(
                unknown_tokenizer(name, "not a folder, not in the local hub cache, and the hub is not reachable")
            ) from None
        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError) as hub_error:
            raise ValueError(unknown_tokenizer(name, first_line(hub_error))) from None
    if tokenizer.eos_token_id is None:
        raise ValueError(f"data.tokenizer={name} has no end-of-text token (eos_token) to end documents")
    if tokenizer.is_fast:
        return FastEncoder(tokenizer.backend_tokenizer, tokenizer.eos_token_id, len(tokenizer))
    return SlowEncoder(tokenizer, tokenizer.eos_token_id)
