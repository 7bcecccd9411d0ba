"""What the C library holds: the memory that it has handed out, and the free memory that it keeps.

Each thread frees memory into one of the C library's arenas, of which glibc has eight a core. The end of an arena goes
back to the system only if more than a threshold is free there. glibc raises that threshold as larger pieces are freed,
from 128 KiB up to 64 MiB, and `malloc_trim` leaves those ends alone. So the resident memory of threads that free arrays
rises for a long time, with nothing leaked.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

MOST_FREE = 128 << 10
"""The threshold for the free end of an arena: glibc's own, before it doubles."""

LEAST_MAPPED = 16 << 20
"""From so many bytes on memory is mapped for itself. Arrays of a soak are smaller, so that their memory is used again,
as after some time with glibc's own threshold."""


def keep_little() -> bool:
    """Let the C library give free ends of arenas back to the system; return whether it can be told to."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_M_MMAP_THRESHOLD, LEAST_MAPPED) and mallopt(_M_TRIM_THRESHOLD, MOST_FREE)
    )


def trim() -> None:
    """Let the C library give free memory between what is in use back to the system, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def in_use() -> int | None:
    """The bytes that the C library has handed out, where it says so: free memory in between is not among them."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)
