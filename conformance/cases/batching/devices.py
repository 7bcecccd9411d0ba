"""Cases of options that a callback keeps under vmap: its side effect and its place beside its method."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.checks import error_of
from ..harness.hosts import PLANTED

ELEMENTS, WIDTH = 5, 2
ELEMENT = jax.ShapeDtypeStruct((WIDTH,), np.float32)
BESIDE = np.float32(2)

SHAPES: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "sequential": [((WIDTH,), ())] * ELEMENTS,
    "sequential_unrolled": [((WIDTH,), ())] * ELEMENTS,
    "expand_dims": [((ELEMENTS, WIDTH), (1,))],
    "broadcast_all": [((ELEMENTS, WIDTH), (ELEMENTS,))],
    "legacy_vectorized": [((ELEMENTS, WIDTH), ())],
}
"""The shapes of the operands of each call: one with a batch, and a number without one."""


def _sum(row: Any, number: Any) -> Any:
    """Each row plus its number, for an element and for a whole batch."""
    row, number = np.asarray(row), np.asarray(number)
    return row + (number[..., None] if number.ndim else number)


@case("pjit", "call pure_callback io_callback", "H8 H10 X2 X3 X5", minimum_devices=2, functions="barrier_wait")
def devices_of_batch_elements(case: Case) -> None:
    """Under vmap a callback runs on the device that it names, by each method, and its failure names that device."""
    fails = False
    hostcb = case.library

    def host(row: Any, number: Any = BESIDE) -> Any:
        if fails:
            raise ValueError(PLANTED)
        return _sum(row, number)

    def one(row: Any, place: int, method: str) -> Any:
        if case.callback.function == "call":
            return hostcb.call(host, row, result_shape=ELEMENT, device_index=place, vmap_method=method)
        chosen = SingleDeviceSharding(case.devices[place])
        if case.callback.function == "io_callback":
            return hostcb.io_callback(host, ELEMENT, row, BESIDE, sharding=chosen)
        return hostcb.pure_callback(host, ELEMENT, row, BESIDE, sharding=chosen, vmap_method=method)

    rows = np.arange(len(case.devices) * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    operand = jax.device_put(rows, case.split)
    methods = ("sequential",) if case.callback.function == "io_callback" else tuple(SHAPES)[:4]
    for method in methods:
        for place in (1, len(case.devices) - 1)[: 2 if method == "sequential" else 1]:
            label = f"{method} on device {place}"
            program = jax.jit(jax.vmap(lambda row, place=place, method=method: one(row, place, method)))
            fails = False
            case.gives(rows + BESIDE, program, operand, what=label)
            case.barrier()
            fails = True
            error_of(program, operand)
            reported: Any = case.drain()
            found = {failure.device for failure in getattr(reported, "failures", ())}
            case.same("wrong place", Stage.CALLBACK, found, {case.devices[place]}, f"{label}: the devices of failures")
