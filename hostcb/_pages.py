"""Large pages for the memory of large results, which the runtime takes from the system for each execution.

The C library maps pieces from 32 MiB on anew each time, and the system hands over a page of 4 KiB when it is first
written to, which takes four times as long as the writing. It hands over pages of 2 MiB if it is asked to, as NumPy asks
for its own arrays.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Callable

import numpy as np

# Smaller pieces the C library keeps, once they have been used.
LEAST_BYTES = 32 << 20

# The number that Linux has for it on every processor; `mmap` names it only where its C library did when it was built.
_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", 14)


def _advisor() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        return advise
    return None


_madvise = _advisor()


def advise(array: np.ndarray) -> np.ndarray:
    """Ask for large pages where `array` will be written, if it is large; gives it back."""
    if array.nbytes >= LEAST_BYTES and _madvise is not None and array.flags.c_contiguous:
        begin = array.ctypes.data
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        # A system that has none refuses, and nothing is lost.
        _madvise(first, begin + array.nbytes - first, _HUGEPAGE)
    return array
