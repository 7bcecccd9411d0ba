"""How often and how long barriers have waited (H29)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ..._threads.chains import Sums


class BarrierTimes:
    """A counter of waits and their seconds."""

    def __init__(self) -> None:
        self._sums = Sums[tuple[int, float]](0, 0.0)

    @contextlib.contextmanager
    def once_more(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._sums.add(1, time.monotonic() - began)

    def read(self) -> tuple[int, float]:
        """Return how many waits have ended, and their seconds."""
        return self._sums.read()


# The barriers that users have called.
barriers = BarrierTimes()
