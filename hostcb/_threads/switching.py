"""The interval after which a thread that computes hands over the interpreter lock (H25).

A callback that finds the lock taken waits for this interval, and the device waits with it: 5 ms by default. While a
program with callbacks is alive, hostcb shortens the interval of the process.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

from .._spec import flags


class SwitchInterval:
    """Shortens the interval while anything holds it, and restores it afterwards.

    An interval that another part of the process sets meanwhile stays.
    """

    def __init__(self) -> None:
        # Reentrant: the garbage collector may end a program while this thread holds it.
        self._lock = threading.RLock()
        self._holders = 0
        # The interval before, and ours as Python reports it; None where nothing has been changed.
        self._before: float | None = None
        self._ours: float | None = None

    def hold(self, owner: Any) -> None:
        """Shorten the interval as long as `owner` is alive."""
        with self._lock:
            self._holders += 1
            finalizer = weakref.finalize(owner, self._release)
            # The interpreter needs no interval after its end.
            finalizer.atexit = False
            self._apply(flags.switch_interval.value)

    def changed(self, wanted: float) -> None:
        """Apply a new value of the flag; `jax.config.update` calls this."""
        with self._lock:
            if self._holders:
                self._restore()
                self._apply(wanted)

    def forked(self) -> None:
        """In a forked child: a thread of the parent may have held the lock. The programs are the child's as well."""
        self._lock = threading.RLock()

    def _release(self) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders:
                self._restore()

    def _apply(self, wanted: float) -> None:
        now = sys.getswitchinterval()
        if self._before is not None or not wanted or now <= wanted:
            return
        sys.setswitchinterval(wanted)
        self._before, self._ours = now, sys.getswitchinterval()

    def _restore(self) -> None:
        if self._before is not None and sys.getswitchinterval() == self._ours:
            # Python cuts off fractions of a microsecond, and what it reports may be a little less than a whole one.
            sys.setswitchinterval(self._before + 0.5e-6)
        self._before = self._ours = None


switch_interval = SwitchInterval()
flags.switch_interval.listeners.append(switch_interval.changed)
