"""How often and how long barriers have waited (H29)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Waited:
    """A counter of waits and their seconds. Each statement that changes it has no call; see `counts`."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    @contextlib.contextmanager
    def once_more(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self.count += 1
            self.seconds += seconds


# The barriers that users have called.
barriers = Waited()
