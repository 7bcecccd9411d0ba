"""A shorter switch interval of Python's, while callbacks have to wait for the interpreter lock (H25).

A callback that finds the lock taken by a thread that computes waits for the switch interval, and the device waits with
it: 5 ms by default. A shorter interval costs all threads of the process that compute in Python. So hostcb shortens it
only after it has seen a callback wait, and only for `HELD_SECONDS`:

1. Every eighth callback looks at the clock. Callbacks that wait for the lock begin an interval apart.
2. After such pauses, which may also be the device's own work, the callback lets go of the lock for a moment, and
   measures how long it takes to get the lock back.
3. If that takes most of the interval, twice in a row, a thread shortens the interval, sleeps, and restores it. After
   that, the next callback that waits begins again.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import time
from time import monotonic

from .._spec import flags

# On some machines the clock costs a tenth of a callback.
CALLBACKS_FOR_CLOCK = 8
# The shortest mean pause before a callback that is worth a look, in seconds, and the longest: callbacks that come less
# often lose little time by waiting.
LEAST_PAUSE = 5e-4
LONGEST_PAUSE = 0.1
# The most that looks may cost: one in so many seconds, and how long each of them lets go of the lock.
LOOK_SECONDS = 0.1
LET_GO_SECONDS = 1e-4
# Another process may have the core when the callback wants to go on. It seldom has it twice.
LOOKS = 2
HELD_SECONDS = 1.0
# For so long it looks whether somebody who has set another interval puts back the shortened one.
WATCHED_SECONDS = 60.0


def reported(seconds: float) -> float:
    """Return what Python reports after it has got this interval: it cuts off fractions of a microsecond."""
    return 1e-6 * int(1e6 * seconds)


def is_now(seconds: float) -> bool:
    """Return whether this is the interval, or what a program made of it that has read it and put it back."""
    return sys.getswitchinterval() in (seconds, reported(seconds))


def waits_for_lock(interval: float) -> bool:
    """Return whether another thread keeps the interpreter lock for most of the interval, as soon as it gets it."""
    begin = monotonic()
    time.sleep(LET_GO_SECONDS)
    return monotonic() - begin > LET_GO_SECONDS + interval / 2


class SwitchInterval:
    """Notices that callbacks wait for the interpreter lock, and shortens the interval for a while.

    There is no lock: a signal handler or a finalizer may run callbacks in the middle of each function here. One thread
    at a time changes the interval, and no interrupt comes in that thread.
    """

    def __init__(self) -> None:
        # How many have begun, or a little less: other threads count at the same time.
        self._begun = 0
        self._last_time = monotonic()
        self._next_look = 0.0
        # The thread that changes the interval holds it.
        self._changing = _thread.allocate_lock()
        # The interval before, and ours as Python reports it; None while nothing is changed.
        self._change: tuple[float, float] | None = None

    def callback_begins(self) -> None:
        """Look whether callbacks wait; to be called by the thread of each callback before its function."""
        self._begun = begun = self._begun + 1
        if not begun % CALLBACKS_FOR_CLOCK:
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        now = monotonic()
        pause = (now - self._last_time) / CALLBACKS_FOR_CLOCK
        self._last_time = now
        if LEAST_PAUSE < pause < LONGEST_PAUSE and now > self._next_look:
            self._after_pause(pause, now)

    def _after_pause(self, pause: float, now: float) -> None:
        wanted, interval = flags.switch_interval.value, sys.getswitchinterval()
        if not wanted or interval <= wanted or pause < interval / 2:
            return
        self._next_look = now + LOOK_SECONDS
        if all(waits_for_lock(interval) for _ in range(LOOKS)):
            # Not by `threading`, which lets this thread wait until the new one runs: a finalizer in the new one might
            # wait for this callback. If the system gives no thread, the interval stays as it is.
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(self.shorten_for_a_while, (wanted,))

    def shorten_for_a_while(self, wanted: float) -> None:
        """Shorten the interval, and restore it after `HELD_SECONDS`, in a thread of its own."""
        changing = self._changing
        if not changing.acquire(blocking=False):
            return
        interval = sys.getswitchinterval()
        if interval > wanted:
            # Noted first: a fork may come between the two steps.
            self._change = interval, reported(wanted)
            sys.setswitchinterval(wanted)
            time.sleep(HELD_SECONDS)
            self._wait_for_others(interval, reported(wanted))
            self._restore()
        changing.release()

    def _wait_for_others(self, *known: float) -> None:
        """Wait while the interval is neither the shortened one nor the one before.

        1. This thread shortens the interval. 2. Another one reads it, and sets its own for a while. 3. Here the second
        is over. 4. The other thread puts back what it has read: it would stay, if nobody looked again.
        """
        for _ in range(round(WATCHED_SECONDS / HELD_SECONDS)):
            if any(map(is_now, known)):
                return
            time.sleep(HELD_SECONDS)

    def _restore(self) -> None:
        """Restore the interval, unless another part of the process has set it meanwhile."""
        change, self._change = self._change, None
        if change is not None and is_now(change[1]):
            # What Python reports may be a little less than a whole microsecond.
            sys.setswitchinterval(change[0] + 0.5e-6)

    def forked(self) -> None:
        """In a forked child, which has not the thread that would restore the interval."""
        self._changing = _thread.allocate_lock()
        self._restore()


switch_interval = SwitchInterval()
