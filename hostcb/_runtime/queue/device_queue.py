"""The bounded queue of one device's tapped values; `consumers` has the thread that runs their functions (H5, H12).

A signal handler, a finalizer or a tracer may tap, call or wait at a barrier in the middle of any function of this
module, and an interrupt may end the function there. So no two steps belong together. Three objects know what has
happened, and each changes in one step in C: a chain of the values that Python has accepted (`items`), a ring into which
the native extension writes values without the interpreter lock (`rings`), and a list that C sorts while a function runs
(`baton`). All else is computed from these whenever it is needed, or is a hint that a later step sets right.

A value that Python accepts notes how far the ring had come, so the two are one sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..._native.library import library
from ..._spec import flags
from ..._threads.baton import Baton
from ..._threads.deadlines import Deadline
from ..._threads.progress import Progress
from ..._threads.running import locals_of, running, runs_callbacks
from . import sites
from .consumers import Consumer
from .counters import QueueCounters
from .items import Item, Items, Receiver
from .rings import Record, Ring

# A value wakes a consumer that sleeps on if so many bytes wait. Their memory is used again when their functions have
# ended, and by then the processor's caches should still have it.
CACHED = library.constant("cached", 1 << 20)

# A small value costs about 300 bytes, more than its own, so the number of values is bounded too.
MOST_VALUES = 500_000


class DeviceQueue(Progress):
    """First in, first out, for one device.

    At most one thread at a time runs the queue's functions: the consumer, or a thread of the runtime that waits for an
    empty queue (a call on this device) or for room (a tap). This keeps the order and spares a call the hand-over to
    another thread. A full queue cannot deadlock, since the thread that finds it full empties it.
    """

    # Of all queues: whether no thread runs values any more but those that wait for them.
    closed = False

    def __init__(self, device: Any):
        super().__init__()
        self.device = device
        self.budget = flags.max_queue_byte_size.value
        # The values that Python has accepted.
        self.items = Items()
        # The thread that runs the oldest item's function holds it; its number.
        self._baton = Baton()
        self._runner: int | None = None
        # Whether a value has to wake or start the consumer, which alone unsets it.
        self.idle = True
        # Whether the consumer sleeps on, and may be woken.
        self.lingering = False
        # The current one; an earlier one ends.
        self.consumer: Consumer | None = None
        # The ring of values that C accepts, and the items of the records whose functions have begun, by their ends.
        self.ring: Ring | None = None
        self._rings: dict[None, Ring] = {}
        self._taken: dict[int, Item] = {}
        self.counts = QueueCounters(self.items)

    def bind(self, site: sites.Site) -> None:
        """Let the executable whose handler this thread runs hand its values over to this queue's ring."""
        ring = self.ring
        if ring is None:
            # Several threads may do this at once.
            ring = self._rings.setdefault(None, Ring(self.budget, MOST_VALUES))
            self.counts.ring = self.ring = ring
            self._publish()
        consumer = self.consumer
        if consumer is not None and consumer.ring is not ring:
            # It sleeps without the ring. The next value of the queue starts another.
            self.consumer, self.idle = None, True
            consumer.wake()
            if self.items.oldest() is not None:
                # The next value may run at once, without the queue.
                self.start()
        site.bind(ring)

    def is_pending(self) -> bool:
        """Whether a value's function has not ended."""
        return (self.ring is not None and self.ring.is_pending()) or self.items.oldest() is not None

    def has_nested(self) -> bool:
        """Whether a value waits whose program was started from inside a callback; C accepts none of these."""
        return any(item.receiver.nested for item in self.items)

    def put(self, receiver: Receiver, arrays: Sequence[np.ndarray], waits: bool = True) -> None:
        """Accept a value; if the queue is full and the thread may wait, first run the oldest values in this thread."""
        while not self.offer(receiver, arrays, waits):
            self.make_room(receiver.nbytes)

    def offer(self, receiver: Receiver, arrays: Sequence[np.ndarray], waits: bool = True) -> bool:
        """Accept a value, unless the queue is full and the thread may wait."""
        if not self._accepts(receiver, arrays, waits):
            return False
        if self.idle or (self.lingering and self.held() >= CACHED):
            self._wake()
        return True

    def _accepts(self, receiver: Receiver, arrays: Sequence[np.ndarray], waits: bool) -> bool:
        ring = self.ring
        is_room = self._is_room if waits else _is_always_room
        if ring is None:
            return self.items.accept(receiver, arrays, 0, is_room)
        # C gets the numbers before the check, since it accepts values at the same time.
        self._publish(receiver.nbytes)
        try:
            return self.items.accept(receiver, arrays, ring.counters.tail, is_room)
        finally:
            self._publish()

    def _publish(self, coming: int = 0) -> None:
        """Write for C what Python holds, and the bytes of a value that is coming."""
        ring = self.ring
        while ring is not None:
            counters = ring.counters
            told = values, held = self.items.held()
            counters.outside_values, counters.outside_bytes, counters.budget = values, held + coming, self.budget
            if self.items.held() == told:
                # Otherwise another thread may have written what it knew before.
                return

    def make_room(self, nbytes: int) -> None:
        """Return when the queue has room for so many bytes; called before a large value is copied."""
        if not self._has_room(nbytes):
            with self.counts.waiting_for_room():
                self.work_until(lambda: self._has_room(nbytes))

    def _has_room(self, nbytes: int) -> bool:
        return self._is_room(*self.items.held(), nbytes)

    def _is_room(self, values: int, held: int, nbytes: int) -> bool:
        if self.ring is not None:
            values_in_ring, held_in_ring = self.ring.held()
            values, held = values + values_in_ring, held + held_in_ring
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
        """Return a function that returns whether all values accepted so far have run."""
        items, ring = self.items, self.ring
        number, _ = items.accepted()
        position = 0 if ring is None else ring.counters.tail

        def has_ended() -> bool:
            if ring is not None and ring.counters.head < position:
                return False
            # In a forked child there are other items: the parent process runs these.
            return items.ended()[0] >= number or items is not self.items

        return has_ended

    def waiting(self) -> list[tuple[str, str]]:
        """Return the callbacks of the values whose functions have not ended: the one that `runs`, those that wait."""
        found = [(item.receiver, item.begun) for item in self.items]
        ring = self.ring
        if ring is not None:
            begun = any(item.begun for end, item in list(self._taken.items()) if end > ring.counters.head)
            of_ring = sites.waiting(ring)
            found = [(receiver, begun and number == 0) for number, receiver in enumerate(of_ring)] + found
        first_running = sorted(found, key=lambda each: not each[1])
        return [(str(receiver.callback), "runs" if begun else "waits") for receiver, begun in first_running]

    def programs(self) -> set[Any]:
        """Return the programs of the values whose functions have not ended."""
        of_ring = [] if self.ring is None else sites.waiting(self.ring)
        return {receiver.program for receiver in (*of_ring, *(item.receiver for item in self.items))}

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

    def reset_after_fork(self) -> None:
        """Drop the items in a forked child: the parent process runs them."""
        # A queued function may itself have forked. It returns in the child, too, and there belongs to no queue.
        self.items, self.consumer, self.idle, self._baton = Items(), None, True, Baton()
        self.counts = QueueCounters(self.items, self.ring)
        if self.ring is not None:
            self.ring.reset_after_fork()
            self._taken.clear()
            self._publish()

    def work_until(self, reached: Callable[[], bool]) -> None:
        """Run the oldest value, or wait until another thread has run one, until `reached()` is true."""
        while not reached():
            if self.is_pending() and not self._baton.is_held():
                frame = running.frame
                outer = frame.depth
                # A thread that has its turn counts as inside a callback: it must not wait for threads that wait for the
                # baton.
                frame.depth = outer + 1
                try:
                    self._baton.take(lambda: self._take_turn(reached))
                finally:
                    frame.depth = outer
                if self._waiting:
                    self.tell()
            elif self.is_pending() and self._is_run_here():
                # A finalizer or a signal handler in a thread that holds the baton: no other thread can run the values.
                self._run_oldest()
            elif not self.is_pending() and self._awaits_copies():
                self.ring.wait_for_copies()  # type: ignore[union-attr]
            else:
                self._wait_for_progress(lambda: reached() or not self._baton.is_held())

    def _awaits_copies(self) -> bool:
        """Return whether all values that hold the queue's room are still being copied, by threads of a CPU device."""
        ring = self.ring
        return ring is not None and ring.is_expecting()

    @runs_callbacks
    def _take_turn(self, reached: Callable[[], bool]) -> None:
        """Run the oldest values, one if others wait, unless another thread was faster."""
        self._runner = threading.get_ident()
        while not reached():
            if not self._run_oldest() or self._waiting:
                return

    def is_run_by(self, threads: Collection[int]) -> bool:
        """Return whether one of these threads runs the oldest value."""
        return self._runner in threads and self._baton.is_held()

    def _is_run_here(self) -> bool:
        """Return whether this thread is in the middle of a turn."""
        return any(names.get("self") is self for names in locals_of(DeviceQueue._take_turn))

    def _run_oldest(self) -> bool:
        """Run the function of the oldest value, in the thread that has its turn; False if there is none.

        An interrupt, such as Ctrl-C, may come anywhere. A function that has begun then counts as run, and a value whose
        function has not begun stays in the queue. If its end is not noted, the next turn finds it begun and notes that.
        """
        item, record = self._oldest()
        if item is None:
            return False
        try:
            if not item.begun:
                item.receiver.deliver(self.device, item)
        finally:
            if item.begun:
                self._end(item, record)
        return True

    def _end(self, item: Item, record: Record | None) -> None:
        if record is None:
            item.ended = True
            self.items.popleft()
            if self.ring is not None:
                self._publish()
            return
        assert self.ring is not None
        self.ring.end(record)
        self._taken.pop(record[2], None)
        if self._taken:
            # Of a turn that was interrupted.
            for end in list(self._taken):
                if end <= self.ring.counters.head:
                    self._taken.pop(end, None)
        if sites.sites_to_forget:
            sites.forget_finished_sites()

    def _oldest(self) -> tuple[Item | None, Record | None]:
        """Return the oldest value, with its record if it is in the ring."""
        while True:
            ring = self.ring
            # In this order: if a value of Python is older than this record, it is there by now.
            record = None if ring is None else ring.oldest()
            item = self.items.oldest()
            if record is not None and ring is not None and (item is None or record[2] <= item.position):
                taken = self._take(ring, record)
                if taken is not None:
                    return taken, record
            elif item is None or ring is None or ring.counters.head >= item.position:
                return item, None
            # Since the look at the ring, C has accepted values that are older than this item; or the record has run.

    def _take(self, ring: Ring, record: Record) -> Item | None:
        """Return the item of a record, always the same one; None if its function has ended."""
        _, _, end = record
        item = self._taken.get(end) or sites.item_of(ring, record)
        if item is not None:
            # The value of a signal handler that came meanwhile is in the way.
            item = self._taken.setdefault(end, item)
        # Not ended by now: until it is, everyone finds this item.
        return None if ring.counters.head >= end else item

    def _wake(self) -> None:
        consumer = self.consumer
        if consumer is None or not consumer.thread.is_alive():
            self.start()
        else:
            consumer.wake()

    def start(self) -> None:
        """Start a consumer, unless the process exits."""
        if self.closed:
            return
        # If several threads start a consumer at once, the last one stays, and the others end at once.
        consumer = self.consumer = Consumer(self, self.ring)
        if not consumer.start():
            self.consumer = None

    def ever_accepted(self) -> int:
        """Return how many values the queue has accepted, by Python and by C."""
        return self.counts.handed_over()[0]

    def held(self) -> int:
        """Return the bytes of the values whose functions have not ended."""
        return self.items.held()[1] + (0 if self.ring is None else self.ring.counters.bytes)


def _is_always_room(*_: int) -> bool:
    return True
