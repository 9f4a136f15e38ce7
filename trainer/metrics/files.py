"""Files of a run: JSON lines that outlive a full disk, and a JSON file that is whole or absent."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


def plain(value: Any) -> Any:
    """`value` with numbers that JSON does not know (NaN, infinities) as null, tuples as lists, keys as strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    return value


class JsonLines:
    """Appends objects to a file, one a line and flushed at once.

    A disk that fails costs lines, not the run: one warning at the first, one when it works again.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._file: TextIO | None = None
        self._lost = 0

    def append(self, entry: dict[str, Any]) -> None:
        """Write one object."""
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", encoding="utf-8")
            self._file.write(json.dumps(plain(entry)) + "\n")
            self._file.flush()
        except OSError as error:
            self._drop()
            if not self._lost:
                self._warn(f"{self._path} cannot be written ({error.strerror}); the run goes on without it")
            self._lost += 1
            return
        if self._lost:
            self._warn(f"{self._path} can be written again; {self._lost} lines are missing")
            self._lost = 0

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        self._drop()

    def _drop(self) -> None:
        """Let go of the file; what its buffer still held is lost with the disk that refuses it."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            file.close()


def write_json(path: Path, entry: dict[str, Any]) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never a part.

    Raises:
        OSError: it cannot be written; an existing file is unharmed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(plain(entry), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
