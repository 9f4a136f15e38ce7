"""When a checkpoint is due (every so many steps or seconds, or at the planned period), and how many groups write it.

Steps are counted alike everywhere. Clocks are not, nor what one rank sees of a save that a death has cut short: a rank
says in the step's statistics that it finds one due, and the reduced sum decides for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from fault_tolerance.theory import checkpoint_period, mean_failures_exact, mean_failures_partition
from trainer.config import Config
from trainer.model.size import parameter_count

STATE_BYTES = 12
"""Of a parameter in a checkpoint: master weight and AdamW's two averages in float32."""


class CheckpointSchedule:
    """Decides for one rank."""

    def __init__(self, config: Config) -> None:
        self._settings, self._last_step = config.checkpoint, config.train.steps
        self._save_seconds = 0.0
        self._saved_at = time.monotonic()
        self._doubtful_step: int | None = None
        self._saved_step: int | None = None
        self._wrote: Collection[int] = ()
        self._wipe_out_seconds = self._settings.mtbf_seconds * _failures_endured(config)
        self._megabytes = STATE_BYTES * parameter_count(config.model) / 1e6

    @property
    def period_seconds(self) -> float | None:
        """Seconds between checkpoints; None where steps alone decide.

        Planned (`checkpoint.mtbf_seconds`): T_c* of the paper (`fault_tolerance.theory.checkpoint_period`) with the
        seconds that the last save held training up; the first save, after the first step, measures them.
        """
        if self._settings.mtbf_seconds > 0:
            return checkpoint_period(self._save_seconds, self._settings.restart_seconds, self._wipe_out_seconds)
        return self._settings.every_seconds or None

    @property
    def is_on(self) -> bool:
        """Whether this run writes checkpoints at all."""
        settings = self._settings
        return settings.every_steps > 0 or settings.every_seconds > 0 or settings.mtbf_seconds > 0

    def wants_one(self, exists: Callable[[int], bool], writes: bool = True) -> bool:
        """Whether this rank finds one due: by its clock, or since a death cost the last one a part.

        Args:
            exists: whether the checkpoint of a step is in place.
            writes: whether this rank's group would write a part: the others do not know what a save costs.
        """
        if self._doubtful_step is not None:
            doubtful, self._doubtful_step = self._doubtful_step, None
            if not exists(doubtful):
                return True
        period = self.period_seconds if writes else None
        return period is not None and time.monotonic() - self._saved_at >= period

    def is_due(self, step: int, wanted: bool) -> bool:
        """Whether the state after `step` steps is saved; `wanted`: a rank's clock said so. The last always is."""
        every = self._settings.every_steps
        return step < self._last_step and (wanted or (every > 0 and step % every == 0))

    def writers(self, live: Sequence[int]) -> Sequence[int]:
        """Those of the live groups that write a save, in the order of its parts."""
        smallest = self._settings.smallest_part_mb
        return live if smallest == 0 else live[: max(1, int(self._megabytes / smallest))]

    def saved(self, step: int, stall_seconds: float, writers: Collection[int]) -> None:
        """The save of the state after `step` steps, in parts of `writers`, began and held training up for so long."""
        self._save_seconds, self._saved_at = stall_seconds, time.monotonic()
        self._saved_step, self._wrote = step, writers

    def group_lost(self, live: Collection[int]) -> None:
        """Only `live` groups are left; what one of the others had not yet written of the last save is lost."""
        if not set(self._wrote) <= set(live):
            self._doubtful_step = self._saved_step


def _failures_endured(config: Config) -> float:
    """Mean failures to a global restart: 1 for ckpt, mu(N, r) for rep and spare."""
    settings = config.fault_tolerance
    if settings.backend == "ckpt":
        return 1.0
    endured = mean_failures_partition if settings.placement == "partition" else mean_failures_exact
    return endured(config.parallel.groups, settings.redundancy)
