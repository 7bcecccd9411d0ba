"""The hand-over of a tapped value: the device puts it into a queue and goes on, and the function runs later."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Enqueue:
    """The times are monotonic nanoseconds, as those of events."""

    thread: int
    """The thread that put the value into the queue, as `threading.get_ident` names it."""
    begin: int
    end: int
    """When the device went on."""

    def as_json(self) -> dict[str, int]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Enqueue:
        return Enqueue(int(data["thread"]), int(data["begin"]), int(data["end"]))


@dataclass(frozen=True)
class TracedRun:
    """A run of a user function, as the implementation itself recorded it."""

    thread: int
    begin: int
    end: int
    handed_over: Enqueue | None
    """None if the function ran at once, without a queue."""
