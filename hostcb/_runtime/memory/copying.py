"""Copies of large arrays through the processor's caches or past them, by the native extension if it is in use.

NumPy copies as the C library does. That reads the memory that it writes to, unless the array is larger than a share of
the processor's cache, 20 MiB for example. A copy past the caches saves the reading. But the function, the copy of its
result and the device read the value soon, and then it is quicker to find it in the caches. Which one weighs more
depends on the machine: a virtual machine may have the whole cache, or as good as nothing of it. So a trial of both
decides.
"""

from __future__ import annotations

import time
from collections import Counter

import numpy as np

from ..._native.library import library

# Below that, copies past the caches take longer, and so does what reads them.
LEAST_BYTES = 4 << 20
# From here on values do not stay in the caches, and past them copies are never slower.
MOST_TRIED_BYTES = 32 << 20
# A trial takes as long as about twenty copies, so a program that makes few is spared it.
COPIES_BEFORE_TRIAL = 32
ROUNDS_OF_TRIAL = 3


def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """As `target[...] = source`, for arrays of the same shape that are read soon, as those of calls."""
    if can_pass_caches(target, source) and trials.is_quicker_past_caches(target.nbytes):
        pass_caches(target, source)
    else:
        target[...] = source


def copy_into_queue(target: np.ndarray, source: np.ndarray) -> None:
    """As `target[...] = source`, for a tapped value: another thread reads it, and the device goes on with its own."""
    if can_pass_caches(target, source):
        pass_caches(target, source)
    else:
        target[...] = source


def can_pass_caches(target: np.ndarray, source: np.ndarray) -> bool:
    return (
        target.nbytes >= LEAST_BYTES
        and library.free is not None
        and source.dtype == target.dtype
        and source.flags.c_contiguous
        and target.flags.c_contiguous
    )


def pass_caches(target: np.ndarray, source: np.ndarray) -> None:
    library.free.hostcb_copy(target.ctypes.data, source.ctypes.data, target.nbytes)


class Trials:
    """For all sizes between two powers of two: the quicker way, found out once."""

    def __init__(self) -> None:
        self._copies: Counter[int] = Counter()
        self._past: dict[int, bool] = {}

    def is_quicker_past_caches(self, nbytes: int) -> bool:
        if nbytes >= MOST_TRIED_BYTES:
            return True
        bits = nbytes.bit_length()
        past = self._past.get(bits)
        if past is None:
            self._copies[bits] += 1
            if self._copies[bits] <= COPIES_BEFORE_TRIAL:
                return True
            try:
                past = self._past[bits] = is_quicker_past_caches(1 << (bits - 1))
            except MemoryError:
                # The trial needs more memory than the copy: a later copy tries again.
                return True
        return past


def is_quicker_past_caches(nbytes: int) -> bool:
    """Make the copies of a call in both ways, and compare their times."""
    # The operand, the function's copy of it, and the result; their memory is mapped before the first round.
    memory = [np.zeros(nbytes, np.uint8) for _ in range(3)]

    def seconds(past: bool) -> float:
        operand, own, result = memory
        begin = time.perf_counter()
        for target, source in ((own, operand), (result, own)):
            if past:
                pass_caches(target, source)
            else:
                target[...] = source
        # The device reads the result, and writes its next operand.
        operand[...] = result
        return time.perf_counter() - begin

    # In turns, and the best of each, since other threads of the process run meanwhile.
    rounds = [(seconds(past=True), seconds(past=False)) for _ in range(ROUNDS_OF_TRIAL)]
    past, through = zip(*rounds, strict=True)
    return min(past) < min(through)


trials = Trials()
