"""Memory for large operands, used again: the system hands over fresh memory a page at a time, for more than a copy.

An operand's copy belongs to the user function, which may keep it for ever. A block is used again once nothing refers to
it but the pool: NumPy makes it the base of every array over it, however derived, so its reference count tells.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

# Below, the C library has memory at hand.
LEAST_BYTES = 1 << 20
# What the pool holds at most, whether in use or not. Past either the oldest block is let go.
MOST_BYTES = 128 << 20
MOST_BLOCKS = 8
# `sys.getrefcount` of a block that is in a local variable and nowhere else. Builds of Python without a global lock
# count otherwise; there every block seems to be in use, and memory is as fresh as without a pool.
_UNUSED = 2


class Blocks:
    """Some large pieces of memory that have been used lately. Every operation on the deque is atomic by itself."""

    def __init__(self) -> None:
        self._blocks: deque[np.ndarray] = deque()

    def copy(self, source: np.ndarray) -> np.ndarray:
        """As `source.copy()`, for what has at least `LEAST_BYTES`."""
        block = self._unused(source.nbytes)
        if block is None:
            block = np.empty(source.nbytes, np.uint8)
        result = block.view(source.dtype).reshape(source.shape)
        np.copyto(result, source)
        self._keep(block)
        return result

    def clear(self) -> None:
        """Give back what nobody uses."""
        self._blocks.clear()

    def _unused(self, nbytes: int) -> np.ndarray | None:
        for _ in range(len(self._blocks)):
            try:
                block = self._blocks.popleft()
            except IndexError:
                # Other threads have them.
                return None
            if block.nbytes == nbytes and sys.getrefcount(block) == _UNUSED:
                return block
            self._blocks.append(block)
        return None

    def _keep(self, block: np.ndarray) -> None:
        if block.nbytes > MOST_BYTES:
            return
        self._blocks.append(block)
        while len(self._blocks) > MOST_BLOCKS or sum([each.nbytes for each in [*self._blocks]]) > MOST_BYTES:
            try:
                self._blocks.popleft()
            except IndexError:
                return


blocks = Blocks()
