"""Emulated accelerators: groups that share one machine's cores behave in time like machines of their own.

A pad sleeps after the real computation until its fixed time is over, so what is computed stays real. A computation
that takes longer than its pad makes the emulation wrong: how much is recorded in each step's metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fault_tolerance.backends.base import Backend, Batch, Work
from fault_tolerance.runtime.membership import Membership
from trainer.config import EmulateConfig


class Pacer:
    """Pads the units and reductions of one rank; one that emulates nothing costs nothing.

    Args:
        micro_batches: units of a shard type.
        membership: ends the pad of a reduction early where the membership changes, as it would end the reduction.
    """

    def __init__(self, settings: EmulateConfig, micro_batches: int, membership: Membership) -> None:
        self._settings, self._micro_batches, self._membership = settings, micro_batches, membership
        self._units = 0
        self._padding = {"compute": 0.0, "reduce": 0.0}
        self._late = {"compute": 0.0, "reduce": 0.0}

    @contextmanager
    def units(self, batch: Batch) -> Iterator[None]:
        """The block computes a batch of units, each of which takes `emulate.unit_seconds`."""
        began = time.monotonic()
        yield
        self._units += len(batch)
        if self._settings.unit_seconds > 0:
            self._pad("compute", began, len(batch) * self._settings.unit_seconds, time.sleep)

    def reduce(self, backend: Backend) -> Work | None:
        """`backend.reduce`; one that succeeds takes `emulate.reduce_seconds`, unless a group dies meanwhile.

        Only the busiest group can be late: the others wait for it in here.
        """
        began = time.monotonic()
        work = backend.reduce()
        if work is None and self._settings.reduce_seconds > 0:
            late = self._late["reduce"]
            self._pad("reduce", began, self._settings.reduce_seconds, lambda left: self._sleep(left, backend))
            if self._units < backend.stacks * self._micro_batches:
                self._late["reduce"] = late
        return work

    def record(self) -> dict[str, dict[str, float]]:
        """Fields for the record of the step that ends here: what was padded and what came too late, in seconds."""
        if not self._settings.is_on:
            return {}
        fields = {f"{part}_padding": seconds for part, seconds in self._padding.items()}
        fields |= {f"{part}_late": seconds for part, seconds in self._late.items()}
        self._units = 0
        self._padding = dict.fromkeys(self._padding, 0.0)
        self._late = dict.fromkeys(self._late, 0.0)
        return {"emulated": fields}

    def _pad(self, part: str, began: float, seconds: float, sleep: Callable[[float], None]) -> None:
        left = began + seconds - time.monotonic()
        if left > 0:
            self._padding[part] += left
            sleep(left)
        else:
            self._late[part] -= left

    def _sleep(self, seconds: float, backend: Backend) -> None:
        with self._membership.changed:
            self._membership.changed.wait_for(lambda: self._membership.is_stale(backend.generation), timeout=seconds)
