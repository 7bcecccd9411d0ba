"""The log's lines about a callback that fails again and again (H19).

Each class of exception has a line, and three classes at most. The log counts the other failures, in one line a second:
the devices of a program usually fail together, for one reason.
"""

from __future__ import annotations

import itertools
import time

CLASSES = 3
SECONDS_BETWEEN_COUNTS = 1.0


class _Repeated:
    """The failures of one callback, the names of their classes, and when the log had a line about them."""

    __slots__ = ("classes", "logged_at", "numbers")

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.classes: dict[str, None] = {}
        self.logged_at = 0.0


class Repeats:
    """How often each callback has failed; `times` are the log's words between the number and the last failure."""

    def __init__(self, times: str) -> None:
        self._times = times
        self._callbacks: dict[tuple[str, str], _Repeated] = {}

    def forget(self) -> None:
        self._callbacks = {}

    def line(self, kind: str, callback: str, class_name: str, headline: str, rest: str) -> str | None:
        """Return the log's line about one more failure, with `rest` if it is no count; None if it has said enough."""
        repeated = self._callbacks.setdefault((kind, callback), _Repeated())
        number, now = next(repeated.numbers), time.monotonic()
        if class_name not in repeated.classes and len(repeated.classes) < CLASSES:
            repeated.classes[class_name], repeated.logged_at = None, now
            return f"{headline}{rest}"
        if now - repeated.logged_at < SECONDS_BETWEEN_COUNTS:
            return None
        repeated.logged_at = now
        return f"{kind}: {callback} has failed {number:,} {self._times} {headline}"
