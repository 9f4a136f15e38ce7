"""What a run starts from: nothing, the newest verified checkpoint, or the one that was asked for. No torch.

Asked once at the start of the launcher and again at every global restart, always outside of the controller's thread:
verifying reads every byte of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.checkpoint.catalog import Catalog
from trainer.config import Config

MUST_AGREE = ("seed", "train.global_batch", "train.sequence_length", "data.validation_fraction", "data.shuffle")
"""Options that name which tokens a step trains on: with others the data cursor of a checkpoint means other data."""


class StartingPoint:
    """Where workers of each epoch start.

    Args:
        tell: told, one line each, which checkpoints were rejected and why.
        data_fingerprint: of the prepared corpus.
    """

    def __init__(self, config: Config, catalog: Catalog, tell: Callable[[str], None], data_fingerprint: str) -> None:
        self._config, self._catalog, self._tell = config, catalog, tell
        self._data_fingerprint = data_fingerprint
        self._first: tuple[Path, dict[str, Any]] | None = None

    def first(self) -> dict[str, Any]:
        """Where the run starts, by `checkpoint.resume`.

        Raises:
            ValueError: the checkpoint is of another run or damaged, or the folder holds another run's checkpoints.
        """
        for _, message in self._catalog.remove_stale():
            self._tell(message)
        how = self._config.checkpoint.resume
        if how == "auto":
            self._first = self._newest()
        elif how != "never":
            self._first = Path(how), self._catalog.verify(Path(how))
        if how != "auto":
            self._refuse_later_ones(how)
        if self._first is not None:
            self._check(*self._first)
        return self._message(self._first)

    def again(self) -> dict[str, Any]:
        """Where a global restart goes on: the newest verified checkpoint of this run, else its first start."""
        return self._message(self._newest() or self._first)

    def _newest(self) -> tuple[Path, dict[str, Any]] | None:
        found = self._catalog.newest_verified()
        for message in self._catalog.messages:
            self._tell(message)
        return found

    def _refuse_later_ones(self, how: str) -> None:
        """Another run's later checkpoints would outlive this run's, and a global restart would take them up."""
        start = self._first[1]["step"] if self._first else -1
        later = [path for path in self._catalog.entries() if self._catalog.step_of(path) > start]
        if later:
            raise ValueError(
                f"checkpoint.resume={how}: {self._catalog.folder} already holds {later[0].name}; "
                "use another run_dir or checkpoint.dir, or checkpoint.resume=auto to go on from there"
            )

    def _check(self, path: Path, manifest: dict[str, Any]) -> None:
        extra = manifest.get("extra") or {}
        then = extra.get("config")
        if then is None or manifest["step"] == 0:  # no data seen yet
            return
        for option in MUST_AGREE:
            group, _, name = option.rpartition(".")
            old = then[group][name] if group else then[name]
            now = getattr(getattr(self._config, group), name) if group else getattr(self._config, name)
            if old != now:
                raise ValueError(
                    f"{option}={now}: the checkpoint {path} was made with {option}={old}, other values would skip or "
                    f"repeat data; keep {option}={old}, or start anew with another run_dir"
                )
        if extra.get("data_fingerprint") not in (None, self._data_fingerprint):
            raise ValueError(
                f"data: the checkpoint {path} was made with another corpus or tokenizer; restore it, or start anew "
                "with another run_dir"
            )

    @staticmethod
    def _message(found: tuple[Path, dict[str, Any]] | None) -> dict[str, Any]:
        if found is None:
            return {"checkpoint": None, "parts": 0, "step": 0}
        path, manifest = found
        return {"checkpoint": str(path), "parts": manifest["parts"], "step": manifest["step"]}
