"""A bounded queue of tapped values for each device, and the thread that runs their functions (H5, H11, H12).

A signal handler or a finalizer may tap, call or wait at a barrier in the middle of any function of this module, and an
interrupt may end the function there. So a lock protects only the running of user functions. Python takes and releases
it in one step, by a `with` statement of the lock itself. All other changes are single operations on a deque, or
statements without a call between them: CPython switches threads and runs signal handlers only after calls and jumps.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .. import _compat
from .._spec import flags
from .._spec.callback import HostCallback
from .running import inside_callback, locals_of, runs_callbacks

logger = logging.getLogger("hostcb")

# After its work a consumer waits so many seconds before it becomes idle. A tap in this time need not wake it; waking it
# costs more than the tap. This bounds how late a lone tap can run.
LINGER = 1e-3

# If more than RAPID taps come in a linger, the consumer sleeps on: it would only take the interpreter lock from the
# device. It sleeps MOST_LINGERS times, each twice as long, until the taps stop or half of the queue's budget is used.
RAPID = 5
MOST_LINGERS = 4

# A small value costs about 300 bytes, more than its own, so the number of values is bounded too.
MOST_VALUES = 500_000

# A waiting thread is notified when a user function ends. If an interrupt prevents the notification, the thread looks
# again after so many seconds.
LOOK_AGAIN = 0.1


class Receiver(Protocol):
    """One callback in one program; it receives values from the queue."""

    @property
    def callback(self) -> HostCallback: ...

    @property
    def nbytes(self) -> int:
        """The size of each of its values."""

    def deliver(self, device: Any, item: Item) -> None:
        """Take the value out of the item and run the user function on it, without raising."""


# A receiver and a value. The value becomes None when its function begins, and the receiver when the function ends.
Item = list[Any]


class Consumer:
    """The thread that runs a queue's functions, and the bell that wakes it; any code may ring the bell."""

    def __init__(self, device: Any, consume: Callable[[Consumer], None]):
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=consume, args=(self,), name=f"hostcb-{device}", daemon=True)

    def is_current(self) -> bool:
        return self.thread.ident == threading.get_ident()

    def sleep(self, timeout: float | None = None) -> bool:
        """Wait for the bell; False if it did not ring in time."""
        try:
            self.bell.get(timeout=timeout)
        except queue.Empty:
            return False
        return True


