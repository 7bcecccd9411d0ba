"""A pool of memory blocks for copies of large operands; fresh memory, mapped page by page, costs more than the copy.

The user function owns an operand's copy and may keep it for ever. The pool reuses a block when no array refers to it:
every array over a block refers to the first array over it, and the end of that first array returns the block. So only
the blocks in use and the `MOST_READY` of ready ones exist, at any rate of operands.

Tapped values wait in a queue, many at a time, and end in another thread than the one that copied them. The C library
then gives their memory back and maps it anew. A call's operand usually ends before the next one is copied.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import defaultdict

import numpy as np

from ..._native.library import MOST_INSIDE, library

# The C library reuses smaller pieces of memory by itself, except those of tapped values that do not fit the rings in C.
LEAST_BYTES = 1 << 20
LEAST_QUEUED_BYTES = MOST_INSIDE + 1
# The limit for ready blocks. For a block that would exceed it, blocks of other sizes are freed, or else it is itself.
MOST_READY = library.constant("most_ready", 64 << 20)


def _references() -> int:
    """Return `sys.getrefcount` of a block that only a local variable refers to, on this Python.

    Free-threaded builds count differently in other places. There every block seems to be in use and none is reused.
    """
    block = np.empty(0, np.uint8)
    return sys.getrefcount(block)


_UNUSED = _references()


class Blocks:
    """The blocks that are ready for use. Every change is one atomic operation on a list or a dict."""

    def __init__(self) -> None:
        # Ready blocks, by size.
        self._ready: defaultdict[int, list[np.ndarray]] = defaultdict(list)
        # Blocks in use, by the id of the weak reference to the first array over the block. That reference has no hash.
        self._lent: dict[int, tuple[weakref.ref[np.ndarray], np.ndarray]] = {}

    @property
    def ready_bytes(self) -> int:
        """The bytes of all ready blocks."""
        return sum([size * len(stack) for size, stack in list(self._ready.items())])

    def copy(self, source: np.ndarray) -> np.ndarray:
        """As `source.copy()`, for a large array."""
        block = self._take(source.nbytes)
        if block is None:
            block = np.empty(source.nbytes, np.uint8)
        # A derived array refers to the first array over the same memory. Without `.data` that would be the block.
        whole = np.frombuffer(block.data, np.uint8)
        reference = weakref.ref(whole, self._come_back)
        self._lent[id(reference)] = reference, block
        result = whole.view(source.dtype).reshape(source.shape)
        result[...] = source
        return result

    def clear(self) -> None:
        """Free the ready blocks."""
        self._ready.clear()

    def reset_after_fork(self) -> None:
        """In a forked child, forget the blocks in use: those of threads that are gone never end."""
        self._lent.clear()

    def _take(self, nbytes: int) -> np.ndarray | None:
        stack = self._ready[nbytes]
        while stack:
            try:
                block = stack.pop()
            except IndexError:
                # Another thread took it.
                return None
            # A user function that followed `.base` behind the first array may still refer to the block.
            if sys.getrefcount(block) == _UNUSED:
                return block
        return None

    def _come_back(self, reference: weakref.ref[np.ndarray]) -> None:
        lent = self._lent.pop(id(reference), None)
        if lent is None:
            # A signal handler that came first has forked, and this is the child.
            return
        block = lent[1]
        if block.nbytes <= MOST_READY:
            self._make_room(block.nbytes)
        if self.ready_bytes + block.nbytes <= MOST_READY:
            self._ready[block.nbytes].append(block)

    def _make_room(self, nbytes: int) -> None:
        """Free ready blocks of other sizes, which the program may use no longer, until one of this size has room."""
        for size, stack in list(self._ready.items()):
            while size != nbytes and stack and self.ready_bytes + nbytes > MOST_READY:
                with contextlib.suppress(IndexError):
                    # Another thread may have taken the last one.
                    stack.pop()


blocks = Blocks()
