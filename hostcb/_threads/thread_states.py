"""Keep the Python thread states of the runtime's threads from one callback to the next.

When a thread that Python did not start enters the interpreter, Python makes a thread state, and deletes it when the
thread leaves. This maps and unmaps pages and interrupts all other cores, which takes ten times as long as a callback.
An unmatched `PyGILState_Ensure` keeps the thread state. So the first callback in a thread calls it once. A kept state
takes 16 KiB and the thread's local variables.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable

# A runtime has a fixed number of threads. If one started a new thread for each callback, this limits the kept states.
MOST_KEPT = 1024


def _entering() -> Callable[[], int] | None:
    with contextlib.suppress(AttributeError):
        enter = ctypes.pythonapi.PyGILState_Ensure
        enter.argtypes, enter.restype = (), ctypes.c_int
        return enter
    return None


class ThreadStateKeeper:
    """Keeps the thread states of threads that ask for it."""

    def __init__(self) -> None:
        self._enter = _entering()
        self.kept = 0

    def keep(self) -> None:
        """Keep the state of the current thread, if Python did not start it."""
        if self._enter is None or self.kept >= MOST_KEPT or is_pythons():
            return
        self.kept += 1
        self._enter()


def is_pythons() -> bool:
    """Return whether Python started the current thread; such a thread always has a state."""
    me = threading.get_ident()
    return any(thread.ident == me and not is_dummy(thread) for thread in threading.enumerate())


def is_hostcbs() -> bool:
    """Return whether the current thread is one of hostcb's own: another thread may wait for its end."""
    me = threading.get_ident()
    return any(thread.ident == me and thread.name.startswith("hostcb-") for thread in threading.enumerate())


def is_dummy(thread: threading.Thread) -> bool:
    """Return whether Python did not start the thread: `threading.current_thread` has made an object for it."""
    return thread.name.startswith("Dummy-")


keeper = ThreadStateKeeper()


def stay() -> None:
    """Keep this thread here, without the interpreter lock: it never asks for it again, however the process ends."""
    never = threading.Lock()
    never.acquire()
    never.acquire()
