"""Whether the current thread is inside a user function, so that work started from there is known for what it is."""

from __future__ import annotations

import threading


class _Running(threading.local):
    depth: int = 0
    # Whether the function that runs holds up a program on several devices.
    holds_gang: bool = False


# Handlers count `depth` up and down themselves: a context manager would cost as much as the rest of a tap.
state = _Running()


def inside_callback() -> bool:
    return state.depth > 0
