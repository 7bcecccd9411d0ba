"""Events that the callbacks themselves record; the checkers judge them after the program."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..spec.data import flatten


@dataclass(frozen=True)
class Event:
    """One run of a callback's host function."""

    sequence: int
    """Position in the order in which the callbacks began, over all devices."""
    site: str
    leaves: tuple[npt.NDArray[Any], ...]
    """Copies of the operand's leaves, taken when the callback began; dicts in key order."""
    kept: tuple[npt.NDArray[Any], ...] = ()
    """The arrays that the callback got: they belong to the callback, and may never change."""
    transforms: Any = ()
    device: int | None = None
    """The device's index in the topology, or None where the callback does not receive it."""
    thread: int = 0
    begin: int = 0
    end: int = 0
    """Monotonic nanoseconds."""
    process: int = 0
    """The process that ran it."""

    def as_json(self) -> dict[str, Any]:
        further = {"process": self.process} if self.process else {}
        return {
            "sequence": self.sequence,
            "site": self.site,
            # JSON has no complex numbers.
            "value": [(leaf.astype(str) if leaf.dtype.kind == "c" else leaf).tolist() for leaf in self.leaves],
            "transforms": repr(self.transforms),
            "device": self.device,
            "thread": self.thread,
            "begin": self.begin,
            "end": self.end,
        } | further


@dataclass(frozen=True)
class History:
    events: tuple[Event, ...]
    barrier_returned: int | None = None
    """When the barrier returned, if it did."""


@dataclass(eq=False)
class Recorder:
    """Collects the events of the running program; host functions report to it."""

    device_indices: dict[int, int] = field(default_factory=dict)
    """Index in the topology by the device's own id."""
    _events: list[Event] = field(default_factory=list)
    _sequence: Iterator[int] = field(default_factory=itertools.count)
    _barrier_returned: int | None = None

    def start(self) -> None:
        """Forget the past: a new program is about to run."""
        self._events = []
        self._sequence = itertools.count()
        self._barrier_returned = None

    def mark_barrier(self) -> None:
        self._barrier_returned = time.monotonic_ns()

    def history(self) -> History:
        events = sorted(self._events, key=lambda event: event.sequence)
        return History(tuple(events), self._barrier_returned)

    @contextmanager
    def callback(self, site: str, operand: Any, transforms: Any = (), device: Any = None) -> Iterator[None]:
        """Record one callback; the body of the `with` block is the work of the host function."""
        events = self._events
        sequence, begin = next(self._sequence), time.monotonic_ns()
        leaves = tuple(map(np.asarray, flatten(operand)))
        copies = tuple(np.array(leaf, copy=True) for leaf in leaves)
        try:
            yield
        finally:
            index = None if device is None else self.device_indices.get(device.id, -1)
            events.append(
                Event(
                    sequence, site, copies, leaves, transforms, index, threading.get_ident(), begin, time.monotonic_ns()
                )
            )
