"""The thread that runs the functions of a queue, and how it sleeps and is woken (H11)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from .rings import Ring


class Consumer:
    """The thread that runs a queue's functions, and the bell that wakes it; any code may ring the bell."""

    def __init__(self, device: Any, ring: Ring | None, consume: Callable[[Consumer], None]):
        # The bell of the ring, if there is one.
        self.ring = ring
        self.heard = 0
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=consume, args=(self,), name=f"hostcb-{device}", daemon=True)

    def is_current(self) -> bool:
        return self.thread.ident == threading.get_ident()

    def wake(self) -> None:
        if self.ring is not None:
            self.ring.wake()
        else:
            self.bell.put(None)

    def sleep(self, timeout: float | None = None) -> bool:
        """Wait for the bell; False if it did not ring in time. Without a timeout, a value in the ring wakes it too."""
        if self.ring is not None:
            before, self.heard = self.heard, self.ring.sleep(timeout, self.heard)
            return self.heard != before
        try:
            self.bell.get(timeout=timeout)
        except queue.Empty:
            return False
        return True
