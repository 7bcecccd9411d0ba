"""What a device's queue counts, always (H29)."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ..._spec.naming import device_name
from ..._threads.chains import Sums
from .items import Items
from .rings import Ring


class QueueCounters:
    """The counters of one queue."""

    def __init__(self, items: Items, ring: Ring | None = None) -> None:
        # The values that Python has accepted, and the ring with those that C has accepted.
        self._items = items
        self.ring = ring
        # Taps from inside of a callback, which run at once and are not queued, and their bytes.
        self.unqueued = Sums[tuple[int, int]](0, 0)
        # How many seconds devices have waited for room.
        self._waited_for_room = Sums[tuple[float]](0.0)

    @contextlib.contextmanager
    def waiting_for_room(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._waited_for_room.add(time.monotonic() - began)

    @property
    def waited_for_room(self) -> float:
        return self._waited_for_room.read()[0]

    def handed_over(self) -> tuple[int, int]:
        """Return how many values the queue has accepted, and their bytes."""
        values, held = self._items.accepted()
        if self.ring is not None:
            counters = self.ring.counters
            values, held = values + counters.accepted, held + counters.accepted_bytes
        return values, held

    def ended(self) -> tuple[int, int]:
        """Return how many of their functions have ended, and the bytes of these values."""
        values, held = self._items.ended()
        if self.ring is not None:
            counters = self.ring.counters
            values, held = values + counters.ended, held + counters.ended_bytes
        return values, held


class Queue(Protocol):
    """What is read of a queue, `device_queue.DeviceQueue`."""

    device: Any
    counts: QueueCounters


@dataclasses.dataclass(frozen=True)
class Totals:
    """The taps of one device: how many were handed over and of how many bytes, and those whose functions have ended."""

    device: str
    taps: int = 0
    taps_bytes: int = 0
    ended: int = 0
    ended_bytes: int = 0
    waited_for_room: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.device,
            self.taps + other.taps,
            self.taps_bytes + other.taps_bytes,
            self.ended + other.ended,
            self.ended_bytes + other.ended_bytes,
            self.waited_for_room + other.waited_for_room,
        )


def _totals_of(name: str, counts: QueueCounters) -> Totals:
    # What has ended is read before what was handed over, so that it is never more.
    ended, ended_bytes = counts.ended()
    unqueued, unqueued_bytes = counts.unqueued.read()
    taps, taps_bytes = counts.handed_over()
    return Totals(
        name,
        taps + unqueued,
        taps_bytes + unqueued_bytes,
        ended + unqueued,
        ended_bytes + unqueued_bytes,
        counts.waited_for_room,
    )


def queued_in(counts: QueueCounters) -> tuple[int, int]:
    """Return how many taps of a queue have not ended, and their bytes."""
    ended, ended_bytes = counts.ended()
    taps, taps_bytes = counts.handed_over()
    return taps - ended, taps_bytes - ended_bytes


# What the queues of devices that are gone have counted, and the names of their devices.
_gone: dict[QueueCounters, str] = {}


def retire(queues: Iterable[Queue]) -> None:
    """Keep what these queues count, before they are dropped."""
    for queue in queues:
        _gone[queue.counts] = device_name(queue.device)


def forget() -> None:
    """In a forked child: it counts anew."""
    _gone.clear()


def totals_by_device(queues: Iterable[Queue]) -> dict[str, Totals]:
    """Return the totals of each device, by its name: after `clear_backends` another device has the name."""
    # In this order: a queue that is dropped meanwhile is in both, and counts once.
    each_once = {queue.counts: device_name(queue.device) for queue in queues}
    each_once |= _gone
    found: dict[str, Totals] = {}
    for counts, name in each_once.items():
        found[name] = found.get(name, Totals(name)) + _totals_of(name, counts)
    return found
