"""Fault cells of options that a callback keeps under vmap: its side effect and its place beside its method."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import planted
from .traces import library

LANES, WIDTH = 5, 2
ELEMENT = jax.ShapeDtypeStruct((WIDTH,), np.float32)
BESIDE = np.float32(2)

SHAPES: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "sequential": [((WIDTH,), ())] * LANES,
    "sequential_unrolled": [((WIDTH,), ())] * LANES,
    "expand_dims": [((LANES, WIDTH), (1,))],
    "broadcast_all": [((LANES, WIDTH), (LANES,))],
    "legacy_vectorized": [((LANES, WIDTH), ())],
}
"""The shapes of the operands of each call: one with a batch, and a number without one."""


def _sum(row: Any, number: Any) -> Any:
    """Each row plus its number, for an element and for a whole batch."""
    row, number = np.asarray(row), np.asarray(number)
    return row + (number[..., None] if number.ndim else number)


@planted("pjit", "call pure_callback io_callback", "H8 H10 X2 X3 X5", minimum_devices=2, functions="barrier_wait")
def places_of_lanes(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Under vmap a callback runs on the device that it names, by each method, and its failure names that device."""
    fails = False
    hostcb = library(bench)

    def host(row: Any, number: Any = BESIDE) -> Any:
        if fails:
            raise ValueError(PLANTED)
        return _sum(row, number)

    def lane(row: Any, place: int, method: str) -> Any:
        if callback.function == "call":
            return hostcb.call(host, row, result_shape=ELEMENT, device_index=place, vmap_method=method)
        chosen = SingleDeviceSharding(bench.devices[place])
        if callback.function == "io_callback":
            return hostcb.io_callback(host, ELEMENT, row, BESIDE, sharding=chosen)
        return hostcb.pure_callback(host, ELEMENT, row, BESIDE, sharding=chosen, vmap_method=method)

    rows = np.arange(len(bench.devices) * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    operand = jax.device_put(rows, bench.split)
    methods = ("sequential",) if callback.function == "io_callback" else tuple(SHAPES)[:4]
    anomalies: list[Anomaly] = []
    for method in methods:
        for place in (1, len(bench.devices) - 1)[: 2 if method == "sequential" else 1]:
            label = f"{method} on device {place}"
            program = jax.jit(jax.vmap(lambda row, place=place, method=method: lane(row, place, method)))
            fails = False
            anomalies += check_value(label, lambda run=program: run(operand), rows + BESIDE)  # type: ignore[misc]
            anomalies += check_quiet_barrier(bench, label)
            fails = True
            error_of(lambda run=program: jax.block_until_ready(run(operand)))  # type: ignore[misc]
            reported: Any = error_of(bench.implementation.barrier)
            found = {str(failure.device) for failure in getattr(reported, "failures", ())}
            if found != {str(bench.devices[place])}:
                witness = f"{label}: failures are of {sorted(found)}, expected {bench.devices[place]}"
                anomalies.append(Anomaly("wrong place", Stage.CALLBACK, witness))
    return anomalies
