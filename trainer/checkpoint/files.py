"""Files that are whole or absent: durable writes, checksums and what a part's record says. No torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

READ_BYTES = 1 << 20
TEMPORARY = ".temporary-"
"""Prefix of what a death may leave behind and a start removes."""


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read in blocks that release the interpreter lock."""
    digest = hashlib.sha256()
    block = bytearray(READ_BYTES)
    view = memoryview(block)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(view[:count])
    return digest.hexdigest()


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """{name: {"bytes", "sha256"}} of the named files below `folder`, several at a time."""
    ordered = sorted(names)
    workers = max(1, min(8, os.cpu_count() or 1, len(ordered)))
    with ThreadPoolExecutor(workers) as pool:
        digests = list(pool.map(lambda name: sha256_of_file(folder / name), ordered))
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": digest}
        for name, digest in zip(ordered, digests, strict=True)
    }


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a rename survives a power cut only after this."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str, scratch: Path) -> None:
    """Write `text` to `path` so that a reader sees the old file or the new one, whole, at any death.

    `scratch` is the folder (same file system) of the temporary file: never the folder of a checkpoint being written,
    since another group may rename that one at this moment with a half-written stranger inside.

    Raises:
        OSError: the disk is full, read-only or gone; nothing is left at `path` that was not there before.
    """
    temporary = scratch / f"{TEMPORARY}{path.name}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def sealed(body: dict[str, Any]) -> str:
    """JSON text of `body` with a checksum of itself, so that a flipped bit in it is noticed too."""
    canonical = json.dumps(body, sort_keys=True, allow_nan=True)
    return json.dumps(
        {"body": body, "sha256": hashlib.sha256(canonical.encode()).hexdigest()}, sort_keys=True, indent=1
    )


def unsealed(text: str) -> dict[str, Any]:
    """The body of a text that `sealed` wrote.

    Raises:
        ValueError: not JSON, or its checksum differs.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("body"), dict):
        raise ValueError("it is not a sealed JSON document")
    canonical = json.dumps(document["body"], sort_keys=True, allow_nan=True)
    if hashlib.sha256(canonical.encode()).hexdigest() != document.get("sha256"):
        raise ValueError("its own checksum differs")
    return document["body"]


def remove_folder(folder: Path) -> bool:
    """Remove a folder that no one may see half removed: it is renamed first.

    False: another was quicker, or the disk refuses.
    """
    grave = folder.with_name(f"{TEMPORARY}{folder.name.lstrip('.')}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        os.rename(folder, grave)
    except OSError:
        return False
    remove_path(grave)
    return True


def remove_path(path: Path) -> None:
    """Remove a file or a folder as far as the disk lets."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
