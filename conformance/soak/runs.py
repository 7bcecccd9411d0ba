"""One run of a program, as far as the ledger has seen it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .shapes import Shape

NOT_YET = 1 << 62
"""A tick after all others."""


class PlantedError(Exception):
    """What a callback of the soak raises on purpose."""

    def __init__(self, number: int, slot: int, position: int) -> None:
        super().__init__(f"planted in run {number} on slot {slot} at step {position}.")
        self.key = (number, slot, position)


class Run:
    """The history that is expected, with cursors to where it has come.

    On one device ordered callbacks never run at the same time, and steps of a set are single operations. So there is no
    lock: a signal handler that taps could meet it in its own thread.
    """

    def __init__(
        self,
        number: int,
        lane: str,
        shape: Shape,
        devices: Sequence[int],
        *,
        inside: bool = False,
        fails_at: tuple[int, int] | None = None,
        effects: Mapping[tuple[int, int], Callable[[], Any]] | None = None,
    ) -> None:
        self.number = number
        self.lane = lane
        """Runs of one lane are in the order of their dispatch on each device."""
        self.shape = shape
        self.devices = tuple(devices)
        self.inside = inside
        """Whether it begins in a callback or in a handler of signals, where nothing is queued."""
        self.fails_at = fails_at
        """Slot and step at which its computation ends with an error."""
        self.effects = effects or {}
        self.begun = NOT_YET
        self.returned = NOT_YET
        """The ticks before and after its dispatch."""
        self.fetched = False
        slots = range(len(self.devices))
        self.cursors = [0] * len(slots)
        self.lengths = [self._length(slot) for slot in slots]
        self.once = [set(shape.once) for _ in slots]
        self.needed = [set(shape.needed) for _ in slots]

    def _length(self, slot: int) -> int:
        """The ordered callbacks that run on a device: none after the one that ends the computation."""
        ordered = self.shape.ordered
        if self.fails_at is None or self.fails_at[0] != slot:
            return len(ordered)
        return ordered.index(self.fails_at[1]) + 1

    @property
    def awaited(self) -> list[str]:
        """What a barrier promises and has not come."""
        words = []
        for slot, device in enumerate(self.devices):
            seen, length = self.cursors[slot], self.lengths[slot]
            if seen < length:
                words.append(f"device {device}: ordered steps {_few(self.shape.ordered[seen:length])}")
            if self.once[slot]:
                words.append(f"device {device}: unordered steps {_few(sorted(self.once[slot]))}")
        return words

    @property
    def unanswered(self) -> list[str]:
        """The callbacks whose result the program's result needs, and which have not come."""
        return [
            f"device {device}: pure steps {_few(sorted(self.needed[slot]))}"
            for slot, device in enumerate(self.devices)
            if self.needed[slot]
        ]

    @property
    def events(self) -> dict[str, int]:
        """How many callbacks of each kind have run."""
        counts: dict[str, int] = {}
        for slot in range(len(self.devices)):
            seen = set(self.shape.ordered[: self.cursors[slot]])
            seen |= (self.shape.once - self.once[slot]) | (self.shape.needed - self.needed[slot])
            for place in seen:
                kind = self.shape.steps[place].kind
                counts[kind] = counts.get(kind, 0) + 1
        return counts

    def __str__(self) -> str:
        return f"run {self.number} of {self.lane} ({self.shape.spec}; {self.shape.trips} rounds)"


def _few(places: Sequence[int], most: int = 6) -> str:
    shown = ", ".join(map(str, places[:most]))
    return f"{shown} and {len(places) - most} more" if len(places) > most else shown
