"""Cases of operands and results whose sizes are just below, at and just above a size at which their way changes.

`thresholds` has these sizes. A callback keeps what it gets, and the cell looks at it after further programs of the same
sizes, when memory that was not the callback's own has been used again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.thresholds import BLOCK, PAST_CACHES, RING_VALUE, around
from ..harness.case import Case, case
from ..harness.registry import ONE_OF_EACH

KEPT = (True, True, False, True, False)
"""Of each round whether the callback keeps its operands. Others are dropped, so that their memory is used again."""


LARGE = (32 << 20) + 1

PART = 1 << 18
"""Bytes that are compared at a time."""


_Keep = Callable[[Any], Any]


def _bottom(array: Any) -> Any:
    """What a user finds who follows `.base`, as code that looks for the owner of memory does."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


WAYS_TO_KEEP: tuple[_Keep, ...] = (
    lambda array: array,
    lambda array: array[: array.size // 2],
    lambda array: memoryview(array),
    lambda array: _bottom(array),
    lambda array: np.frombuffer(array, np.uint8),
)


@case("jit", f"{ONE_OF_EACH} buffer_callback dlpack_callback dlpack_callback_in_place", "H11 B1 D1")
def sizes(case: Case) -> None:
    """Kept operands, looked at later, and results have every element, at 64 KiB, 1 MiB and 4 MiB."""
    for number in (RING_VALUE, BLOCK, PAST_CACHES):
        _around(case, around(number), KEPT)


@case("jit", "id_tap call io_callback", "H3 H11 X3")
def large_sizes(case: Case) -> None:
    """As `sizes`, at a size that a runtime may pass in pieces."""
    _around(case, (LARGE,), (True, False))


def _around(case: Case, sizes: Sequence[int], keeps: Sequence[bool]) -> None:
    kept: list[tuple[int, int, _Keep, Any]] = []
    # The period of the elements is no power of two, so no shift by whole blocks goes unnoticed.
    # They own their memory, as the operands do that are looked for behind `.base`.
    bases = [np.resize(np.arange(251, dtype=np.uint8), size).copy() for size in sizes]

    def keep(place: int, operand: Any) -> Any:
        array = np.asarray(operand)
        number = int(array[0])
        way = WAYS_TO_KEEP[(number + place) % len(WAYS_TO_KEEP)]
        if keeps[number]:
            kept.append((number, place, way, way(array)))
        # Memory that nobody looks at would make half of the cell's time.
        return array + np.uint8(1) if case.callback.returns_new_value else None

    @jax.jit
    def program(operands: Any, number: Any) -> Any:
        # A copy of the program's own, in which the first element is set to what it is. A sum takes ten times as long.
        own = [jax.lax.dynamic_update_slice(each, number[None], (0,)) for each in operands]
        return [case.apply(partial(keep, place), each) for place, each in enumerate(own)]

    added = np.uint8(1 if case.callback.returns_new_value else 0)
    for number in range(len(keeps)):
        operands = [jax.device_put(base + np.uint8(number), case.devices[0]) for base in bases]
        results = program(operands, np.uint8(number))
        for base, result in zip(bases, results, strict=True):
            if not _is_sum(np.asarray(result), base, np.uint8(number) + added):
                wrong = np.flatnonzero(np.asarray(result) != base + np.uint8(number) + added)
                witness = f"of a result of {base.size} bytes {wrong.size} are wrong, the first at {wrong[0]}"
                case.wrong("result", Stage.RESULT, witness)
                return
    case.barrier()
    gc.collect()
    wanted = {(number, place) for number, keep in enumerate(keeps) if keep for place in range(len(sizes))}
    came = {(number, place) for number, place, _, _ in kept}
    case.same("lost", Stage.CALLBACK, came, wanted, f"operands of about {sizes[0]} bytes")
    for number, place, way, found in kept:
        # A way to keep takes a part, and changes nothing.
        right = np.asarray(way(bases[place]))
        array = np.asarray(found).reshape(-1).view(np.uint8)[: right.size]
        if not _is_sum(array, right, np.uint8(number)):
            case.wrong("torn operand", Stage.CALLBACK, f"an operand of {sizes[place]} bytes that was kept is another")
            return


def _is_sum(array: np.ndarray, base: np.ndarray, added: np.uint8) -> bool:
    """Whether `array` is `base + added`; by parts, since memory for the whole would cost more than the comparison."""
    if array.shape != base.shape:
        return False
    parts = (slice(first, first + PART) for first in range(0, base.size, PART))
    return all(np.array_equal(array[part], base[part] + added) for part in parts)
