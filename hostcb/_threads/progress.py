"""Threads that wait until a queue has run another function."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

# A waiting thread is notified when a user function ends. If an interrupt prevents the notification, the thread looks
# again after so many seconds.
LOOK_AGAIN = 0.1


class Progress:
    """Notifies threads of the end of a function. Each change is a single operation on a deque."""

    def __init__(self) -> None:
        # A lock for each thread that waits until a function has ended.
        self._waiting: deque[Any] = deque()

    def tell(self) -> None:
        """Notify all waiting threads that a function has ended."""
        while True:
            try:
                self._waiting.popleft().release()
            except IndexError:
                return

    def _wait_for_progress(self, enough: Callable[[], bool], timeout: float = LOOK_AGAIN) -> None:
        """Wait until another function has ended, unless `enough()` is already true."""
        notified = threading.Lock()
        notified.acquire()
        self._waiting.append(notified)
        # Checked after the lock is in `_waiting`: a function may have ended before, without a notification to this one.
        if not enough():
            notified.acquire(timeout=min(timeout, LOOK_AGAIN))
