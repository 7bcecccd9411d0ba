"""What a process holds: memory, threads, descriptors, objects. Samples are taken when nothing runs."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import jax

from .c_library import in_use, trim
from .growth import ARRAYS, BLOCKS, DESCRIPTORS, FUNCTIONS, HEAP, MEMORY, OBJECTS, PYTHON_THREADS, THREADS
from .programs import HostFunction


def sample(library: str, held: int, kept: float) -> dict[str, float]:
    """Collect garbage, give free memory back, and look: the value of each series.

    `held` is the number of functions that programs hold, and `kept` the bytes that JAX keeps for threads: they do not
    count.
    """
    for _ in range(2):
        gc.collect()
    trim()
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
        values[MEMORY] = float(fields["VmRSS"].split()[0]) * 1024 - kept
        values[THREADS] = float(fields["Threads"])
        values[DESCRIPTORS] = len(os.listdir("/proc/self/fd"))
    heap = in_use()
    if heap is not None:
        values[HEAP] = heap - kept
    return values


def _is_of(thing: object, library: str) -> bool:
    """Whether a thing is an object of a class of the library under test."""
    module = getattr(type(thing), "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == library
