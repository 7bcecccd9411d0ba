"""The log's lines about a callback that fails again and again: three, and then a count once a second (H19)."""

from __future__ import annotations

import itertools
import time

LINES = 3
SECONDS_BETWEEN_COUNTS = 1.0


class _Repeated:
    """The failures of one callback, and when the log had a line about them."""

    __slots__ = ("logged_at", "numbers")

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.logged_at = 0.0


class Repeats:
    """How often each callback has failed; `times` are the log's words between the number and the last failure."""

    def __init__(self, times: str) -> None:
        self._times = times
        self._callbacks: dict[tuple[str, str], _Repeated] = {}

    def forget(self) -> None:
        self._callbacks = {}

    def line(self, kind: str, callback: str, headline: str, consequence: str) -> str | None:
        """Return the log's line about one more failure; None if it has said enough for now."""
        repeated = self._callbacks.setdefault((kind, callback), _Repeated())
        number, now = next(repeated.numbers), time.monotonic()
        if number > LINES and now - repeated.logged_at < SECONDS_BETWEEN_COUNTS:
            return None
        repeated.logged_at = now
        if number < LINES:
            return f"{headline} ({consequence})"
        if number == LINES:
            return f"{headline} ({consequence}; the log only counts further failures of this callback)"
        return f"{kind}: {callback} has failed {number:,} {self._times} {headline}"
