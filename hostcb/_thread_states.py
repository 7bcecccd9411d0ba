"""Thread states of the runtime's threads, kept from one callback to the next.

When a thread that Python did not start enters the interpreter, Python makes a state for it, and takes it down when the
thread leaves: pages are mapped and unmapped, and all other cores are told so, which takes ten times as long as a
callback. Whoever enters once more than it leaves keeps the state. So the first callback in a thread does; it takes 16
KiB and what is local to the thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable

# A runtime has a fixed number of threads. One that made a new thread for each callback must not leave as many states.
MOST_KEPT = 1024


def _entering() -> Callable[[], int] | None:
    if sys.implementation.name != "cpython":
        return None
    with contextlib.suppress(AttributeError):
        enter = ctypes.pythonapi.PyGILState_Ensure
        enter.argtypes, enter.restype = (), ctypes.c_int
        return enter
    return None


class Keeper:
    """Keeps the state of the threads that ask for it."""

    def __init__(self) -> None:
        self._enter = _entering()
        self.kept = 0

    def keep(self) -> None:
        """Keep that of the current thread, if Python did not start it."""
        if self._enter is None or self.kept >= MOST_KEPT or _is_pythons():
            return
        self.kept += 1
        self._enter()


def _is_pythons() -> bool:
    """Whether Python started the current thread: such a thread has a state anyway."""
    me = threading.get_ident()
    # What asks for the current thread where Python started none gets a stand-in.
    return any(thread.ident == me and not thread.name.startswith("Dummy-") for thread in threading.enumerate())


keeper = Keeper()
