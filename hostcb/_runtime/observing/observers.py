"""The events of callbacks, and what observes them: statistics, traces, profiles, and the exit (H17, H22, H29, H31).

`Host`, the in-place handlers and the barrier read the reference `on`. It is None while nothing observes, so a program
that was compiled before is observed as well, and otherwise nothing else happens.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..._native.library import library
from ..._spec.callback import HostCallback

# Runs and hand-overs, in the order in which they began.
_numbers = itertools.count()


class Observed(Protocol):
    """The callback that runs, `host.Host`."""

    callback: HostCallback
    program: Any
    operand_avals: tuple[Any, ...]
    nbytes: int
    # What a trace says of it, from the first event on.
    about: dict[str, Any] | None


class HandedOver(tuple[Any, ...]):
    """The arrays of a tapped value that was queued while hand-overs were observed, and when."""

    number: int
    begin: int


class Run:
    """One run of a user function; `arrays` are the operands that may be shown."""

    __slots__ = ("arrays", "device", "host", "number")

    def __init__(self, host: Observed, device: Any, arrays: Sequence[Any]) -> None:
        self.host, self.device, self.arrays = host, device, arrays
        self.number = next(_numbers)


class Observer:
    """Gets the events. Those that it does not define do nothing."""

    # Whether it gets the hand-overs of taps. Then all values go through Python, and none through the native extension.
    of_hand_overs = False

    def enqueued(self, host: Observed, device: Any, handed: HandedOver) -> None:
        """A tapped value was queued."""

    def started(self, run: Run) -> Any:
        """A function starts now, unless this raises. What it returns is given to `ended`."""

    def ended(self, run: Run, state: Any, failure: BaseException | None) -> None:
        """It has returned, or raised `failure`."""

    def failed(self, device: Any) -> None:
        """A callback failed: its function raised, or returned what does not match. None if the device is not known."""

    def waited(self, seconds: float) -> None:
        """A barrier of the user has ended."""


class Observers:
    """All that observe."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers
        self.of_hand_overs = any(each.of_hand_overs for each in observers)

    def hand_over(self, host: Observed, device: Any, arrays: Sequence[Any], put: Callable[[HandedOver], None]) -> None:
        """Queue a tapped value with `put`."""
        handed = HandedOver(arrays)
        handed.number, handed.begin = next(_numbers), time.monotonic_ns()
        try:
            put(handed)
        finally:
            for each in self.observers:
                each.enqueued(host, device, handed)

    def around(
        self, host: Observed, device: Any, arrays: Sequence[Any], invoke: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `invoke` for one run, which is observed."""
        run = Run(host, device, arrays)
        for each in self.observers:
            invoke = _observed(each, run, invoke)
        return invoke

    def failed(self, device: Any) -> None:
        for each in self.observers:
            each.failed(device)

    def waited(self, seconds: float) -> None:
        for each in self.observers:
            each.waited(seconds)


def _observed(observer: Observer, run: Run, invoke: Callable[..., Any]) -> Callable[..., Any]:
    def observed(*arguments: Any) -> Any:
        state = observer.started(run)
        try:
            result = invoke(*arguments)
        except BaseException as failure:
            observer.ended(run, state, failure)
            raise
        observer.ended(run, state, None)
        return result

    return observed


_observing: dict[Observer, None] = {}

# None while nothing observes.
on: Observers | None = None


def observe(observer: Observer) -> None:
    _observing[observer] = None
    _switch()


def leave(*observers: Observer) -> None:
    for each in observers:
        _observing.pop(each, None)
    _switch()


def _switch() -> None:
    """Set `on`; another thread may observe or leave at the same time, so it looks again."""
    global on
    while True:
        observers = tuple(_observing)
        on = Observers(observers) if observers else None
        library.all_through_python(on is not None and on.of_hand_overs)
        if tuple(_observing) == observers:
            return
