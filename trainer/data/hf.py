"""Data sets of the `datasets` library: hub names, saved data sets, folders and files of JSON lines, Parquet, CSV, text.

The library is imported where rows are read; to find a cache entry a local data set is identified by its files, and one
of the hub by its name, split, subset and revision (name data.revision to pin it).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.data.hub import first_line, hub_reachable
from trainer.data.sources import PIECE_BYTES, Part, Piece, file_identity, group_pieces

if TYPE_CHECKING:
    from trainer.config import DataConfig

_BUILDERS = {
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".arrow": "arrow",
}
_SAVED = ("state.json", "dataset_dict.json")


class HubSource:
    """Rows of one text column; each row is a document, empty rows are skipped."""

    def __init__(self, data: DataConfig) -> None:
        """Raises ValueError when data.name is empty or a local path that does not exist."""
        if not data.name:
            raise ValueError("data.name is empty; data=hf needs the name, folder or file of a data set")
        self._data = data
        self._path = Path(data.name).expanduser()
        self._rows: Any = None
        local = data.name.startswith(("/", ".", "~")) or data.name.count("/") > 1 or self._path.suffix in _BUILDERS
        if not self._path.exists() and local:
            raise ValueError(f"data.name={data.name} does not exist")
        if self._path.is_file() and self._suffix not in _BUILDERS:
            raise ValueError(f"data.name={data.name}: a file must end in one of {', '.join(_BUILDERS)} (also .gz)")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}

    def identity(self) -> dict[str, Any]:
        """Split, column, and the files of a local data set or the name of one of the hub."""
        data = self._data
        if self._path.is_dir():
            files = sorted(str(file.absolute()) for file in self._path.rglob("*") if file.is_file())
        elif self._path.is_file():
            files = [str(self._path.absolute())]
        else:
            files = []
        what: Any = [file_identity(file) for file in files] if files else [data.name, data.revision]
        return {"hf": what, "split": data.split, "column": data.column, "subset": data.subset}

    def parts(self, part_bytes: int) -> list[Part]:
        """Rows in order; a part's weight is its rows' share of the data set's bytes.

        Raises:
            ValueError: the data set, split or column is not there.
        """
        rows = self._dataset()
        if not len(rows):
            return []
        mean_bytes = max(1, rows.data.nbytes // len(rows))
        step = max(1, min(part_bytes, PIECE_BYTES) // mean_bytes)
        pieces = (Piece("", start, min(start + step, len(rows))) for start in range(0, len(rows), step))
        groups = group_pieces(pieces, max(1, part_bytes // mean_bytes))
        return [Part(part.pieces, part.weight * mean_bytes) for part in groups]

    def read(self, part: Part) -> Iterator[tuple[str, bool]]:
        """Texts of a part."""
        rows = self._dataset()
        for piece in part.pieces:
            for text in rows[piece.start : piece.stop][self._data.column]:
                if text:
                    yield text, True

    @property
    def _suffix(self) -> str:
        """Ending of a file, less that of its compression."""
        return Path(self._path.stem).suffix if self._path.suffix == ".gz" else self._path.suffix

    def _dataset(self) -> Any:
        """The data set's text column, memory-mapped."""
        if self._rows is None:
            rows = self._open()
            column = self._data.column
            if column not in rows.column_names:
                raise ValueError(
                    f"data.column={column} is not in {self._data.name}; it has {', '.join(rows.column_names)}"
                )
            kind = getattr(rows.features[column], "dtype", None)
            if kind not in ("string", "large_string", "string_view"):
                raise ValueError(f"data.column={column} of {self._data.name} holds {kind or 'no scalar'}, not text")
            self._rows = rows.select_columns([column])
        return self._rows

    def _open(self) -> Any:
        """Load the split; every error of the library that a user can cause becomes a ValueError."""
        import datasets

        data = self._data
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        try:
            if self._path.is_dir() and any((self._path / name).is_file() for name in _SAVED):
                return self._saved(datasets.load_from_disk(str(self._path)))
            if self._path.is_file():
                return datasets.load_dataset(_BUILDERS[self._suffix], data_files=str(self._path), split=data.split)
            name = str(self._path) if self._path.is_dir() else data.name
            with _offline_if(not self._path.is_dir() and not hub_reachable()):
                return datasets.load_dataset(name, name=data.subset, split=data.split, revision=data.revision)
        except datasets.exceptions.DatasetsError as error:
            reason = first_line(error)
            cause = error.__cause__ or error.__context__
            if cause is not None:
                reason += f" ({first_line(cause)})"
        except (OSError, ValueError, KeyError) as error:
            reason = first_line(error)
        raise ValueError(f"data.name={data.name} data.split={data.split}: {reason}")

    def _saved(self, loaded: Any) -> Any:
        """The split of what load_from_disk gave; a data set that was saved alone has the split of its name only."""
        names = list(loaded) if isinstance(loaded, dict) else [str(loaded.split or "train")]
        if self._data.split not in names:
            raise ValueError(f"no such split; the folder holds {', '.join(names)}")
        return loaded[self._data.split] if isinstance(loaded, dict) else loaded


@contextlib.contextmanager
def _offline_if(offline: bool) -> Iterator[None]:
    """Let `datasets` use its local copies only, rather than retry a hub that is not there for half a minute."""
    import datasets.config
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    if offline:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
