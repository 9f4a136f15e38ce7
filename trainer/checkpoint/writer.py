"""Saving while training goes on: copy the state aside, then write, check and publish it in the background.

The copies that N groups hold are one checkpoint: part i of it is written by the i-th live group (all of them, or the
first few), and the group that finds all parts recorded publishes it. A checkpoint that cannot be written is an alarm,
never the end of training.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.catalog import Catalog
from trainer.checkpoint.files import remove_folder
from trainer.checkpoint.part import PartFailed, Ranks, explain, write_part
from trainer.checkpoint.staging import StagingBuffers
from trainer.checkpoint.state import share_of

log = logging.getLogger(__name__)

STAGES = ("write", "fsync", "manifest", "rename", "pointer")
"""What `phase_hook` is told, in this order."""


@dataclass
class _Save:
    """One save of this group's part."""

    step: int
    generation: int
    part: int
    parts: int
    share: dict[str, Tensor]
    extra: dict[str, Any]
    began: float
    stalled: float = 0.0
    """Seconds that training waited for the copy."""


class CheckpointWriter:
    """Writes this group's part of each checkpoint. One object per rank; all ranks of the group call it alike.

    Events reach `on_event` from `save`, `poll` and `wait`, in the caller's thread; `phase_hook` is called in the
    thread that writes.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        group: int,
        process_group: dist.ProcessGroup | None = None,
        keep: int = 2,
        asynchronous: bool = True,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
        phase_hook: Callable[[str], None] = lambda stage: None,
        fence: Callable[[], bool] = lambda: True,
        patience_seconds: float = 600.0,
    ) -> None:
        """
        Args:
            group: this group's number, for events.
            process_group: the ranks of this group, on gloo, used for nothing else (it works beside the training's
                collectives); None for a group of one rank.
            keep: newest checkpoints to keep.
            phase_hook: told each of STAGES as it begins; what it raises comes out of `save`, `poll` or `wait`.
            fence: False once this generation is over: nothing is published then.
            patience_seconds: longest wait for an earlier save; after it the new one is skipped, with an alarm.
        """
        self.catalog, self.group, self.keep, self.asynchronous = catalog, group, keep, asynchronous
        self.fence, self.patience_seconds = fence, patience_seconds
        self._on_event, self._phase_hook = on_event, phase_hook
        self._ranks = Ranks(process_group)
        self._buffers = StagingBuffers()
        self._names: dict[tuple[int, int, int], list[str]] = {}
        self._thread: threading.Thread | None = None
        self._running: tuple[int, float] | None = None
        self._previous: tuple[int, int] | None = None
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._hook_error: BaseException | None = None

    def prepare(self, part: int, parts: int, state: dict[str, Tensor]) -> None:
        """Make the staging memory in the background, so that the first save stalls no longer than the others."""
        if self.asynchronous and self.wait():
            share = self._share(part, parts, state)
            self._start(lambda: self._reserve(share), step=0)

    def save(
        self,
        step: int,
        generation: int,
        part: int,
        parts: int,
        state: dict[str, Tensor],
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Save `state` (live tensors) and `extra` (JSON) as of `step`, as part `part` of `parts`.

        Returns when the state has been copied (asynchronous) or written. A failure is an event, not an exception.
        """
        assert 0 <= part < parts, f"part {part} of {parts}"
        began = time.perf_counter()
        extra = json.loads(json.dumps(extra or {}))
        if not self.wait(self.patience_seconds):
            running_step, since = self._running or (0, began)
            reason = f"the save of step {running_step} has been running for {began - since:.0f} s"
            self._report(step, generation, "failed", time.perf_counter() - began, reason=f"skipped, since {reason}")
            self.poll()
            return
        share = self._share(part, parts, state)
        save = _Save(step, generation, part, parts, share, extra, began)
        if not self.asynchronous:
            self._write(save, None)
            self.poll()
            return
        error: Exception | None = None
        try:
            save.share = self._buffers.stage(share)
        except (MemoryError, OSError, RuntimeError) as caught:  # no memory: the peers are told in the background
            error = caught
        save.stalled = time.perf_counter() - began
        self._start(lambda: self._write(save, error), step=step)

    def exists(self, step: int) -> bool:
        """Whether a checkpoint of `step` is in place (its checksums are looked at when it is loaded)."""
        return self.catalog.exists(step)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no save is running here; False if `timeout` seconds (patience_seconds if None) were too few."""
        if self._thread is not None:
            self._thread.join(self.patience_seconds if timeout is None else timeout)
            if self._thread.is_alive():
                return False
            self._thread, self._running = None, None
        self.poll()
        return True

    def poll(self) -> list[dict[str, Any]]:
        """Hand what happened in the background to `on_event`, and return it. Call it at each step."""
        events = []
        while not self._events.empty():
            event = self._events.get()
            self._on_event(event)
            events.append(event)
        if self._hook_error is not None:
            error, self._hook_error = self._hook_error, None
            raise error
        return events

    # --- in the background ---------------------------------------------------------------------------------------

    def _start(self, work: Callable[[], None], step: int) -> None:
        self._running = (step, time.perf_counter())
        self._thread = threading.Thread(target=work, name=f"checkpoint-{step}", daemon=True)
        self._thread.start()

    def _reserve(self, share: dict[str, Tensor]) -> None:
        try:
            self._buffers.reserve(share)
        except (MemoryError, OSError, RuntimeError) as error:  # the first save will say so too, as an event
            log.error("no memory to stage checkpoints: %s", explain(error))

    def _write(self, save: _Save, staging_error: Exception | None) -> None:
        try:
            self._tidy(save)
            self._agree(save, staging_error)
            folder = self._ranks.together(lambda: self.catalog.begin(save.step, save.generation, save.part))[0]
            files = write_part(folder, save.share, self._ranks, self._stage)
            if self._ranks.rank == 0:
                self._publish(save, files)
        except _HookRaised:
            pass
        except Exception as error:  # whatever it is, training goes on and the alarm says what it was
            log.debug("checkpoint step %d failed", save.step, exc_info=True)
            if self._ranks.rank == 0:
                self._give_up(save, str(error) if isinstance(error, PartFailed) else explain(error))

    def _agree(self, save: _Save, staging_error: Exception | None) -> None:
        """All ranks of the group are at this save and have staged it; one that skipped a save catches up here."""
        while True:
            steps = self._ranks.together(lambda: _ready(save.step, staging_error))
            if len(set(steps)) == 1:
                return
            if save.step < max(steps):
                raise PartFailed(f"the group's ranks are at different saves (of steps {sorted(set(steps))})")

    def _give_up(self, save: _Save, reason: str) -> None:
        """Report a failed save and free its disk space: without this part it can never be whole."""
        writing = self.catalog.temporary(save.step, save.generation)
        if self.catalog.folder.is_dir() and not writing.is_dir():
            reason = f"{reason}; its folder is gone: another group gave this checkpoint up, or the generation is over"
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self.catalog.folder).free
            reason = f"{reason} ({free / 2**20:.0f} MiB free in {self.catalog.folder})"
        remove_folder(writing)
        seconds = time.perf_counter() - save.began
        self._report(save.step, save.generation, "failed", seconds, reason=reason, part=save.part)

    def _publish(self, save: _Save, files: dict[str, Any]) -> None:
        step, generation = save.step, save.generation
        self._stage("manifest")
        self.catalog.record_part(step, generation, save.part, save.parts, files, save.extra)
        if not self.fence():
            seconds, reason = time.perf_counter() - save.began, f"generation {generation} is over"
            self._report(step, generation, "failed", seconds, reason=reason, part=save.part)
            return
        if not self.catalog.write_manifest(step, generation, save.parts):
            return  # another group finishes later and publishes
        self._stage("rename")
        path = self.catalog.place(step, generation)
        if path is None:
            return  # another group was quicker
        self._stage("pointer")
        warning = self._after(path)
        seconds = time.perf_counter() - save.began
        details = {"path": str(path), "parts": save.parts, "stall_seconds": save.stalled}
        self._report(step, generation, "written", seconds, **details, **warning)

    def _after(self, path: Path) -> dict[str, str]:
        """Pointer and retention; the checkpoint is safe whatever happens here."""
        try:
            self.catalog.point_to(path)
            self.catalog.prune(self.keep)
        except OSError as error:
            log.error("checkpoint %s is in place, but: %s", path.name, explain(error))
            return {"warning": explain(error)}
        return {}

    def _tidy(self, save: _Save) -> None:
        """Remove what older generations and failed saves left.

        All groups have committed this step, so each writer has called the previous save, which waited for the one
        before: folders older than the previous save have no writer. One that writes for the first time in its
        generation leaves those of its generation alone.
        """
        before = self._previous[1] if self._previous and self._previous[0] == save.generation else 0
        self._previous = (save.generation, save.step)
        if self._ranks.rank == 0:
            for step, message in self.catalog.remove_stale(save.generation, before):
                self._report(step, save.generation, "failed", 0.0, reason=message)

    def _share(self, part: int, parts: int, state: dict[str, Tensor]) -> dict[str, Tensor]:
        key = (part, parts, len(state))
        if key not in self._names:
            self._names[key] = share_of(state, part, parts)
        return {name: state[name] for name in self._names[key]}

    def _stage(self, stage: str) -> None:
        try:
            self._phase_hook(stage)
        except BaseException as error:
            self._hook_error = error
            raise _HookRaised from error

    def _report(self, step: int, generation: int, status: str, seconds: float, **details: Any) -> None:
        event = {"event": "checkpoint", "step": step, "generation": generation, "groups": [self.group]}
        if status == "failed":
            log.error("checkpoint step %d FAILED in group %d: %s", step, self.group, details.get("reason"))
        self._events.put(event | {"status": status, "seconds": seconds} | details)


class _HookRaised(Exception):
    """The phase hook raised; its exception is on its way to the caller's thread."""


def _ready(step: int, staging_error: Exception | None) -> int:
    if staging_error is not None:
        raise staging_error
    return step
