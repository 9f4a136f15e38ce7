"""From the `data` options to token files, once per corpus: the launcher calls `prepare` before any worker starts.

Ids go to a cache entry whose key is what identifies corpus and tokenizer (`Source.identity`, `tokenizer.resolve`), so that a
changed corpus gets a new entry and a second start only looks at the files' sizes and times. Heavy libraries are imported
where an entry is built, never to find one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.data import cache, tokenizer
from trainer.data.prepared import PreparedData, TokenFile
from trainer.data.sources import Part, Source, StdlibSource, TextSource

if TYPE_CHECKING:
    from trainer.config import DataConfig

SOURCES = ("python_stdlib", "text", "hf", "tokens")
_FORMAT = 1
"""Raised when what an entry holds changes, which makes older entries invisible."""
_PART_BYTES = 1 << 20
_BPE_SAMPLE_BYTES = 4 << 20
"""Text that a BPE is trained on: parts spread evenly over the corpus."""
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
    source = open_source(data)
    identity = {"format": _FORMAT, **source.identity(), **tokenizer.resolve(data.tokenizer, data.bpe_vocab_size)}
    name = f"{data.source}-{cache.digest(identity)[:24]}"

    def build(folder: Path) -> None:
        with progress_bar(progress, "Tokenising") as advance:
            _build(data, source, folder, advance)
        if {**identity, **source.identity()} != identity:
            raise ValueError("data: the corpus changed while it was read; start again when it is still")

    return cache.entry(root, name, _load, build)


def open_source(data: DataConfig) -> Source:
    """The corpus of text that `data` names.

    Raises:
        ValueError: it is not there.
    """
    if data.source == "text":
        return TextSource(data.paths)
    return StdlibSource()


def make_encoder(data: DataConfig, source: Source, parts: list[Part], path: Path) -> tokenizer.Encoder:
    """Encoder of data.tokenizer; `bpe` is trained on a sample of the parts and written to `path` (tokenizer.json)."""
    if data.tokenizer != "bpe":
        return tokenizer.load(data.tokenizer)
    total = sum(part.weight for part in parts)
    step = max(1, total // _BPE_SAMPLE_BYTES)
    sample = (text for part in parts[::step] for text, _ in source.read(part))
    tokenizer.train_bpe(sample, data.bpe_vocab_size, path)
    return tokenizer.load(str(path))


@contextlib.contextmanager
def progress_bar(show: bool, title: str) -> Iterator[Callable[[float, float], None]]:
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


def _build(data: DataConfig, source: Source, folder: Path, advance: Callable[[float, float], None]) -> None:
    """Fill a cache entry: tokens.bin, tokenizer.json for a trained BPE, and the manifest."""
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
    identity = {
        "tokens": writer.sha256(),
        "dtype": dtype_of(encoder.vocab_size),
        "vocab_size": encoder.vocab_size,
        "tokenizer": hashlib.sha256(trained.read_bytes()).hexdigest() if trained.exists() else data.tokenizer,
    }
    prepared = PreparedData(
        source=data.source,
        files=(TokenFile("tokens.bin", dtype_of(encoder.vocab_size), writer.tokens),),
        tokenizer=trained.name if trained.exists() else _tokenizer_name(data.tokenizer),
        vocab_size=encoder.vocab_size,
        end_of_text=encoder.end_of_text,
        total_tokens=writer.tokens,
        fingerprint=cache.digest(identity),
    )
    cache.write_synced(folder / _MANIFEST, prepared.to_json())


def _tokenizer_name(name: str) -> str | None:
    """Absolute path of a tokenizer on this machine, its name on the hub, None for bytes."""
    if name == "bytes":
        return None
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _load(folder: Path) -> PreparedData | None:
    """Read a cache entry, whose manifest names its own files relative to the folder; None if missing or damaged."""
    try:
        values: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    for file in values["files"]:
        file["path"] = str(folder / file["path"])
        size = {"uint16": 2, "uint32": 4}.get(file["dtype"], 0) * file["tokens"]
        if size and (not Path(file["path"]).is_file() or Path(file["path"]).stat().st_size != size):
            return None
    own = folder / (values["tokenizer"] or "")
    if own.is_file():
        values["tokenizer"] = str(own)
    return PreparedData.from_dict(values)
