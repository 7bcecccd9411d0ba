"""Counts the runs of user functions, from the first `hostcb.stats()` on (H29)."""

from __future__ import annotations

import time
from typing import Any

from ... import _compat
from ..._spec.naming import NO_DEVICE, device_name
from ..._threads.chains import Most, Sums
from ..queue import counters
from ..queue.counters import queued_in, totals_by_device
from ..queue.queues import queues
from . import observers
from .observers import Observer, Run


class Tally:
    """The runs on one device."""

    def __init__(self) -> None:
        # How many runs, and their bytes, by the kind of callback; but taps, which their queue counts.
        self._runs: dict[str, Sums[tuple[int, int]]] = {}
        # How many taps at most had been handed over and not ended, and their bytes.
        self.most_queued, self.most_queued_bytes = Most(), Most()
        self.failures = Sums[tuple[int]](0)

    def runs_of(self, kind: str) -> Sums[tuple[int, int]]:
        found = self._runs.get(kind)
        return self._runs.setdefault(kind, Sums(0, 0)) if found is None else found

    def read(self) -> dict[str, tuple[int, int]]:
        """Return the runs and their bytes by the kind of callback."""
        return {kind: sums.read() for kind, sums in list(self._runs.items())}

    def reaches(self, queued: int, queued_bytes: int) -> None:
        self.most_queued.reaches(queued)
        self.most_queued_bytes.reaches(queued_bytes)


class Counting(Observer):
    """What is counted since the first question."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.tallies: dict[str, Tally] = {}
        # The same by the devices that there are now.
        self._by_device: dict[Any, Tally] = {}
        # How many barriers have ended, and the seconds for which they waited.
        self.barriers = Sums[tuple[int, float]](0, 0.0)
        # Values that wait at this moment count as handed over afterwards.
        self.totals = totals_by_device(queues.all())

    def tally(self, name: str) -> Tally:
        found = self.tallies.get(name)
        return self.tallies.setdefault(name, Tally()) if found is None else found

    def _tally_of(self, device: Any) -> Tally:
        found = self._by_device.get(device)
        if found is None:
            found = self._by_device[device] = self.tally(NO_DEVICE if device is None else device_name(device))
        return found

    def ended(self, run: Run, state: Any, failure: BaseException | None) -> None:
        tally, kind = self._tally_of(run.device), run.host.callback.kind
        if kind.identity:
            # The queue is the longest just before one of its functions ends.
            tally.reaches(*queued_in(queues[run.device].counts))
        else:
            tally.runs_of(kind.name).add(1, run.host.nbytes)

    def failed(self, device: Any) -> None:
        self._tally_of(device).failures.add(1)

    def waited(self, seconds: float) -> None:
        self.barriers.add(1, seconds)

    def forget_devices(self) -> None:
        """Refer to none of the devices that are gone; others get their names."""
        self._by_device = {}


_counting: dict[None, Counting] = {}


def counting() -> Counting:
    """Return the counting, which begins with the first question; two threads may ask at once."""
    found = _counting.get(None) or _counting.setdefault(None, Counting())
    # At each question, since an interrupt may have ended the first one before.
    observers.observe(found)
    return found


def _forget_devices() -> None:
    found = _counting.get(None)
    if found is not None:
        found.forget_devices()


_compat.on_backends_cleared(_forget_devices)


def reset_after_fork() -> None:
    """In a forked child: it counts anew, if it asks."""
    found = _counting.pop(None, None)
    if found is not None:
        observers.leave(found)
    counters.forget()
