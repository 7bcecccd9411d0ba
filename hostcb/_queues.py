"""A bounded queue of tapped values for each device, and the thread that runs their functions (H5, H11, H12)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from . import _flags
from ._callback import HostCallback

logger = logging.getLogger("hostcb")

# After its work a consumer looks once more before it goes to sleep: a tap that comes meanwhile need not wake it, and
# waking it costs more than the tap. In seconds; it bounds how late a lone tap can run, not how long anything takes.
LINGER = 1e-3

# While taps come in faster than so many in a linger, the consumer would only take the interpreter lock from the
# device: it sleeps on, each time twice as long and so often at most, until they stop or half of the queue is taken.
RAPID = 5
MOST_LINGERS = 4

# Small values cost more than their bytes, about 300 each, so their number is bounded too.
MOST_VALUES = 500_000


class Receiver(Protocol):
    """Whoever tapped: one callback in one program."""

    @property
    def callback(self) -> HostCallback: ...

    @property
    def nbytes(self) -> int:
        """The size of each of its values."""

    def deliver(self, device: Any, arrays: Sequence[np.ndarray]) -> None:
        """Run the user function on a value; nothing is raised."""


# Who tapped, and the value, until it has been delivered.
Item = list[Any]


class DeviceQueue:
    """First in, first out, for one device.

    At any time at most one thread runs the queue's functions: its consumer, or a thread of the runtime that cannot go
    on before the queue is empty (a call on this device) or has room (a tap). That keeps the order, spares a call the
    hand-over to another thread, and makes a full queue harmless: the thread that finds it full empties it.
    """

    def __init__(self, device: Any):
        self.device = device
        self.budget = _flags.max_queue_byte_size.value
        self._items: deque[Item] = deque()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._bytes = 0
        # The first of them, while its function runs.
        self._running: Item | None = None
        # How many threads wait for progress: to tell nobody costs as much as half a tap.
        self._waiting = 0
        # Whether a value has to wake or start the consumer.
        self._idle = True
        self._consumer: threading.Thread | None = None
        # Read without the lock by handlers: both only grow, and `finished` never passes `accepted`.
        self.accepted = 0
        self.finished = 0

    @property
    def busy(self) -> bool:
        return self.finished != self.accepted

    def put(self, receiver: Receiver, arrays: Sequence[np.ndarray]) -> None:
        """Take a value; where the queue is full, first run what is in it."""
        while True:
            with self._lock:
                if self._has_room(receiver.nbytes):
                    # Counted first: an interrupt comes after a call, and what is in the queue must be counted.
                    self._bytes += receiver.nbytes
                    self.accepted += 1
                    self._items.append([receiver, arrays])
                    if self._idle:
                        self._wake()
                    return
            self.make_room(receiver.nbytes)

    def make_room(self, nbytes: int) -> None:
        """Return when so many bytes have room, before a copy of them is made: what is in hand counts as well."""
        self._work_until(lambda: self._has_room(nbytes))

    def _has_room(self, nbytes: int) -> bool:
        if len(self._items) >= MOST_VALUES:
            return False
        # A value larger than the budget must get in some time: when nothing else is there.
        return self._bytes == 0 or self._bytes + nbytes <= self.budget

    def _wake(self) -> None:
        if self._consumer is None:
            self._start()
        else:
            self._idle = False
            self._work.notify()

    def drain(self) -> None:
        """Return when everything accepted so far has run; the calling thread helps."""
        upto = self.accepted
        if self.finished < upto:
            self._work_until(lambda: self.finished >= upto)

    def join(self) -> None:
        """As `drain`, but leave the work to the consumer, so that Ctrl-C ends the waiting and not a user function."""
        with self._lock:
            upto = self.accepted
            self._work.notify()
            while self.finished < upto and self._consumer is not None and self._consumer.is_alive():
                self._wait_for_progress()
        # At interpreter exit no thread can be started any more.
        self._work_until(lambda: self.finished >= upto)

    def waiting(self) -> list[str]:
        """The callbacks that have not ended, for a log."""
        with self._lock:
            return [str(receiver.callback) for receiver, _ in self._items]

    def stop(self) -> None:
        """Run everything, then end the consumer; the next value starts another."""
        self.join()
        with self._lock:
            consumer, self._consumer = self._consumer, None
            self._idle = True
            self._work.notify()
        if consumer is not None:
            consumer.join()

    def _work_until(self, reached: Callable[[], bool]) -> None:
        """Run the oldest value, or wait until another thread has run one, until `reached` says that it is enough.

        The calling thread may be interrupted anywhere, by Ctrl-C for one. What it runs then counts as run.
        """
        while True:
            item = None
            try:
                with self._lock:
                    if reached():
                        return
                    if self._running is not None or not self._items:
                        self._wait_for_progress()
                        continue
                    item = self._running = self._items[0]
                receiver: Receiver = item[0]
                receiver.deliver(self.device, item[1])
            finally:
                if item is not None:
                    # Its memory is free before others are told that there is room.
                    item[1] = None
                    self._end(item)

    def _end(self, item: Item) -> None:
        """Count what has run, whatever comes meanwhile; that is raised afterwards."""
        interrupt = None
        while True:
            try:
                with self._lock:
                    if self._running is item:
                        self._running = None
                        self._bytes -= item[0].nbytes
                        self.finished += 1
                        self._items.popleft()
                    if self._waiting:
                        self._progress.notify_all()
                break
            except BaseException as error:
                # Once more: no part of it does harm twice, and a part left out would.
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _wait_for_progress(self) -> None:
        self._waiting += 1
        try:
            self._progress.wait()
        finally:
            self._waiting -= 1

    def _start(self) -> None:
        consumer = threading.Thread(target=self._consume, name=f"hostcb-{self.device}", daemon=True)
        try:
            consumer.start()
        except RuntimeError:
            logger.debug("no consumer for %s at interpreter exit: the barrier there runs the rest", self.device)
        else:
            self._idle = False
            self._consumer = consumer

    def _consume(self) -> None:
        me = threading.current_thread()
        try:
            while self._is_consumer(me):
                self._work_until(lambda: not self._items or self._consumer is not me)
                with self._lock:
                    # Not idle yet: whatever comes within the linger is found without having had to wake anybody.
                    self._linger()
                    if not self._items and self._consumer is me:
                        self._idle = True
                        self._work.wait()
                        # A later one may have been started meanwhile, and it is that one's.
                        if self._consumer is me:
                            self._idle = False
        finally:
            with self._lock:
                if self._consumer is me:
                    # Something got out that ends threads; the next value starts another.
                    self._consumer, self._idle = None, True
                    if self._waiting:
                        self._progress.notify_all()

    def _is_consumer(self, thread: threading.Thread) -> bool:
        # With the lock, which whoever starts a consumer has until it is known as such.
        with self._lock:
            return self._consumer is thread

    def _linger(self) -> None:
        """With the lock held: sleep for a while, and on while values come in too fast to be worth the interruption."""
        for number in range(MOST_LINGERS):
            before, longer = self.accepted, 1 << number
            asked_for = self._work.wait(LINGER * longer)
            if asked_for or self.accepted - before < RAPID * longer or 2 * self._bytes > self.budget:
                return


class Queues(dict[Any, DeviceQueue]):
    """The queue of each device, made when it is first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def __missing__(self, device: Any) -> DeviceQueue:
        with self._lock:
            return self.setdefault(device, DeviceQueue(device))

    def all(self) -> list[DeviceQueue]:
        with self._lock:
            return list(self.values())

    def set_budget(self, budget: int) -> None:
        """What `jax.config.update` does to queues that exist."""
        for queue in self.all():
            queue.budget = budget

    def stop(self) -> None:
        """Drain and end every queue."""
        for queue in self.all():
            queue.stop()
        logger.debug("the consumers of tapped values have stopped")


queues = Queues()
_flags.max_queue_byte_size.listeners.append(queues.set_budget)
