"""The thread that runs the functions of a queue: how it sleeps, is woken, and lets values come together (H11)."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from .counters import QueueCounters
from .rings import Ring

logger = logging.getLogger("hostcb")

# After its work a consumer waits so many seconds before it becomes idle. A tap in this time need not wake it; waking it
# costs more than the tap. This bounds how late a lone tap can run.
LINGER_SECONDS = 1e-3

# If more than RAPID_VALUES taps come in a linger, the consumer sleeps on: it would only take the interpreter lock from
# the device. It sleeps MOST_LINGERS times, each twice as long, until the taps stop or half of the queue's budget is
# used.
RAPID_VALUES = 5
MOST_LINGERS = 4

# What comes faster than one value in so many seconds is not run as it comes, either.
QUICK_VALUE_SECONDS = 20e-6

# A woken thread finds cold caches: for one value it takes ten times as long as for one of many. So if values come at
# least once in this time, in seconds, and their functions take less than this share of it, they come together.
STEADY_SECONDS = 15e-3
STEADY_SHARE_OF_WORK = 0.25


class Queue(Protocol):
    """What a consumer asks of its queue, `device_queue.DeviceQueue`."""

    device: Any
    budget: int
    consumer: Consumer | None
    idle: bool
    lingering: bool
    counts: QueueCounters

    def is_pending(self) -> bool: ...

    def work_until(self, reached: Callable[[], bool]) -> None: ...

    def end(self) -> Callable[[], bool]: ...

    def tell(self) -> None: ...

    def start(self) -> None: ...

    def ever_accepted(self) -> int: ...

    def held(self) -> int: ...


class Consumer:
    """The thread that runs a queue's functions, and the bell that wakes it; any code may ring the bell."""

    def __init__(self, queue: Queue, ring: Ring | None):
        self._queue = queue
        # The bell of the ring, if there is one.
        self.ring = ring
        # What rang for an earlier consumer does not ring for this one.
        self.heard = 0 if ring is None else ring.sleep(0.0, 0)
        self.bell: SimpleQueue[None] = SimpleQueue()
        # When it last began to run functions.
        self._began = -math.inf
        # Whether its thread has come to its function.
        self.begun = False
        self.thread = threading.Thread(target=self._consume, name=f"hostcb-{queue.device}", daemon=True)

    def start(self) -> bool:
        """Start its thread, and return whether Python has done so: at interpreter exit it starts none."""
        starting[self] = None
        try:
            self.thread.start()
        except RuntimeError:
            logger.debug("no consumer for %s at interpreter exit: the barrier there runs the rest", self._queue.device)
            return False
        finally:
            starting.pop(self, None)
        return True

    def is_current(self) -> bool:
        return self.thread.ident == threading.get_ident()

    def wake(self) -> None:
        if self.ring is not None:
            self.ring.wake()
        else:
            self.bell.put(None)

    def sleep(self, timeout: float | None = None) -> bool:
        """Wait for the bell; False if it did not ring in time. Without a timeout, a value in the ring wakes it too."""
        if self.ring is not None:
            before, self.heard = self.heard, self.ring.sleep(timeout, self.heard)
            return self.heard != before
        try:
            self.bell.get(timeout=timeout)
        except Empty:
            return False
        with contextlib.suppress(Empty):
            # Who rang meanwhile has been heard as well.
            while True:
                self.bell.get_nowait()
        return True

    def _consume(self) -> None:
        self.begun = True
        queue = self._queue
        if queue.consumer is self:
            queue.idle = False
        ended = queue.counts.ended()
        try:
            while queue.consumer is self:
                self._attend()
                before, self._began = self._began, time.monotonic()
                self._work()
                # Not idle yet: a value that comes within the linger does not have to wake this thread.
                if self._is_steady(before):
                    self._sleep_through(STEADY_SECONDS)
                else:
                    self._linger()
                if queue.is_pending() or queue.consumer is not self:
                    continue
                queue.idle = True
                # Checked again: a value may have come before `idle` was set, and so has not woken this thread.
                if not queue.is_pending():
                    self.sleep()
                # `idle` belongs to the current consumer, which may be a later one.
                if queue.consumer is self:
                    queue.idle = False
        finally:
            try:
                if queue.consumer is self:
                    # An exception ends this thread; the next value starts another.
                    queue.consumer, queue.idle = None, True
                    if self.ring is not None:
                        self.ring.attend(False)
                    # What came before `idle` was set started none. One that has run no function is the last.
                    if queue.is_pending() and queue.counts.ended() != ended:
                        queue.start()
            finally:
                queue.tell()

    def _work(self) -> None:
        """Run what is there, and what comes meanwhile, unless that comes quickly: it had better come together."""
        queue = self._queue
        while queue.is_pending() and queue.consumer is self:
            before, began = queue.ever_accepted(), time.monotonic()
            self._work_until(queue.end())
            if (queue.ever_accepted() - before) * QUICK_VALUE_SECONDS > time.monotonic() - began:
                return

    def _work_until(self, ended: Callable[[], bool]) -> None:
        queue = self._queue
        queue.work_until(lambda: ended() or queue.consumer is not self)

    def _attend(self) -> None:
        """Let C accept values, unless another thread has stopped this consumer."""
        if self.ring is not None:
            self.ring.attend(True)
            if self._queue.consumer is not self:
                self.ring.attend(False)

    def _is_steady(self, began_before: float) -> bool:
        """Whether the thread began twice in a short time, and had little to do: it will catch up with what waits."""
        apart = self._began - began_before
        return apart < 2 * STEADY_SECONDS and time.monotonic() - self._began < STEADY_SHARE_OF_WORK * apart

    def _linger(self) -> None:
        """Sleep for a linger, and sleep on while values come in quickly."""
        queue = self._queue
        for number in range(MOST_LINGERS):
            before, longer = queue.ever_accepted(), 1 << number
            asked_for = self._sleep_through(LINGER_SECONDS * longer)
            if asked_for or queue.ever_accepted() - before < RAPID_VALUES * longer or 2 * queue.held() > queue.budget:
                return

    def _sleep_through(self, seconds: float) -> bool:
        """Sleep while values come in; return whether the bell rang."""
        queue = self._queue
        queue.lingering = True
        asked_for = self.sleep(seconds)
        if queue.consumer is self:
            # A later consumer may sleep on already.
            queue.lingering = False
        return asked_for


# The consumers for whose start another thread waits.
starting: dict[Consumer, None] = {}


def starts_here() -> bool:
    """Return whether this thread is a consumer's, and another thread waits for its start.

    1. A thread queues a value in the middle of a dispatch, and starts a consumer.
    2. Python lets it wait until the new thread has said that it runs.
    3. In the new thread, before it says so, a finalizer waits at a barrier, and the barrier for that dispatch.
    """
    return any(consumer.is_current() and not consumer.begun for consumer in list(starting))
