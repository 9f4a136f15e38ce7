"""The folder of checkpoints: which are whole, which is newest, how one appears. No torch: the controller uses it.

A checkpoint is written into a hidden temporary folder, one sub-folder and one record per part. Whoever finds all
records complete writes the manifest and renames the folder into place. The rename is the moment it exists: before it
nothing is visible, after it everything is there. `latest` is a convenience for people and tools, never trusted here.

    step-00000040/manifest.json, part-0/__0_0.distcp, part-0/.metadata, part-1/...
    latest                          the name of the newest
    .writing-00000045-g3/part-0/... what is being written, in generation 3
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from trainer.checkpoint.files import (
    TEMPORARY,
    describe_files,
    fsync_folder,
    remove_folder,
    remove_path,
    sealed,
    unsealed,
    write_durably,
)

FORMAT = 1
MANIFEST = "manifest.json"
POINTER = "latest"
_FINISHED = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_WRITING = re.compile(r"\.writing-(\d{8,})-g(\d+)")


class CheckpointRejected(ValueError):
    """A checkpoint that is not what its manifest says; the message says where."""


class Catalog:
    """The checkpoints in one folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.messages: list[str] = []
        """What `newest_verified` last said about checkpoints that it skipped."""
        self._verified: set[str] = set()

    # --- reading -----------------------------------------------------------------------------------------------

    def entries(self) -> list[Path]:
        """Folders that look like checkpoints, newest first (by step, then by attempt); nothing is checked."""
        return [path for _, path in sorted(self._matching(_FINISHED), reverse=True)]

    @staticmethod
    def step_of(path: Path) -> int:
        """Step of a checkpoint by its folder's name; -1 for a folder that is none."""
        match = _FINISHED.fullmatch(path.name)
        return int(match[1]) if match else -1

    def exists(self, step: int) -> bool:
        """Whether a checkpoint of `step` is in place; nothing is checked."""
        return any(key[0] == step for key, _ in self._matching(_FINISHED))

    def newest_verified(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint whose every file has its checksum, with its manifest; None if there is none.

        `messages` then says why newer ones were passed over:
        "checkpoint step 40: part-1/__0_0.distcp checksum differs: skipped".
        """
        self.messages = []
        for path in self.entries():
            try:
                return path, self.verify(path)
            except CheckpointRejected as reason:
                self.messages.append(f"{reason}: skipped")
        return None

    def verify(self, path: Path) -> dict[str, Any]:
        """The manifest of a checkpoint, after every file has been read and compared with it.

        Raises:
            CheckpointRejected: a file is missing, truncated, altered or does not belong to it; or no manifest.
        """
        manifest = self._whole(path)
        label = _label(path)
        try:
            found = describe_files(path, manifest["files"])
        except OSError as error:
            raise CheckpointRejected(f"{label}: cannot be read ({error})") from error
        for name, expected in manifest["files"].items():
            if found[name]["sha256"] != expected["sha256"]:
                raise CheckpointRejected(f"{label}: {name} checksum differs")
        self._verified.add(path.name)
        return manifest

    def _whole(self, path: Path) -> dict[str, Any]:
        """The manifest, after the cheap checks: names and sizes, not contents."""
        manifest = self._manifest(path)
        try:
            self._compare_sizes(path, manifest)
        except OSError as error:
            raise CheckpointRejected(f"{_label(path)}: cannot be read ({error})") from error
        return manifest

    @staticmethod
    def _compare_sizes(path: Path, manifest: dict[str, Any]) -> None:
        label = _label(path)
        listed, present = set(manifest["files"]), set(_files_below(path)) - {MANIFEST}
        if missing := sorted(listed - present):
            raise CheckpointRejected(f"{label}: {missing[0]} is missing")
        if strange := sorted(present - listed):
            raise CheckpointRejected(f"{label}: {strange[0]} is not of this checkpoint")
        for name, expected in manifest["files"].items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                raise CheckpointRejected(f"{label}: {name} has {size} bytes instead of {expected['bytes']}")

    def _manifest(self, path: Path) -> dict[str, Any]:
        label = _label(path)
        try:
            manifest = unsealed((path / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise CheckpointRejected(f"{label}: it has no manifest") from error
        except (OSError, ValueError) as error:
            raise CheckpointRejected(f"{label}: its manifest cannot be read ({error})") from error
        if manifest.get("format") != FORMAT:
            raise CheckpointRejected(
                f"{label}: format {manifest.get('format')} is not {FORMAT}, which this version reads"
            )
        if (match := _FINISHED.fullmatch(path.name)) and int(match[1]) != manifest["step"]:
            raise CheckpointRejected(f"{label}: its manifest is of step {manifest['step']}")
        return manifest

    # --- writing -----------------------------------------------------------------------------------------------

    def temporary(self, step: int, generation: int) -> Path:
        """Where the parts of one checkpoint are written until it is whole."""
        return self.folder / f".writing-{step:08d}-g{generation}"

    def begin(self, step: int, generation: int, part: int) -> Path:
        """Make and return the folder of one part.

        Raises:
            OSError: the folder cannot be made.
        """
        target = self.temporary(step, generation) / f"part-{part}"
        target.mkdir(parents=True, exist_ok=True)
        return target

    def record_part(self, step: int, generation: int, part: int, parts: int, files: dict[str, Any], extra: Any) -> None:
        """Say durably that a part is complete. `files`: {name in the part: {"bytes", "sha256"}}.

        Raises:
            OSError: it cannot be written.
        """
        writing = self.temporary(step, generation)
        fsync_folder(writing / f"part-{part}")
        body = {"step": step, "generation": generation, "part": part, "parts": parts, "files": files, "extra": extra}
        write_durably(writing / f"part-{part}.json", sealed(body), self.folder)

    def finalise(self, step: int, generation: int, parts: int) -> Path | None:
        """Put a checkpoint into place if all its parts are recorded; its path for the one caller that did it.

        Any group may call this at any time. None: parts are missing yet, or another group was quicker.

        Raises:
            OSError: the disk refuses.
            CheckpointRejected: the parts do not fit each other.
        """
        return self.place(step, generation) if self.write_manifest(step, generation, parts) else None

    def write_manifest(self, step: int, generation: int, parts: int) -> bool:
        """Write the manifest if all parts are recorded (first half of `finalise`); False if some are missing."""
        writing = self.temporary(step, generation)
        try:
            records = [unsealed((writing / f"part-{i}.json").read_text(encoding="utf-8")) for i in range(parts)]
            files: dict[str, Any] = {}
            for index, record in enumerate(records):
                if (record["step"], record["part"], record["parts"]) != (step, index, parts):
                    raise CheckpointRejected(f"checkpoint step {step}: part-{index} is of another checkpoint")
                files |= {f"part-{index}/{name}": described for name, described in record["files"].items()}
                files |= describe_files(writing, [f"part-{index}.json"])
            body = {"format": FORMAT, "step": step, "generation": generation, "parts": parts, "files": files}
            write_durably(writing / MANIFEST, sealed(body | {"extra": records[0]["extra"]}), self.folder)
        except FileNotFoundError:
            return False
        return True

    def place(self, step: int, generation: int) -> Path | None:
        """Rename a whole checkpoint into place (second half of `finalise`); None if another was quicker."""
        writing = self.temporary(step, generation)
        attempt = 1
        while True:
            target = self.folder / (f"step-{step:08d}" + (f"-{attempt}" if attempt > 1 else ""))
            if target.exists():  # an older, perhaps corrupt, checkpoint of this step: it is not touched
                attempt += 1
                continue
            try:
                os.rename(writing, target)
            except FileNotFoundError:
                return None
            except FileExistsError:
                continue
            except OSError:
                if not target.exists():
                    raise
                continue
            fsync_folder(self.folder)
            self._verified.add(target.name)  # each part was read back when it was recorded
            return target

    def point_to(self, path: Path) -> None:
        """Replace `latest`.

        Raises:
            OSError: it cannot be written; the checkpoint itself is in place.
        """
        write_durably(self.folder / POINTER, path.name + "\n", self.folder)

    # --- tidying -----------------------------------------------------------------------------------------------

    def prune(self, keep: int) -> list[str]:
        """Remove all but the `keep` newest whole checkpoints; the newest verified one always stays. Names removed."""
        kept: list[Path] = []
        doomed: list[Path] = []
        for path in self.entries():
            try:
                self._whole(path)
            except (CheckpointRejected, OSError):
                (doomed if len(kept) >= keep else []).append(path)
                continue
            (kept if len(kept) < max(1, keep) else doomed).append(path)
        if not doomed:
            return []
        if not any(self._is_verified(path) for path in kept):
            safe = next((path for path in doomed if self._is_verified(path)), None)
            doomed = [path for path in doomed if path != safe]
        return [path.name for path in doomed if remove_folder(path)]

    def remove_stale(self, generation: int | None = None, before_step: int = 0) -> list[tuple[int, str]]:
        """Remove what dead or overtaken saves left: [(step, message)] of each unfinished checkpoint.

        Without arguments everything unfinished goes; no writer may be alive then (the controller, at each start).
        With them: folders of older generations, and those of this generation from before `before_step`.
        """
        removed = []
        for (step, of_generation), path in sorted(self._matching(_WRITING)):
            overtaken = generation is None or of_generation < generation
            if overtaken or (of_generation == generation and step < before_step):
                recorded = sorted(record.stem for record in path.glob("part-*.json"))
                if remove_folder(path):
                    what = f"only {', '.join(recorded)}" if recorded else "no part"
                    removed.append((step, f"checkpoint step {step} was never completed ({what} recorded): removed"))
        if generation is None:
            for path in self.folder.glob(f"{TEMPORARY}*"):
                remove_path(path)
        return removed

    def _is_verified(self, path: Path) -> bool:
        if path.name in self._verified:
            return True
        try:
            self.verify(path)
        except CheckpointRejected:
            return False
        return True

    def _matching(self, pattern: re.Pattern[str]) -> list[tuple[tuple[int, int], Path]]:
        if not self.folder.is_dir():
            return []
        matches = ((pattern.fullmatch(path.name), path) for path in self.folder.iterdir() if path.is_dir())
        return [((int(match[1]), int(match[2] or 1)), path) for match, path in matches if match]


def _label(path: Path) -> str:
    match = _FINISHED.fullmatch(path.name)
    return f"checkpoint step {int(match[1])}" if match else f"checkpoint {path}"


def _files_below(path: Path) -> list[str]:
    return [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
