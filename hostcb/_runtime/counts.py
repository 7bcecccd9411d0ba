"""What a device's queue counts, always: additions between which no other thread comes (H29)."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from .._spec.naming import device_name
from .rings import Ring


class Counts:
    """The counters of one queue. Each statement that changes them has no call; see `queues`."""

    def __init__(self) -> None:
        # How many values Python has accepted, and their bytes. The ring has those that C has accepted.
        self.ring: Ring | None = None
        self.accepted = self.accepted_bytes = 0
        # How many functions have ended, and the bytes of their values, whoever accepted them.
        self.ended = self.ended_bytes = 0
        # The same for taps from inside of a callback, which run at once and are not queued.
        self.unqueued = self.unqueued_bytes = 0
        # How many seconds devices have waited for room.
        self.waited_for_room = 0.0

    @contextlib.contextmanager
    def waiting_for_room(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            waited = time.monotonic() - began
            self.waited_for_room += waited


class Queue(Protocol):
    """What is read of a queue, `queues.DeviceQueue`."""

    device: Any
    counts: Counts


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


def _totals_of(name: str, counts: Counts) -> Totals:
    ring = counts.ring
    # What has ended is read before what was handed over, so that it is never more.
    ended, ended_bytes = counts.ended, counts.ended_bytes
    unqueued, unqueued_bytes = counts.unqueued, counts.unqueued_bytes
    taps, taps_bytes = counts.accepted + unqueued, counts.accepted_bytes + unqueued_bytes
    if ring is not None:
        taps += ring.counters.accepted
        taps_bytes += ring.counters.accepted_bytes
    return Totals(name, taps, taps_bytes, ended + unqueued, ended_bytes + unqueued_bytes, counts.waited_for_room)


def queued_in(counts: Counts) -> tuple[int, int]:
    """Return how many taps of a queue have not ended, and their bytes."""
    ring = counts.ring
    queued, queued_bytes = counts.accepted - counts.ended, counts.accepted_bytes - counts.ended_bytes
    if ring is not None:
        counters = ring.counters
        queued += counters.accepted
        queued_bytes += counters.accepted_bytes
    return queued, queued_bytes


# What the queues of devices that are gone have counted, and the names of their devices.
_gone: dict[Counts, str] = {}


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
