"""Waiting until a deadline, also for an execution of JAX, whose own waiting has none (H30)."""

from __future__ import annotations

import math
import numbers
import threading
import time
from typing import Any, Protocol

from .._spec.naming import shown
from .progress import Progress

# Without a notification, as at exit, a thread looks again after so many seconds.
LOOK_AT_EXIT = 0.005


class Deadline:
    """A moment, so many seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds until the deadline, as many as a lock accepts."""
        return min(max(self._end - time.monotonic(), 0.0), threading.TIMEOUT_MAX)

    def has_passed(self) -> bool:
        return time.monotonic() >= self._end


def checked(name: str, seconds: Any) -> float:
    """Return a timeout as a number.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative or not a number (NaN).
    """
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(
            f"{name}: timeout must be a number of seconds or None, got {shown(seconds)} of {type(seconds)}."
        )
    try:
        value = float(seconds)
    except OverflowError:
        # A longer time than a number of this type can say.
        value = math.inf if seconds > 0 else -math.inf  # type: ignore[operator]
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name}: timeout must be a number of seconds from 0 on, or None, got {shown(seconds)}.")
    return value


class Waitable(Protocol):
    """What can only be waited for without a deadline, `programs.Execution`."""

    # The thread that does so for all barriers with a deadline.
    waiter: Waiter | None

    def done(self) -> bool: ...

    def wait(self) -> None: ...

    def followed(self) -> Any:
        """Start a program that ends after it, and return its result; None if that is not possible yet."""


# The waiters whose threads run.
_waiters: dict[Waiter, None] = {}


class Waiter(Progress):
    """A thread that waits for one execution. If a barrier gives up, the next one finds the same thread waiting.

    No `threading.Event`: a signal handler at a barrier could wait for the lock in it, which its own thread holds.
    """

    def __init__(self, waitable: Waitable) -> None:
        super().__init__()
        self._waitable = waitable
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._wait, name="hostcb-barrier-wait", daemon=True)
        _waiters[self] = None
        try:
            self._thread.start()
        except RuntimeError:
            # While the interpreter exits Python starts no threads; `ended_by` then asks now and then.
            _waiters.pop(self, None)

    def _wait(self) -> None:
        try:
            self._waitable.wait()
        except BaseException as error:
            self._error = error
        finally:
            self._ended = True
            self.tell()
            _waiters.pop(self, None)

    def join(self, deadline: Deadline | None = None) -> None:
        # An interrupt may have kept it from starting.
        if self._thread.ident is not None:
            self._thread.join(None if deadline is None else deadline.left())

    def has_ended(self) -> bool:
        return self._ended

    def abandon(self) -> None:
        """Let a barrier that goes on in a forked child look at what is outstanding there."""
        self._ended = True

    def ended_by(self, deadline: Deadline) -> bool:
        if self._thread.ident is not None:
            while not self._ended:
                if deadline.has_passed():
                    return False
                self._wait_for_progress(lambda: self._ended, deadline.left())
            if self._error is not None:
                raise self._error
            return True
        return seen_to_end(self._waitable, deadline)


def seen_to_end(waitable: Waitable, deadline: Deadline) -> bool:
    """As `ended_by`, but without a thread, which the exit would have to wait for: look again and again."""
    following: Any = None
    while not waitable.done():
        if deadline.has_passed():
            return False
        if following is None:
            following = waitable.followed()
        elif following.is_ready():
            # Its own token may not tell.
            waitable.wait()
            return True
        time.sleep(min(LOOK_AT_EXIT, deadline.left()))
    return True


def ended_by(waitable: Waitable, deadline: Deadline) -> bool:
    """Wait until an execution has ended; return False if it has not in time."""
    # Again if it has not: a fork ends the waiters of its child before what they wait for.
    while not waitable.done():
        waiter = waitable.waiter
        if waiter is None or waiter.has_ended():
            # Two threads may do this at once, and each waits with a thread of its own.
            waiter = waitable.waiter = Waiter(waitable)
        if not waiter.ended_by(deadline):
            return False
    return True


def join_waiters(deadline: Deadline) -> None:
    """Wait at exit for the threads of barriers that gave up: Python would end them in the middle of jaxlib."""
    for waiter in list(_waiters):
        waiter.join(deadline)


def forget_waiters() -> None:
    """In a forked child: the threads are the parent's."""
    for waiter in list(_waiters):
        waiter.abandon()
    _waiters.clear()
