"""What a process holds: memory, threads, descriptors, objects. Samples are taken when nothing runs."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax

from .programs import HostFunction
from .series import ARRAYS, BLOCKS, DESCRIPTORS, FUNCTIONS, HEAP, MEMORY, OBJECTS, PYTHON_THREADS, THREADS


@dataclass(frozen=True)
class Sample:
    events: int
    values: Mapping[str, float]


def sample(events: int, library: str, held: int) -> Sample:
    """Collect garbage, give free memory back, and look. `held` is the number of functions that programs hold."""
    for _ in range(2):
        gc.collect()
    _trim()
    return Sample(events, _values(library, held))


def _values(library: str, held: int) -> dict[str, float]:
    values: dict[str, float] = {
        BLOCKS: sys.getallocatedblocks(),
        ARRAYS: len(jax.live_arrays()),
        OBJECTS: sum(_is_of(each, library) for each in gc.get_objects()),
        FUNCTIONS: max(0, len(HostFunction.alive) - held),
        PYTHON_THREADS: len(sys._current_frames()),
    }
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        values[MEMORY] = float(fields["VmRSS"].split()[0]) * 1024
        values[THREADS] = float(fields["Threads"])
        values[DESCRIPTORS] = len(os.listdir("/proc/self/fd"))
    in_use = _in_use()
    if in_use is not None:
        values[HEAP] = in_use
    return values


def _is_of(thing: object, library: str) -> bool:
    """Whether a thing is an object of a class of the library under test."""
    module = getattr(type(thing), "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == library


def _trim() -> None:
    """Let the C library give free memory back to the system, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def _in_use() -> int | None:
    """The bytes that the C library has handed out, where it says so: free memory in between is not among them."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)
