"""Arrays over blocks: the memory of large tapped operands, which the native extension uses again (H11, H12).

The user function owns an array and may keep it for ever. All arrays over a block refer to one `Owner`, and its end
gives the block back. C writes the block into the owner, so nothing is given back twice, wherever an interrupt comes.
One that comes at the begin of `Owner.__del__` leaves that block mapped.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..._native.library import library


class Owner(ctypes.Structure):
    """The owner of a block, and the place of its memory; the names of the fields are those of handover.h."""

    block: int | None
    data: int | None

    _fields_ = [("block", ctypes.c_void_p), ("data", ctypes.c_void_p)]

    # Default values, since at the end of the interpreter modules lose their names.
    def __del__(self, release: Any = library.held and library.held.hostcb_release, byref: Any = ctypes.byref) -> None:
        if self.block:
            release(byref(self))


class Shape:
    """The arrays of one large operand."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> None:
        self._shape, self._dtype, self._nbytes = shape, dtype, nbytes
        self._memory = ctypes.c_ubyte * nbytes

    def over(self, owner: Owner) -> np.ndarray:
        """Return an array over the owner's block, which lives at least as long."""
        assert owner.data is not None
        memory: Any = self._memory.from_address(owner.data)
        memory.owner = owner
        return np.ndarray(self._shape, self._dtype, memory)

    def copy(self, source: np.ndarray) -> np.ndarray:
        """As `source.copy()`, in a block."""
        owner = Owner()
        if not library.held.hostcb_own(ctypes.byref(owner), self._nbytes):
            raise MemoryError(f"hostcb found no {self._nbytes} bytes for a tapped operand.")
        result = self.over(owner)
        if source.dtype == result.dtype and source.flags.c_contiguous:
            # Past the processor's caches, if it is large: another thread reads it later.
            library.free.hostcb_copy(result.ctypes.data, source.ctypes.data, self._nbytes)
        else:
            result[...] = source
        return result


def mapped() -> tuple[int, int]:
    """Return the bytes of all blocks, and those of the blocks that are ready to be used again."""
    ready = ctypes.c_uint64()
    return library.held.hostcb_mapped(ctypes.byref(ready)), ready.value
