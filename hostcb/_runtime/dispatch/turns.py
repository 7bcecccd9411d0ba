"""The devices of one program take turns to call back, if each of them calls back in quick succession.

All callbacks need the one interpreter lock, and handing it to another thread takes as long as a callback. So during its
turn only one device calls, as often as it did in the executions before, and the others wait without the interpreter
lock. If this guess is wrong, it costs only time: a waiting device checks the progress now and then, and ends the turns
for good if callbacks are slow.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ..._threads.running import called_by_runtime

# A turn of fewer calls is not worth its hand-over.
LEAST_CALLS = 32
# The calls of one turn at most.
MOST_CALLS = 1024
# A waiting device checks the progress every LOOK_UP seconds. Fewer than LEAST_PROGRESS calls of all devices are slow.
# MOST_SLOW slow checks in a row end the turns; one may be slow because consumers of taps hold the interpreter lock.
LOOK_UP = 2e-3
LEAST_PROGRESS = 100
MOST_SLOW = 8


class Turns:
    """The turns of one program's devices. A value read without the lock may be stale, which costs one turn at most."""

    def __init__(self) -> None:
        # Re-entrant, since a finalizer may run anywhere and may run programs.
        self._lock = threading.RLock()
        # Calls of each device: in this execution, in the one before, and expected.
        self._calls: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._expected: dict[int, int] = {}
        self._holder: int | None = None
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._progress = 0
        self._given_up = False

    def execution_begins(self) -> None:
        """Start a new count; called when no other execution of the program runs, so the last count is complete."""
        if self._given_up:
            return
        calls, self._calls = self._calls, {}
        if self._expected:
            if any(calls.values()):
                # The last execution did not make the expected calls.
                self._give_up()
        elif calls == self._before and len(calls) > 1 and min(calls.values()) >= LEAST_CALLS:
            self._expected = calls
        self._before = calls
        self._holder = None

    def taking(self, handler: Callable[..., None], program: Any) -> Callable[..., None]:
        """Return a handler that runs `handler` when it is its device's turn."""

        @called_by_runtime
        def in_turn(context: Any, first: Any, *buffers: Any, program: Any = program) -> None:
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
