"""Every deadline of the runtime, derived from the one configured timeout (invariant: nothing waits for ever)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines in seconds, from `fault_tolerance.timeout_seconds`.

    The order matters: a rank may arrive at a new communicator as late as its peers' evictions allow, so building one
    takes longer than any detection, and a collective of an abandoned communicator outlives them all.
    """

    timeout: float

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"fault_tolerance.timeout_seconds={self.timeout} must be above 0 (seconds)")

    @property
    def heartbeat_interval(self) -> float:
        """Between two heartbeats of a worker."""
        return min(0.5, self.timeout / 20)

    @property
    def heartbeat_lapse(self) -> float:
        """Silence after which a worker counts as dead (frozen or vanished)."""
        return self.timeout / 3

    @property
    def acknowledge(self) -> float:
        """For a live worker to acknowledge a new generation."""
        return self.timeout / 3

    @property
    def stuck_floor(self) -> float:
        """Least time without progress after which a worker that waits for nobody counts as stuck."""
        return self.timeout

    @property
    def stuck_cap(self) -> float:
        """Longest time without progress that is allowed; those who wait for that worker have more patience."""
        return 8 * self.timeout

    @property
    def save_patience(self) -> float:
        """How long a save waits for the one before; then it is skipped."""
        return self.timeout / 2

    @property
    def collective(self) -> float:
        """Last resort inside a collective; the controller's verdicts come before."""
        return 10 * self.timeout

    @property
    def build(self) -> float:
        """For all ranks to arrive at a new communicator."""
        return 12 * self.timeout

    @property
    def startup(self) -> float:
        """From the start of a worker's process until it is ready to train."""
        return 10 * self.timeout

    @property
    def shutdown(self) -> float:
        """For a process to end by itself after it was asked to."""
        return min(5.0, self.timeout)
