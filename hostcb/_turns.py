"""Devices of one program take turns to call back, where each does so again and again in quick succession.

Callbacks of several devices need one interpreter lock, and to hand it from thread to thread for each of them takes as
long as a callback. So a device whose turn it is calls undisturbed until it has called as often as it did in the
executions before, while the others wait outside of the lock. It is a guess that costs nothing but time where it is
wrong: whoever waits looks up now and then, and if the callbacks are not coming in quickly there are no turns any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

# Below, a turn is not worth its hand-over.
LEAST_CALLS = 32
# And so long is one at most.
MOST_CALLS = 1024
# Whoever waits looks up so often, in seconds, and by then all together should have called so many times, if not every
# time: consumers of taps may have the interpreter lock for some milliseconds.
LOOK_UP = 2e-3
LEAST_PROGRESS = 100
MOST_SLOW = 8


class Turns:
    """Whose turn it is. What is read and written without the lock may be wrong for a moment, and costs a turn then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # How often each device has called, in this execution and in the one before; how often it is expected to.
        self._calls: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._expected: dict[int, int] = {}
        self._holder: int | None = None
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._progress = 0
        self._given_up = False

    def execution_begins(self) -> None:
        """Called when none of the program's executions is under way: what was counted is of a whole one."""
        if self._given_up:
            return
        calls, self._calls = self._calls, {}
        if self._expected:
            if any(calls.values()):
                # Not what was expected.
                self._give_up()
        elif calls == self._before and len(calls) > 1 and min(calls.values()) >= LEAST_CALLS:
            self._expected = calls
        self._before = calls
        self._holder = None

    def taking(self, handler: Callable[..., None]) -> Callable[..., None]:
        """`handler`, when it is the turn of its device."""

        def in_turn(context: Any, first: Any, *buffers: Any) -> None:
            if self._given_up:
                return handler(context, first, *buffers)
            device = first.__dlpack_device__()[1]
            count = self._calls[device] = self._calls.get(device, 0) + 1
            if not self._expected:
                return handler(context, first, *buffers)
            self._progress += 1
            if self._holder != device:
                self._wait(device)
            try:
                return handler(context, first, *buffers)
            finally:
                if count == self._expected.get(device):
                    self._calls[device] = 0
                    self._pass_on(device)
                elif not count % MOST_CALLS:
                    self._pass_on(device)

        return in_turn

    def _wait(self, device: int) -> None:
        with self._lock:
            if self._holder is None:
                self._holder = device
            if self._holder == device or self._given_up:
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append((device, mine))
        slow = 0
        while not self._given_up:
            before = self._progress
            if mine.acquire(timeout=LOOK_UP):
                return
            slow = slow + 1 if self._progress - before < LEAST_PROGRESS else 0
            if slow == MOST_SLOW:
                self._give_up()

    def _pass_on(self, device: int) -> None:
        with self._lock:
            if self._holder != device:
                return
            self._holder = None
            if self._waiting:
                self._holder, theirs = self._waiting.popleft()
                theirs.release()

    def _give_up(self) -> None:
        with self._lock:
            self._given_up = True
            while self._waiting:
                self._waiting.popleft()[1].release()
