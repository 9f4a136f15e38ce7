"""Cache entries that are whole or not there.

An entry is a folder named by its key. It is built beside its place under a lock, its files are synced, and a rename
makes it visible; whoever waited for the lock finds it. A killed build leaves a `.building-*` folder that nobody reads
and that the next build of the same key removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def cache_root(cache_dir: str | None) -> Path:
    """Folder of the cache: data.cache_dir, or spare-trainer in the user's cache.

    Raises:
        ValueError: it cannot be made.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    root = Path(cache_dir).expanduser().absolute() if cache_dir else Path(home, "spare-trainer")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"data.cache_dir={root} cannot be made: {error.strerror}") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise ValueError(f"data.cache_dir={root} is not writable; name a folder that is")
    return root


def digest(identity: dict[str, Any]) -> str:
    """sha256 (hex) of JSON-able values."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def entry(root: Path, name: str, load: Callable[[Path], T | None], build: Callable[[Path], None]) -> T:
    """What `load` makes of entry `name`, which is built first if need be.

    Args:
        root: folder of the cache.
        name: of the entry; also the key of the lock.
        load: reads the folder of an entry; None where it is missing or damaged.
        build: fills an empty folder; whatever it raises leaves no entry.
    """
    folder = root / name
    found = load(folder)
    if found is not None:
        return found
    with _locked(root / f"{name}.lock") as alone:
        found = load(folder)
        if found is not None:
            return found
        if alone:
            for leftover in root.glob(f".building-{name}-*"):
                shutil.rmtree(leftover, ignore_errors=True)
        building = root / f".building-{name}-{uuid.uuid4().hex}"
        building.mkdir()
        try:
            build(building)
            _publish(building, folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        found = load(folder)
        assert found is not None, f"cache entry {folder} cannot be read back"
        return found


def write_synced(path: Path, content: str) -> None:
    """Write a text file and have it on disk when this returns."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(building: Path, folder: Path) -> None:
    """Rename a built entry into place; a damaged one that is there is moved away first."""
    sync_folder(building)
    if folder.exists():
        damaged = folder.with_name(f".building-{folder.name}-{uuid.uuid4().hex}")
        os.rename(folder, damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    os.rename(building, folder)
    sync_folder(folder.parent)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold an exclusive lock; False where the file system has none (the rename alone then keeps entries whole)."""
    with open(path, "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True