class DeviceQueue:
    """First in, first out, for one device.

    At most one thread at a time runs the queue's functions: the consumer, or a thread of the runtime that waits for an
    empty queue (a call on this device) or for room (a tap). This keeps the order and spares a call the hand-over to
    another thread. A full queue cannot deadlock, since the thread that finds it full empties it.
    """

    def __init__(self, device: Any):
        self.device = device
        self.budget = flags.max_queue_byte_size.value
        # The items whose functions have not ended, the oldest first.
        self.items: deque[Item] = deque()
        self._bytes = 0
        # The thread that runs the oldest item's function holds it.
        self._baton = threading.Lock()
        # A lock for each thread that waits until a function has ended.
        self._waiting: deque[Any] = deque()
        # Whether a value has to wake or start the consumer.
        self._idle = True
        self._consumer: Consumer | None = None
        # How many values this queue has ever accepted.
        self._accepted = 0

    def put(self, receiver: Receiver, arrays: Sequence[np.ndarray]) -> None:
        """Accept a value; if the queue is full, first run the oldest values in this thread."""
        nbytes = receiver.nbytes
        while True:
            if len(self.items) < MOST_VALUES:
                # The bytes are added before the check, since other threads add theirs at the same time.
                self._bytes += nbytes
                if self._bytes <= self.budget or self._bytes == nbytes:
                    self._accepted += 1
                    self.items.append([receiver, arrays])
                    break
                self._bytes -= nbytes
            self.make_room(nbytes)
        if self._idle:
            self._wake()

    def make_room(self, nbytes: int) -> None:
        """Return when the queue has room for so many bytes; called before a large value is copied."""
        self._work_until(lambda: self._has_room(nbytes))

    def _has_room(self, nbytes: int) -> bool:
        if len(self.items) >= MOST_VALUES:
            return False
        # A value larger than the budget is accepted when the queue is empty.
        return self._bytes == 0 or self._bytes + nbytes <= self.budget

    def drain(self) -> None:
        """Return when all values accepted so far have run; the calling thread runs them too."""
        last = self._newest()
        if last is not None:
            self._work_until(lambda: last[0] is None)

    def join(self) -> None:
        """As `drain`, but let the consumer run the values, so that Ctrl-C ends the waiting and not a user function."""
        last = self._newest()
        if last is None:
            return
        consumer = self._consumer
        # A finalizer may call this in the consumer, or a signal handler in the thread that runs the oldest item.
        if consumer is not None and not consumer.is_current() and not self._is_run_here():
            consumer.bell.put(None)
            while last[0] is not None and self._consumer is consumer and consumer.thread.is_alive():
                self._wait_for_progress(lambda: last[0] is None)
        # At interpreter exit Python starts no thread, so there may be no consumer.
        self._work_until(lambda: last[0] is None)

    def _newest(self) -> Item | None:
        try:
            return self.items[-1]
        except IndexError:
            return None

    def waiting(self) -> list[str]:
        """Return the callbacks of the values that have not run, for a log."""
        receivers = [item[0] for item in list(self.items)]
        return [str(receiver.callback) for receiver in receivers if receiver is not None]

    def stop(self) -> None:
        """Run all values, then end the consumer; the next value starts another."""
        self.join()
        consumer, self._consumer, self._idle = self._consumer, None, True
        if consumer is not None:
            consumer.bell.put(None)
            if consumer.thread.is_alive() and not consumer.is_current():
                consumer.thread.join()

    def disown(self) -> None:
        """Drop the items in a forked child: the parent process runs them."""
        # A queued function may itself have forked. It is the oldest item's and returns in the child; that item stays.
        items = list(self.items)
        count = 1 if items and items[0][1] is None and self._is_run_here() else 0
        kept, gone = items[:count], items[count:]
        self.items = deque(kept)
        self._bytes = sum(item[0].nbytes for item in kept)
        self._consumer, self._idle, self._baton = None, True, threading.Lock()
        for item in gone:
            # Marked as ended, for a loop that waits for them.
            item[:] = None, None

    def _work_until(self, reached: Callable[[], bool]) -> None:
        """Run the oldest value, or wait until another thread has run one, until `reached()` is true."""
        while not reached():
            if self.items and not self._baton.locked():
                self._take_turn(reached)
                if self._waiting:
                    self._tell()
            elif self.items and self._is_run_here():
                # A finalizer or a signal handler in a thread that holds the baton: no other thread can run the values.
                self._run_oldest()
            else:
                self._wait_for_progress(lambda: reached() or not self._baton.locked())

    @runs_callbacks
    def _take_turn(self, reached: Callable[[], bool]) -> None:
        """Run the oldest value, unless another thread was faster.

        A thread that holds the baton counts as inside a callback: it must not wait for threads that wait for the baton.
        """
        with self._baton:
            if self.items and not reached():
                self._run_oldest()

    def _is_run_here(self) -> bool:
        """Return whether this thread is in the middle of `_take_turn`."""
        return any(names.get("self") is self for names in locals_of(DeviceQueue._take_turn))

    def _run_oldest(self) -> None:
        """Run the function of the oldest value, in the thread that holds the baton.

        An interrupt, such as Ctrl-C, may come anywhere. A function that has begun then counts as run, and a value whose
        function has not begun stays in the queue.
        """
        try:
            item = self.items[0]
        except IndexError:
            # A nested call has run it; see `_work_until`.
            return
        try:
            if item[1] is not None:
                item[0].deliver(self.device, item)
        finally:
            if item[1] is None and item[0] is not None:
                # These two come before the call, so that no interrupt comes between them.
                self._bytes -= item[0].nbytes
                item[0] = None
                self.items.popleft()

    def _tell(self) -> None:
        """Notify all waiting threads that a function has ended."""
        while True:
            try:
                self._waiting.popleft().release()
            except IndexError:
                return

    def _wait_for_progress(self, enough: Callable[[], bool]) -> None:
        """Wait until another function has ended, unless `enough()` is already true."""
        notified = threading.Lock()
        notified.acquire()
        self._waiting.append(notified)
        # Checked after the lock is in `_waiting`: a function may have ended before, without a notification to this one.
        if not enough():
            notified.acquire(timeout=LOOK_AGAIN)

    def _wake(self) -> None:
        consumer = self._consumer
        if consumer is None or not consumer.thread.is_alive():
            self._start()
        else:
            self._idle = False
            consumer.bell.put(None)

    def _start(self) -> None:
        # If several threads start a consumer at once, the last one stays, and the others end at once.
        consumer = self._consumer = Consumer(self.device, self._consume)
        try:
            consumer.thread.start()
        except RuntimeError:
            logger.debug("no consumer for %s at interpreter exit: the barrier there runs the rest", self.device)
            self._consumer = None

    def _consume(self, me: Consumer) -> None:
        if self._consumer is me:
            self._idle = False
        try:
            while self._consumer is me:
                self._work_until(lambda: not self.items or self._consumer is not me)
                # Not idle yet: a value that comes within the linger does not have to wake this thread.
                self._linger(me)
                if self.items or self._consumer is not me:
                    continue
                self._idle = True
                # Checked again: a value may have come before `_idle` was set, and so has not woken this thread.
                if not self.items:
                    me.sleep()
                # `_idle` belongs to the current consumer, which may be a later one.
                if self._consumer is me:
                    self._idle = False
        finally:
            if self._consumer is me:
                # An exception ends this thread; the next value starts another.
                self._consumer, self._idle = None, True
            self._tell()

    def _linger(self, me: Consumer) -> None:
        """Sleep for a linger, and sleep on while values come in quickly."""
        for number in range(MOST_LINGERS):
            before, longer = self._accepted, 1 << number
            asked_for = me.sleep(LINGER * longer)
            if asked_for or self._accepted - before < RAPID * longer or 2 * self._bytes > self.budget:
                return


class Queues(dict[Any, DeviceQueue]):
    """The queue of each device, made at its first use."""

    def __missing__(self, device: Any) -> DeviceQueue:
        return self.setdefault(device, DeviceQueue(device))

    def all(self) -> list[DeviceQueue]:
        return list(self.values())

    def set_budget(self, budget: int) -> None:
        """Set the budget of the existing queues, when `jax.config.update` changes it."""
        for each in self.all():
            each.budget = budget

    def stop(self) -> None:
        """Drain and end every queue."""
        for each in self.all():
            each.stop()
        logger.debug("the consumers of tapped values have stopped")

    def forget_devices(self) -> None:
        """Run the queues of devices that are gone to their end, and drop these queues."""
        if inside_callback():
            # Waiting here would wait for this callback. The consumers run the rest, and these queues stay, empty.
            return
        self.stop()
        self.clear()


queues = Queues()
flags.max_queue_byte_size.listeners.append(queues.set_budget)
_compat.on_backends_cleared(queues.forget_devices)
