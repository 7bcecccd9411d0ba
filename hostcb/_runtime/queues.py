"""A bounded queue of tapped values for each device; `consumers` has the thread that runs their functions (H5, H12).

A signal handler or a finalizer may tap, call or wait at a barrier in the middle of any function of this module, and an
interrupt may end the function there. So a lock protects only the running of user functions. Python takes and releases
it in one step, by a `with` statement of the lock itself. All other changes are single operations on a deque, or
statements without a call between them: CPython switches threads and runs signal handlers only after calls and jumps.

A queue may have a ring, into which the library in C writes values without the interpreter lock (`rings`). A value that
Python accepts notes how far the ring had come, so the two are one sequence.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from .. import _compat
from .._spec import flags
from . import sites
from .consumers import Consumer
from .counts import Counts, retire
from .deadlines import Deadline
from .items import Item, Receiver
from .progress import Progress
from .rings import Record, Ring
from .running import inside_callback, locals_of, runs_callbacks

logger = logging.getLogger("hostcb")

# A value wakes a consumer that sleeps on if so many bytes wait. Their memory is used again when their functions have
# ended, and by then the processor's caches should still have it.
CACHED = 1 << 20

# A small value costs about 300 bytes, more than its own, so the number of values is bounded too.
MOST_VALUES = 500_000


class DeviceQueue(Progress):
    """First in, first out, for one device.

    At most one thread at a time runs the queue's functions: the consumer, or a thread of the runtime that waits for an
    empty queue (a call on this device) or for room (a tap). This keeps the order and spares a call the hand-over to
    another thread. A full queue cannot deadlock, since the thread that finds it full empties it.
    """

    def __init__(self, device: Any):
        super().__init__()
        self.device = device
        self.budget = flags.max_queue_byte_size.value
        # The items whose functions have not ended, the oldest first.
        self.items: deque[Item] = deque()
        self._bytes = 0
        # The thread that runs the oldest item's function holds it; its number.
        self._baton = threading.Lock()
        self._runner: int | None = None
        # Whether a value has to wake or start the consumer.
        self.idle = True
        # Whether the consumer sleeps on, and may be woken.
        self.lingering = False
        # The current one; an earlier one ends.
        self.consumer: Consumer | None = None
        self.counts = Counts()
        # The ring of values that C accepts, and the oldest of them if its function has begun.
        self.ring: Ring | None = None
        self._rings: dict[None, Ring] = {}
        self._first: Item | None = None

    def bind(self, site: sites.Site) -> None:
        """Let the executable whose handler this thread runs hand its values over to this queue's ring."""
        ring = self.ring
        if ring is None:
            # Several threads may do this at once.
            ring = self._rings.setdefault(None, Ring(self.budget, MOST_VALUES, site.pinned))
            self.counts.ring = self.ring = ring
            self._publish()
        consumer = self.consumer
        if consumer is not None and consumer.ring is not ring:
            # It sleeps without the ring. The next value of the queue starts another.
            self.consumer, self.idle = None, True
            consumer.wake()
            if self.items:
                # The next value may run at once, without the queue.
                self.start()
        site.bind(ring)

    def is_pending(self) -> bool:
        """Whether a value's function has not ended."""
        ring = self.ring
        return bool(self.items) or (ring is not None and ring.counters.tail > ring.run)

    def has_nested(self) -> bool:
        """Whether a value waits whose program was started from inside a callback; C accepts none of these."""
        receivers = [item[0] for item in list(self.items)]
        return any(receiver is not None and receiver.nested for receiver in receivers)

    def put(self, receiver: Receiver, arrays: Sequence[np.ndarray], waits: bool = True) -> None:
        """Accept a value; if the queue is full and the thread may wait, first run the oldest values in this thread."""
        nbytes = receiver.nbytes
        while True:
            ring = self.ring
            if not waits or len(self.items) + (0 if ring is None else ring.held()[0]) < MOST_VALUES:
                # The bytes are added before the check, since other threads add theirs at the same time.
                self._bytes += nbytes
                if ring is None:
                    held = self._bytes
                else:
                    ring.counters.outside_bytes = self._bytes
                    held = self._bytes + ring.held()[1]
                if held <= self.budget or held == nbytes or not waits:
                    self.counts.accepted += 1
                    self.counts.accepted_bytes += nbytes
                    self.items.append([receiver, arrays, 0 if ring is None else ring.counters.tail])
                    self._publish()
                    break
                self._bytes -= nbytes
                self._publish()
            self.make_room(nbytes)
        if self.idle or (self.lingering and held >= CACHED):
            self._wake()

    def _publish(self) -> None:
        """Tell C what Python holds."""
        ring = self.ring
        if ring is not None:
            counters = ring.counters
            counters.outside_values = len(self.items)
            # No call and so no other thread comes between reading and telling of each of these.
            counters.outside_bytes = self._bytes
            counters.budget = self.budget

    def make_room(self, nbytes: int) -> None:
        """Return when the queue has room for so many bytes; called before a large value is copied."""
        if not self._has_room(nbytes):
            with self.counts.waiting_for_room():
                self.work_until(lambda: self._has_room(nbytes))

    def _has_room(self, nbytes: int) -> bool:
        values, held = len(self.items), self._bytes
        ring = self.ring
        if ring is not None:
            ring.give_back(at_once=True)
            of_ring = ring.held()
            values, held = values + of_ring[0], held + of_ring[1]
        # A value larger than the budget is accepted when the queue is empty.
        return values < MOST_VALUES and (held == 0 or held + nbytes <= self.budget)

    def drain(self) -> None:
        """Return when all values accepted so far have run; the calling thread runs them too."""
        if self.is_pending():
            self.work_until(self.end())

    def join(self) -> None:
        """As `drain`, but let the consumer run the values, so that Ctrl-C ends the waiting and not a user function."""
        if not self.is_pending():
            return
        ended = self.end()
        consumer = self.consumer
        # A finalizer may call this in the consumer, or a signal handler in the thread that runs the oldest item.
        if consumer is not None and not consumer.is_current() and not self._is_run_here():
            consumer.wake()
            while not ended() and self.consumer is consumer and consumer.thread.is_alive():
                self._wait_for_progress(ended)
        # At interpreter exit Python starts no thread, so there may be no consumer.
        self.work_until(ended)

    def join_by(self, deadline: Deadline) -> bool:
        """As `join`, but return False if the values have not run in time. This thread runs none of them."""
        ended = self.end()
        woken: Consumer | None = None
        while not ended():
            consumer = self.consumer
            if consumer is None or consumer.is_current() or not consumer.thread.is_alive():
                # A finalizer in the consumer holds it up, and so this barrier; another takes its place.
                self.start()
                if self.consumer is None:
                    # At interpreter exit Python starts no thread.
                    self.work_until(ended)
            elif consumer is not woken:
                woken = consumer
                consumer.wake()
            if deadline.has_passed():
                return False
            self._wait_for_progress(ended, deadline.left())
        return True

    def end(self) -> Callable[[], bool]:
        """Return a function that tells whether all values accepted so far have run."""
        try:
            last: Item = self.items[-1]
        except IndexError:
            last = [None, None]
        ring = self.ring
        if ring is None:
            return lambda: last[0] is None
        tail = ring.counters.tail
        return lambda: last[0] is None and ring.run >= tail

    def waiting(self) -> list[tuple[str, str]]:
        """Return the callbacks of the values whose functions have not ended: the one that `runs`, those that wait."""
        items = [(item[0], item[1]) for item in list(self.items)]
        found = [(receiver, value is None) for receiver, value in items if receiver is not None]
        if self.ring is not None:
            first = self._first
            begun = first is not None and first[1] is None
            of_ring = sites.waiting(self.ring)
            found = [(receiver, begun and number == 0) for number, receiver in enumerate(of_ring)] + found
        first_running = sorted(found, key=lambda each: not each[1])
        return [(str(receiver.callback), "runs" if begun else "waits") for receiver, begun in first_running]

    def stop(self) -> None:
        """Run all values, then end the consumer; the next value starts another."""
        self.join()
        consumer, self.consumer, self.idle = self.consumer, None, True
        if self.ring is not None:
            self.ring.attend(False)
        if consumer is not None:
            consumer.wake()
            if consumer.thread.is_alive() and not consumer.is_current():
                consumer.thread.join()
        # C may have accepted values until `attend`.
        self.join()
        if self.ring is not None:
            self.ring.trim()

    def disown(self) -> None:
        """Drop the items in a forked child: the parent process runs them."""
        # A queued function may itself have forked. It is the oldest item's and returns in the child; that item stays.
        items = list(self.items)
        count = 1 if items and items[0][1] is None and self._is_run_here() else 0
        kept, gone = items[:count], items[count:]
        self.items = deque(kept)
        self._bytes = sum(item[0].nbytes for item in kept)
        self.consumer, self.idle, self._baton = None, True, threading.Lock()
        if self.ring is not None:
            self.ring.disown()
            self._first = None
            self._publish()
        for item in gone:
            # Marked as ended, for a loop that waits for them.
            item[:] = None, None

    def work_until(self, reached: Callable[[], bool]) -> None:
        """Run the oldest value, or wait until another thread has run one, until `reached()` is true."""
        while not reached():
            if self.is_pending() and not self._baton.locked():
                self._take_turn(reached)
                if self._waiting:
                    self.tell()
            elif self.is_pending() and self._is_run_here():
                # A finalizer or a signal handler in a thread that holds the baton: no other thread can run the values.
                self._run_oldest()
            elif not self.is_pending() and self._awaits_copies():
                self.ring.wait_for_copies()  # type: ignore[union-attr]
            else:
                self._wait_for_progress(lambda: reached() or not self._baton.locked())

    def _awaits_copies(self) -> bool:
        """Return whether all values that hold the queue's room are still being copied, by threads of a CPU device."""
        ring = self.ring
        return ring is not None and not ring.pinned and ring.is_expecting()

    @runs_callbacks
    def _take_turn(self, reached: Callable[[], bool]) -> None:
        """Run the oldest value, unless another thread was faster.

        A thread that holds the baton counts as inside a callback: it must not wait for threads that wait for the baton.
        """
        with self._baton:
            self._runner = threading.get_ident()
            if self.is_pending() and not reached():
                self._run_oldest()
            self._runner = None

    def is_run_by(self, threads: Collection[int]) -> bool:
        """Return whether one of these threads runs the oldest value."""
        return self._runner in threads and self._baton.locked()

    def _is_run_here(self) -> bool:
        """Return whether this thread is in the middle of `_take_turn`."""
        return any(names.get("self") is self for names in locals_of(DeviceQueue._take_turn))

    def _run_oldest(self) -> None:
        """Run the function of the oldest value, in the thread that holds the baton.

        An interrupt, such as Ctrl-C, may come anywhere. A function that has begun then counts as run, and a value whose
        function has not begun stays in the queue.
        """
        ring = self.ring
        if ring is not None:
            record = self._oldest_in(ring)
            if record is not None:
                self._run_record(ring, record)
                return
        try:
            item = self.items[0]
        except IndexError:
            # A nested call has run it; see `work_until`.
            return
        try:
            if item[1] is not None:
                item[0].deliver(self.device, item)
        finally:
            if item[1] is None and item[0] is not None:
                # These two come before the call, so that no interrupt comes between them.
                self._bytes -= item[0].nbytes
                self.counts.ended_bytes += item[0].nbytes
                self.counts.ended += 1
                item[0] = None
                self.items.popleft()
                self._publish()

    def _oldest_in(self, ring: Ring) -> Record | None:
        """Return the ring's oldest record if it is older than all items.

        Between the last look at the ring and the look at the items there is no call: in a call, C and then Python may
        accept a value, and the later one would seem to be the older one.
        """
        while ring.counters.tail > ring.run:
            record = ring.oldest()
            item = self.items[0] if self.items else None
            if record is not None:
                return record if item is None or record[2] <= item[2] else None
        return None

    def _run_record(self, ring: Ring, record: Record) -> None:
        """As `_run_oldest`, for a value in the ring; its memory is free for C after its function has ended."""
        if record[2] <= ring.run:
            # A finalizer or a signal handler has run it.
            return
        item = self._first
        if item is None or item[0] is None:
            item = sites.item_of(ring, record)
            if item is None or record[2] <= ring.run:
                return
            self._first = item
        try:
            if item[1] is not None:
                item[0].deliver(self.device, item)
        finally:
            if item[1] is None and item[0] is not None:
                # No call and so no interrupt comes between these.
                self.counts.ended_bytes += item[0].nbytes
                self.counts.ended += 1
                item[0] = self._first = None
                if item[2] > ring.run:
                    ring.run = item[2]
        ring.give_back()
        if sites.leaving:
            sites.let_go()

    def _wake(self) -> None:
        consumer = self.consumer
        if consumer is None or not consumer.thread.is_alive():
            self.start()
        else:
            self.idle = self.lingering = False
            consumer.wake()

    def start(self) -> None:
        """Start a consumer."""
        # If several threads start a consumer at once, the last one stays, and the others end at once.
        consumer = self.consumer = Consumer(self, self.ring)
        try:
            consumer.thread.start()
        except RuntimeError:
            logger.debug("no consumer for %s at interpreter exit: the barrier there runs the rest", self.device)
            self.consumer = None

    def ever_accepted(self) -> int:
        """Return how many values the queue has accepted, by Python and by C."""
        return self.counts.accepted + (0 if self.ring is None else self.ring.counters.accepted)

    def held(self) -> int:
        """Return the bytes of the values whose functions have not ended."""
        return self._bytes + (0 if self.ring is None else self.ring.counters.bytes)


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
            if each.ring is not None:
                each.ring.counters.budget = budget

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
        retire(self.all())
        self.clear()


queues = Queues()
flags.max_queue_byte_size.listeners.append(queues.set_budget)
_compat.on_backends_cleared(queues.forget_devices)
