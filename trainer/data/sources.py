"""Corpora as documents: plain text files, and the interpreter's own library.

A source lists its text as parts of bounded size, each of which any process can read alone and again, so that one code
tokenises in the launcher with batches and in many processes with resumable parts. `identity` says what the corpus is
(for the cache key) at the cost of a `stat` per file.
"""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PIECE_BYTES = 1 << 20
"""A document above this is encoded in pieces, cut at line ends."""
STDLIB_LIMIT_BYTES = 8 << 20
"""Bound on data=python_stdlib, so that the first preparation stays short."""
_STDLIB_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings"}


@dataclass(frozen=True)
class Piece:
    """A run of a document, or of documents."""

    name: str
    """File, topic, or nothing where the source needs none."""
    start: int
    """First byte or row."""
    stop: int
    """Byte or row behind the last."""
    ends_document: bool = True
    """The document ends with this piece."""


@dataclass(frozen=True)
class Part:
    """Pieces that are tokenised together."""

    pieces: tuple[Piece, ...]
    weight: int
    """Its share of the work: bytes or rows."""


class Source(Protocol):
    """A corpus; picklable."""

    def identity(self) -> dict[str, Any]:
        """JSON-able values that change when the corpus does."""
        ...

    def parts(self, part_bytes: int) -> list[Part]:
        """All of the corpus in order, in parts of about `part_bytes` of text."""
        ...

    def read(self, part: Part) -> Iterator[tuple[str, bool]]:
        """Texts of a part, each with whether it ends its document."""
        ...


class TextSource:
    """Plain UTF-8 files; each is a document."""

    def __init__(self, paths: list[str]) -> None:
        """Raises ValueError when paths is empty or one of its files or globs is not there."""
        self._files = expand_paths(paths, wanted="text files")

    def identity(self) -> dict[str, Any]:
        """Path, size and time of change of each file."""
        return {"text": [file_identity(file) for file in self._files]}

    def parts(self, part_bytes: int) -> list[Part]:
        """Files in the order of data.paths, globs sorted."""
        return group_pieces((piece for file in self._files for piece in cut_file(file)), part_bytes)

    def read(self, part: Part) -> Iterator[tuple[str, bool]]:
        """Texts of a part.

        Raises:
            ValueError: a file is not UTF-8.
        """
        for piece in part.pieces:
            content = read_piece(piece)
            try:
                text = content.decode("utf-8-sig" if piece.start == 0 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"data.paths: {piece.name} is not UTF-8 text (byte {content[error.start]:#04x} "
                    f"at {piece.start + error.start})"
                ) from None
            yield text, piece.ends_document


class StdlibSource:
    """The source of the interpreter's own library and the topics of its help: real text on every machine.

    Left out: tests, character tables (encodings), and what differs between machines (build settings, site-packages).
    """

    def __init__(self) -> None:
        """Raises ValueError when this interpreter has no library source."""
        root = Path(sysconfig.get_paths()["stdlib"])
        self._topics = root / "pydoc_data" / "topics.py"
        self._files = []
        total = 0
        for file in self._library(root):
            total += file.stat().st_size
            if total > STDLIB_LIMIT_BYTES:
                break
            self._files.append(str(file))
        if not self._files:
            raise ValueError(f"data.source=python_stdlib: no library source in {root}; use data=text with data.paths")

    def identity(self) -> dict[str, Any]:
        """Version of Python, and path, size and time of change of each file."""
        topics = [file_identity(str(self._topics))] if self._topics.is_file() else []
        return {"python": sys.version, "stdlib": topics + [file_identity(file) for file in self._files]}

    def parts(self, part_bytes: int) -> list[Part]:
        """The topics, then the files by their paths."""
        topics = (Piece(name, -1, len(text)) for name, text in sorted(self._load_topics().items()))
        files = (piece for file in self._files for piece in cut_file(file))
        return group_pieces((piece for pieces in (topics, files) for piece in pieces), part_bytes)

    def read(self, part: Part) -> Iterator[tuple[str, bool]]:
        """Texts of a part; the few bytes of the library that are not UTF-8 are replaced."""
        for piece in part.pieces:
            if piece.start < 0:
                yield self._load_topics()[piece.name], True
            else:
                yield read_piece(piece).decode("utf-8", errors="replace"), piece.ends_document

    @staticmethod
    def _library(root: Path) -> Iterator[Path]:
        """Library files in a fixed order."""
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in _STDLIB_SKIPPED)
            for name in sorted(files):
                if name.endswith(".py") and not name.startswith("_sysconfigdata") and name != "topics.py":
                    yield Path(folder, name)

    def _load_topics(self) -> dict[str, str]:
        if not self._topics.is_file():
            return {}
        from pydoc_data.topics import topics

        return topics


def expand_paths(paths: list[str], *, wanted: str) -> list[str]:
    """Absolute files of data.paths: `~` and globs expanded, each glob sorted, no file twice.

    Raises:
        ValueError: nothing is named, a file is missing, is a folder, or a glob matches nothing.
    """
    if not paths:
        raise ValueError(f"data.paths is empty; name {wanted} or globs, as in data.paths='[corpus/*.txt]'")
    found: list[str] = []
    for path in paths:
        pattern = os.path.expanduser(path)
        if os.path.exists(pattern):
            if os.path.isdir(pattern):
                raise ValueError(
                    f"data.paths: {path} is a folder; a glob as in {path.rstrip('/')}/*.txt names its files"
                )
            matches = [pattern]
        elif glob.has_magic(pattern):
            matches = sorted(file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file))
            if not matches:
                raise ValueError(f"data.paths: no file matches the glob {path}")
        else:
            raise ValueError(f"data.paths: {path} does not exist (looked in {os.getcwd()})")
        found += [os.path.abspath(match) for match in matches]
    return list(dict.fromkeys(found))


def file_identity(file: str) -> list[str | int]:
    """Path, size in bytes and time of change in nanoseconds."""
    status = os.stat(file)
    return [file, status.st_size, status.st_mtime_ns]


def cut_file(file: str) -> Iterator[Piece]:
    """Pieces of a file of about PIECE_BYTES, cut behind line ends; nothing for an empty file."""
    size = os.path.getsize(file)
    start = 0
    with open(file, "rb") as stream:
        while start < size:
            stop = min(size, start + PIECE_BYTES)
            if stop < size:
                stream.seek(stop)
                stream.readline()
                stop = min(size, stream.tell())
            yield Piece(file, start, stop, ends_document=stop == size)
            start = stop


def read_piece(piece: Piece) -> bytes:
    """Bytes of a piece of a file."""
    with open(piece.name, "rb") as stream:
        stream.seek(piece.start)
        return stream.read(piece.stop - piece.start)


def group_pieces(pieces: Iterator[Piece], part_bytes: int) -> list[Part]:
    """Neighbouring pieces as parts of about `part_bytes`."""
    parts: list[Part] = []
    group: list[Piece] = []
    weight = 0
    for piece in pieces:
        group.append(piece)
        weight += piece.stop - max(0, piece.start)
        if weight >= part_bytes:
            parts.append(Part(tuple(group), weight))
            group, weight = [], 0
    return [*parts, Part(tuple(group), weight)] if group else parts
