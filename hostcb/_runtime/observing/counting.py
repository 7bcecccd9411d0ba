"""Counts the runs of user functions, from the first `hostcb.stats()` on (H29)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ... import _compat
from ..._errors.failures import failure_log
from ..._spec.naming import NO_DEVICE, device_name
from ..._threads.chains import Most, Sums
from ..queue import counters
from ..queue.counters import queued_in, totals_by_device
from ..queue.queues import queues
from . import watching
from .barrier_times import barriers
from .watching import Watched


class Tally:
    """The runs on one device."""

    def __init__(self) -> None:
        # How many runs, and their bytes, by the kind of callback; but taps, which their queue counts.
        self._runs: dict[str, Sums[tuple[int, int]]] = {}
        # How many taps at most had been handed over and not ended, and their bytes.
        self.most_queued, self.most_queued_bytes = Most(), Most()

    def runs_of(self, kind: str) -> Sums[tuple[int, int]]:
        found = self._runs.get(kind)
        return self._runs.setdefault(kind, Sums(0, 0)) if found is None else found

    def read(self) -> dict[str, tuple[int, int]]:
        """Return the runs and their bytes by the kind of callback."""
        return {kind: sums.read() for kind, sums in list(self._runs.items())}

    def reaches(self, queued: int, queued_bytes: int) -> None:
        self.most_queued.reaches(queued)
        self.most_queued_bytes.reaches(queued_bytes)


class Counting:
    """What is counted since the first question."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.tallies: dict[str, Tally] = {}
        # The same by the devices that there are now.
        self._by_device: dict[Any, Tally] = {}
        self.failures = failure_log.counts()
        self.barriers, self.waited_in_barriers = barriers.read()
        # Values that wait at this moment count as handed over afterwards.
        self.totals = totals_by_device(queues.all())

    def around(
        self, host: Watched, device: Any, arrays: Sequence[Any], invoke: Callable[..., Any]
    ) -> Callable[..., Any]:
        tally = self._by_device.get(device)
        if tally is None:
            tally = self.tally(NO_DEVICE if device is None else device_name(device))
            self._by_device[device] = tally
        if host.callback.kind.identity:
            return lambda *arguments: self._tapped(tally, device, invoke, arguments)
        runs, nbytes = tally.runs_of(host.callback.kind.name), host.nbytes

        def counted(*arguments: Any) -> Any:
            try:
                return invoke(*arguments)
            finally:
                runs.add(1, nbytes)

        return counted

    def tally(self, name: str) -> Tally:
        found = self.tallies.get(name)
        return self.tallies.setdefault(name, Tally()) if found is None else found

    def forget_devices(self) -> None:
        """Refer to none of the devices that are gone; others get their names."""
        self._by_device = {}

    def _tapped(self, tally: Tally, device: Any, invoke: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        try:
            return invoke(*arguments)
        finally:
            # The queue is the longest just before one of its functions ends.
            tally.reaches(*queued_in(queues[device].counts))


_counting: dict[None, Counting] = {}


def counting() -> Counting:
    """Return the counting, which begins with the first question; two threads may ask at once."""
    found = _counting.get(None) or _counting.setdefault(None, Counting())
    # At each question, since an interrupt may have ended the first one before.
    watching.watch(found)
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
        watching.leave(found)
    counters.forget()
