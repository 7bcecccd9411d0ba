"""Large pages for the memory of large results, which the runtime allocates for each execution.

The C library maps memory of 32 MiB or more anew each time, and smaller memory often if several results are alive. The
kernel maps each page of 4 KiB when it is first written, which takes four times as long as the writing. With `madvise`
it maps pages of 2 MiB; NumPy does so for its arrays of 4 MiB or more.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Callable

import numpy as np

from ..._native.library import library

# As in NumPy.
LEAST_IN_LARGE_PAGES = library.constant("least_in_large_pages", 4 << 20)

# Linux has the number 14 on every processor; `mmap` has the name only if the C library had it when Python was built.
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
    """Ask for large pages for the memory of `array`, if it is large; return `array`."""
    if array.nbytes >= LEAST_IN_LARGE_PAGES and _madvise is not None and array.flags.c_contiguous:
        begin = array.ctypes.data
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        # A kernel without large pages refuses, which is harmless.
        _madvise(first, begin + array.nbytes - first, _HUGEPAGE)
    return array
