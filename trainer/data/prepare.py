"""From the `data` options to token files, once per corpus: the launcher calls `prepare` before any worker starts.

Ids go to a cache entry whose key is what identifies corpus and tokenizer (`Source.identity`, `tokenizer.resolve`), so
that a changed corpus gets a new entry and a second start only looks at the files' sizes and times. Heavy libraries are
imported where an entry is built, never to find one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.data import cache, token_files, tokenizer
from trainer.data.hf import HubSource
from trainer.data.prepared import ITEM_BYTES, PreparedData, TokenFile
from trainer.data.sources import Part, Source, StdlibSource, TextSource

if TYPE_CHECKING:
    from trainer.config import DataConfig
    from trainer.data.encoders import Encoder

Advance = Callable[[float, float], None]
"""Told (done, total)."""
SOURCES = ("python_stdlib", "text", "hf", "tokens")
_FORMAT = 1
"""Raised when what an entry holds changes, which makes older entries invisible."""
_PART_BYTES = 1 << 20
_BPE_SAMPLE_BYTES = 4 << 20
"""Text that a BPE is trained on: pieces spread evenly over the corpus."""
_MANIFEST = "manifest.json"


def prepare(data: DataConfig, *, progress: bool) -> PreparedData:
    """Tokenise the corpus that `data` names, or find it in the cache.

    Two launchers may call this at once: one builds, the other waits and reads. An interrupted call leaves nothing that
    is taken for whole.

    Args:
        data: the `data` options.
        progress: draw a progress bar on stderr while an entry is built.

    Raises:
        ValueError: an option names what is not there or does not fit; the message is one line.
    """
    if data.source not in SOURCES:
        raise ValueError(f"data.source={data.source} is unknown; one of {', '.join(SOURCES)} would fit")
    root = cache.cache_root(data.cache_dir)
    if data.source == "tokens":
        paths = token_files.token_paths(data)
        identify = partial(token_files.identity, paths, data.token_dtype)
        build = partial(_build_token_files, data, paths)
    else:
        source = open_source(data)
        identify = partial(_identify_text, data, source)
        build = partial(_build_text, data, source)
    identity = identify()

    def build_unchanged(folder: Path) -> None:
        with progress_bar(progress, "Preparing data") as advance:
            cache.write_synced(folder / _MANIFEST, build(folder, advance).to_json())
        if identify() != identity:
            raise ValueError("data: the corpus changed while it was read; start again when it is still")

    name = f"{data.source}-{cache.digest({'format': _FORMAT, **identity})[:24]}"
    return cache.entry(root, name, _load, build_unchanged)


def open_source(data: DataConfig) -> Source:
    """The corpus of text that `data` names.

    Raises:
        ValueError: it is not there.
    """
    if data.source == "text":
        return TextSource(data.paths)
    if data.source == "hf":
        return HubSource(data)
    assert data.source == "python_stdlib"
    return StdlibSource()


def make_encoder(data: DataConfig, source: Source, parts: list[Part], path: Path) -> Encoder:
    """Encoder of data.tokenizer; `bpe` is trained on a sample of the parts and written to `path` (tokenizer.json)."""
    from trainer.data import encoders

    if data.tokenizer != "bpe":
        return encoders.load(data.tokenizer)
    step = max(1, sum(part.weight for part in parts) // _BPE_SAMPLE_BYTES)
    pieces = [piece for part in parts for piece in part.pieces][::step]
    sample = (text for piece in pieces for text, _ in source.read(Part((piece,), 0)))
    encoders.train_bpe(sample, data.bpe_vocab_size, path)
    return encoders.load(str(path))


@contextlib.contextmanager
def progress_bar(show: bool, title: str) -> Iterator[Advance]:
    """A bar on stderr; yields what reports (done, total)."""
    if not show:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _identify_text(data: DataConfig, source: Source) -> dict[str, Any]:
    return {**source.identity(), **tokenizer.resolve(data.tokenizer, data.bpe_vocab_size)}


def _build_token_files(data: DataConfig, paths: list[str], folder: Path, advance: Advance) -> PreparedData:
    """Describe token files, which stay where they are."""
    return token_files.describe(paths, data.token_dtype, advance)


def _build_text(data: DataConfig, source: Source, folder: Path, advance: Advance) -> PreparedData:
    """Tokenise a corpus into tokens.bin of a cache entry, with tokenizer.json for a trained BPE."""
    from trainer.data.writer import TokenWriter, dtype_of, encode_part

    parts = source.parts(_PART_BYTES)
    total = sum(part.weight for part in parts)
    if not total:
        raise ValueError(f"data.source={data.source}: the corpus holds no text")
    advance(0, total)
    trained = folder / "tokenizer.json"
    encoder = make_encoder(data, source, parts, trained)
    done = 0
    with TokenWriter(folder / "tokens.bin") as writer:
        for part in parts:
            for ids, _ in encode_part(source, part, encoder):
                writer.append(ids)
            done += part.weight
            advance(done, total)
    own_tokenizer = trained.is_file()
    content = tokenizer.resolve(str(trained) if own_tokenizer else data.tokenizer, data.bpe_vocab_size)["tokenizer"]
    dtype = dtype_of(encoder.vocab_size)
    return PreparedData(
        source=data.source,
        files=(TokenFile("tokens.bin", dtype, writer.tokens),),
        tokenizer=trained.name if own_tokenizer else tokenizer.location(data.tokenizer),
        vocab_size=encoder.vocab_size,
        end_of_text=encoder.end_of_text,
        total_tokens=writer.tokens,
        fingerprint=cache.digest({"tokens": writer.sha256(), "dtype": dtype, "tokenizer": content}),
    )


def _load(folder: Path) -> PreparedData | None:
    """Read a cache entry, whose manifest names its own files relative to the folder; None if missing or damaged."""
    try:
        values: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    for file in values["files"]:
        file["path"] = str(folder / file["path"])
        size = ITEM_BYTES[file["dtype"]] * file["tokens"]
        if not os.path.isfile(file["path"]) or os.path.getsize(file["path"]) != size:
            return None
    own_tokenizer = folder / (values["tokenizer"] or "")
    if own_tokenizer.is_file():
        values["tokenizer"] = str(own_tokenizer)
    return PreparedData.from_dict(values)
