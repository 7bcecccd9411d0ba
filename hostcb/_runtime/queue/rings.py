"""The ring of a device, into which C writes tapped values without the interpreter lock (H5, H11, H12).

A ring is a part of the device's queue: `queues` decides whether the oldest value is in the ring or in Python. Records
are found by their position, which only grows. C alone knows which have ended (`head`), and counts them in the same
step. So every step can be repeated, and an interrupt between any two steps loses nothing. Any thread may look at the
records; only the one that has the queue's baton reads their operands.
"""

from __future__ import annotations

import ctypes

from ..._native.library import library

CAPACITY = 1 << 24

# So many records are read at once.
MOST_READ = 256

Read = ctypes.c_uint64 * (3 * MOST_READ + 1)

# Its site, the place of its operands in the ring's memory, and the position at which it ends.
Record = tuple[int, int, int]


class Counters(ctypes.Structure):
    """The fields that C and Python share; the names are those of handover.h."""

    tail: int
    accepted: int
    bytes: int
    values: int
    reserved: int
    in_blocks: int
    bytes_on_their_way: int
    values_on_their_way: int
    accepted_bytes: int
    head: int
    ended: int
    ended_bytes: int
    budget: int
    most_values: int
    outside_bytes: int
    outside_values: int

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("tail", "accepted", "bytes", "values", "reserved", "in_blocks"),
            *("bytes_on_their_way", "values_on_their_way", "accepted_bytes"),
            *("head", "ended", "ended_bytes"),
            *("budget", "most_values", "outside_bytes", "outside_values"),
        )
    ]


class Ring:
    """One device's ring. The library never frees it: executables of any age may be bound to it."""

    def __init__(self, budget: int, most_values: int) -> None:
        data = ctypes.c_void_p()
        self.address = library.held.hostcb_ring(CAPACITY, ctypes.byref(data))
        if not self.address or data.value is None:
            raise MemoryError(f"hostcb found no {CAPACITY} bytes for the tapped values of a device.")
        self.memory = memoryview((ctypes.c_ubyte * CAPACITY).from_address(data.value))
        self.counters = Counters.from_address(self.address)
        self.counters.budget, self.counters.most_values = budget, most_values
        # Site, begin and end of each record that was read ahead, and a place at or before the oldest among them.
        self._ahead: tuple[list[int], int] = [], 0

    def held(self) -> tuple[int, int]:
        """The number of the values that C holds, and their bytes; those that are being copied count as well.

        These are read first: a value that is shown meanwhile counts twice, and never not at all.
        """
        counters = self.counters
        coming, coming_bytes = counters.values_on_their_way, counters.bytes_on_their_way
        return coming + counters.values, coming_bytes + counters.bytes

    def wait_for_copies(self) -> None:
        """Wait until the values are there that threads of the device are copying; they need no lock of Python."""
        library.free.hostcb_settle(self.address)

    def is_pending(self) -> bool:
        """Whether a function of one of its values has not ended, or C has just gone back to the begin of the memory."""
        return self.counters.tail > self.counters.head

    def is_expecting(self) -> bool:
        """Whether a thread of the device is copying values."""
        return self.counters.reserved > self.counters.tail

    def oldest(self) -> Record | None:
        """Return the oldest record; None if there is none.

        Another thread may call this at the same time, and a finalizer in the middle of it, and either may then run what
        was read ahead, or put back what is older: records that have ended are passed over.
        """
        ahead, place = self._ahead
        head = self.counters.head
        while place < len(ahead) and ahead[place + 2] <= head:
            place += 3
        if place == len(ahead):
            if not self.is_pending():
                return None
            read = Read()
            count = library.held.hostcb_read(self.address, head, read, MOST_READ)
            ahead, place = read[: 3 * count], 0
            if not count:
                # Up to there is nothing to run: a value could not be copied.
                library.held.hostcb_done(self.address, read[0])
                return None
        self._ahead = ahead, place
        return ahead[place], ahead[place + 1], ahead[place + 2]

    def waiting(self) -> list[int]:
        """Return the sites of all values whose functions have not ended."""
        sites: list[int] = []
        position = self.counters.head
        while True:
            read = Read()
            count = library.held.hostcb_read(self.address, position, read, MOST_READ)
            if not count:
                return sites
            found = read[: 3 * count]
            sites += found[::3]
            position = found[-1]

    def end(self, record: Record) -> None:
        """The function of a record has ended: C may use its memory."""
        library.held.hostcb_done(self.address, record[2])

    def trim(self) -> None:
        """Give the memory of an empty ring back to the system."""
        library.held.hostcb_trim(self.address)

    def attend(self, attended: bool) -> None:
        """Say whether there is a consumer; the ring takes no value without one."""
        library.held.hostcb_attend(self.address, attended)

    def wake(self) -> None:
        library.held.hostcb_wake(self.address)

    def sleep(self, timeout: float | None, heard: int) -> int:
        """Wait until the bell has rung more than `heard` times, or without a timeout for a value; return how often."""
        microseconds = -1 if timeout is None else int(timeout * 1e6)
        rung: int = library.free.hostcb_sleep(self.address, heard, microseconds)
        return rung

    def reset_after_fork(self) -> None:
        """Drop all values in a forked child: the parent process runs them."""
        library.held.hostcb_forked(self.address)
        self._ahead = [], 0
