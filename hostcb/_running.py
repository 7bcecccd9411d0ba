"""Whether the current thread is inside a user function, so that work started from there is known for what it is."""

from __future__ import annotations

import threading
from typing import Any

from ._thread_states import keeper


class Frame:
    """What a thread is doing. Handlers change it in place, since a context manager would cost as much as a tap."""

    __slots__ = ("depth", "execution", "holds_gang", "pending")

    def __init__(self) -> None:
        # How many user functions this thread is inside of.
        self.depth = 0
        # Whether the innermost holds up a program on several devices.
        self.holds_gang = False
        # The innermost execution that this thread is dispatching, if any.
        self.execution: Any = None
        # The error with which the innermost native dispatch will end, if any; see `_native`.
        self.pending: Any = None


class _Running(threading.local):
    def __init__(self) -> None:
        # The first that a callback does in a thread, and once for each unless its state is lost.
        keeper.keep()
        self.frame = Frame()


running = _Running()


def inside_callback() -> bool:
    return running.frame.depth > 0
