"""What the C library holds: the memory that it has handed out, and the free memory that it keeps.

Each thread frees memory into one of the C library's arenas, of which glibc has eight a core. The end of an arena goes
back to the system only if more than a threshold is free there. glibc raises that threshold as larger pieces are freed,
from 128 KiB up to 64 MiB, and `malloc_trim` leaves those ends alone. So the resident memory of threads that free arrays
rises for a long time, with nothing leaked. Another C library has none of these functions: then nothing is changed.
"""

from __future__ import annotations

import ctypes
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

MOST_FREE = 128 << 10
"""The threshold for the free end of an arena: glibc's own, before it doubles."""

LEAST_MAPPED = 16 << 20
"""From so many bytes on memory is mapped for itself. Arrays of a soak are smaller, so that their memory is used again,
as after some time with glibc's own threshold."""


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def keep_little() -> None:
    """Let the C library give free ends of arenas back to the system."""
    if mallopt := _function("mallopt"):
        mallopt(_M_MMAP_THRESHOLD, LEAST_MAPPED)
        mallopt(_M_TRIM_THRESHOLD, MOST_FREE)


def trim() -> None:
    """Let the C library give free memory between what is in use back to the system."""
    if malloc_trim := _function("malloc_trim"):
        malloc_trim(0)


def in_use() -> int | None:
    """The bytes that the C library has handed out, where it says so: free memory in between is not among them."""
    mallinfo = _function("mallinfo2")
    if mallinfo is None:
        return None
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
