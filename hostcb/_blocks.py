"""Memory for large operands, used again: the system hands over fresh memory a page at a time, for more than a copy.

An operand's copy belongs to the user function, which may keep it for ever. A block is used again once nothing refers to
it any more: every array over it, however derived, refers to the one that NumPy made of it first, and that one's end
gives it back. So as many blocks exist as are in use at a time, and those that lie ready, however fast they change.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict

import numpy as np

# Below, the C library has memory at hand.
LEAST_BYTES = 1 << 20
# What may lie ready. Past it a block that comes back is let go.
MOST_BYTES = 64 << 20


def _references() -> int:
    """`sys.getrefcount` of a block that is in a local variable and nowhere else, by the way this Python counts.

    Builds without a global lock count otherwise elsewhere; there every block seems to be in use, and memory is as fresh
    as without a pool.
    """
    block = np.empty(0, np.uint8)
    return sys.getrefcount(block)


_UNUSED = _references()


class Blocks:
    """Large pieces of memory that are not in use. Every operation on a list or dict of it is atomic by itself."""

    def __init__(self) -> None:
        # By size.
        self._ready: defaultdict[int, list[np.ndarray]] = defaultdict(list)
        # By the number of the reference that tells the end of the first array over it; it has no hash.
        self._lent: dict[int, tuple[weakref.ref[np.ndarray], np.ndarray]] = {}

    @property
    def ready_bytes(self) -> int:
        """What lies ready."""
        return sum([size * len(stack) for size, stack in list(self._ready.items())])

    def copy(self, source: np.ndarray) -> np.ndarray:
        """As `source.copy()`, for what has at least `LEAST_BYTES`."""
        block = self._take(source.nbytes)
        if block is None:
            block = np.empty(source.nbytes, np.uint8)
        # Whatever is derived from an array refers to the first array over the same memory: without `.data` that
        # would be the block itself.
        whole = np.frombuffer(block.data, np.uint8)
        reference = weakref.ref(whole, self._come_back)
        self._lent[id(reference)] = reference, block
        result = whole.view(source.dtype).reshape(source.shape)
        np.copyto(result, source)
        return result

    def clear(self) -> None:
        """Give back what nobody uses."""
        self._ready.clear()

    def _take(self, nbytes: int) -> np.ndarray | None:
        stack = self._ready[nbytes]
        while stack:
            try:
                block = stack.pop()
            except IndexError:
                # Another thread was faster.
                return None
            # Whoever looked behind the first array may still have it.
            if sys.getrefcount(block) == _UNUSED:
                return block
        return None

    def _come_back(self, reference: weakref.ref[np.ndarray]) -> None:
        _, block = self._lent.pop(id(reference))
        if self.ready_bytes + block.nbytes <= MOST_BYTES:
            self._ready[block.nbytes].append(block)


blocks = Blocks()
