"""A generation: one agreed membership, as the controller publishes it and every survivor applies it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fault_tolerance.runtime.wire import Message


@dataclass(frozen=True, slots=True)
class Generation:
    """One agreed membership; survivors apply every generation, in order, exactly once.

    Attributes:
        number: grows by at least one; also the key prefix of the generation's communicators.
        epoch: counts global restarts.
        live: live groups, ascending.
        deaths, joins: groups that left or came since the generation before.
        committed: steps that count. A rank that saw an error in the commit of step s commits it after all when
            committed > s: another rank passed. The deaths apply to step `committed`, the one in flight.
        noticed_seconds_ago: from the first notice of a death to the publication (seconds).
        silent_seconds: from the last sign of life of what died to the first notice of it: no detection took longer.
        causes: one line for people per death.
    """

    number: int
    epoch: int
    live: tuple[int, ...]
    deaths: tuple[int, ...] = ()
    joins: tuple[int, ...] = ()
    committed: int = 0
    noticed_seconds_ago: float = 0.0
    silent_seconds: float = 0.0
    causes: tuple[str, ...] = ()

    def to_message(self) -> Message:
        return {"type": "generation", **asdict(self)}

    @staticmethod
    def from_message(message: Message) -> Generation:
        fields = {key: value for key, value in message.items() if key != "type"}
        for key in ("live", "deaths", "joins", "causes"):
            fields[key] = tuple(fields[key])
        return Generation(**fields)
