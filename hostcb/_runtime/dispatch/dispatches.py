"""One dispatch of a program: it lasts as long as an object that nothing but the dispatching call holds (H5, H13).

JAX reports the begin of a dispatch, and its end only if it does not raise. So the end is the death of an object,
the holder. For JAX's dispatch in Python it is on the value stack of the function that dispatches. For JAX's fast
dispatch it is a copy of the token operand, which the C++ function keeps until it returns or raises. Neither can outlive
the call, whatever exception ends it, and no later call can be mistaken for it. docs/architecture.md has the protocol.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ..._threads.progress import LOOK_AGAIN

H = TypeVar("H")
T = TypeVar("T")


class _Holder:
    """What a dispatch in Python holds."""

    __slots__ = ("__weakref__",)


class Dispatch:
    """The time from the begin of a dispatch until it has returned or raised.

    Before `held_by` it counts as ended. A caller makes its dispatch known only after `held_by` has returned, since an
    exception in there may keep the holder alive.
    """

    __slots__ = ("_ended", "_holder", "_lock")

    def __init__(self) -> None:
        # Locked as long as the holder lives. It only wakes threads.
        self._lock = threading.Lock()
        self._holder: weakref.ref[Any] | None = None
        self._ended = False

    def around(self, call: Callable[[], T]) -> T:
        """Begin, call `call` for a dispatch in Python, and end when it has returned or raised."""
        # The holder is on the value stack of this frame alone. In a variable a traceback would keep it.
        return (self.held_by(_Holder()), call())[1]

    def held_by(self, holder: H) -> H:
        """Begin, and return `holder`, whose death is the end. No variable of the caller may have it."""
        self._lock.acquire()
        # A method in C: Python runs no code and no signal handler in it.
        self._holder = weakref.ref(holder, self._lock.__exit__)  # type: ignore[arg-type]
        return holder

    def end(self) -> None:
        """End before the holder dies. Threads that wait see it when that dies, or at their next look."""
        self._ended = True

    def has_ended(self) -> bool:
        holder = self._holder
        return self._ended or holder is None or holder() is None

    def wait(self) -> None:
        """Wait until it has ended."""
        while not self.has_ended():
            if self._lock.acquire(timeout=LOOK_AGAIN):
                self._lock.release()
