"""Copies of large arrays past the processor's caches, by the library in C if it is in use.

NumPy copies as the C library does. That reads the memory that it writes to, unless the array is larger than a share of
the processor's cache, 20 MiB for example. The reading costs a third of the time, and more on a virtual machine, which
has not the whole cache. Smaller arrays should be in the caches for the function that reads them.
"""

from __future__ import annotations

import numpy as np

from .._native.library import library

# Below that, copies past the caches take longer, and so does what reads them.
LEAST_BYTES = 4 << 20


def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """As `target[...] = source`, for arrays of the same shape."""
    nbytes = target.nbytes
    if (
        nbytes >= LEAST_BYTES
        and library.free is not None
        and source.dtype == target.dtype
        and source.flags.c_contiguous
        and target.flags.c_contiguous
    ):
        library.free.hostcb_copy(target.ctypes.data, source.ctypes.data, nbytes)
    else:
        target[...] = source
