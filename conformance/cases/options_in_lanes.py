"""Fault cells of options that a callback keeps under vmap: its side effect and its place beside its method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import planted
from .traces import library

LANES, WIDTH = 5, 2
ELEMENT = jax.ShapeDtypeStruct((WIDTH,), np.float32)
BATCH = np.arange(LANES * WIDTH, dtype=np.float32).reshape(LANES, WIDTH)
BESIDE = np.float32(2)

SHAPES: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "sequential": [((WIDTH,), ())] * LANES,
    "sequential_unrolled": [((WIDTH,), ())] * LANES,
    "expand_dims": [((LANES, WIDTH), (1,))],
    "broadcast_all": [((LANES, WIDTH), (LANES,))],
    "legacy_vectorized": [((LANES, WIDTH), ())],
}
"""The shapes of the operands of each call: one with a batch, and a number without one."""

IN_BOTH_WAYS = ("sequential", "broadcast_all")
"""One method that calls for each element, and one that calls once; each way compiles a program."""


def _sum(row: Any, number: Any) -> Any:
    """Each row plus its number, for an element and for a whole batch."""
    row, number = np.asarray(row), np.asarray(number)
    return row + (number[..., None] if number.ndim else number)


@planted("jit", "buffer_callback dlpack_callback", "B4 D2", functions="barrier_wait")
def methods_of_side_effects(bench: Bench, callback: Callback) -> list[Anomaly]:
    """B4: `vmap_method` means the same with a side effect and without one, and without a method vmap is refused."""
    seen: list[tuple[tuple[int, ...], ...]] = []

    def total(row: Any, number: Any) -> Any:
        seen.append((np.asarray(row).shape, np.asarray(number).shape))
        return _sum(row, number)

    def fill(context: Any, out: Any, row: Any, number: Any) -> None:
        np.asarray(out)[...] = total(row, number)

    def made(**options: Any) -> Callable[..., Any]:
        if callback.function == "buffer_callback":
            by_buffers: Callable[..., Any] = library(bench).buffer_callback(fill, ELEMENT, **options)
            return by_buffers
        by_dlpack: Callable[..., Any] = library(bench).dlpack_callback(total, ELEMENT, **options)
        return by_dlpack

    anomalies: list[Anomaly] = []
    for side_effect in (False, True):
        refused = error_of(lambda effect=side_effect: jax.vmap(made(has_side_effect=effect), (0, None))(BATCH, BESIDE))  # type: ignore[misc]
        if not isinstance(refused, NotImplementedError):
            witness = f"without a method, has_side_effect={side_effect}: vmap came to {refused!r}"
            anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
        for method, wanted in SHAPES.items():
            label = f"{method}, has_side_effect={side_effect}"
            lanes = jax.vmap(made(has_side_effect=side_effect, vmap_method=method), in_axes=(0, None))
            for way, run in (("in jit", jax.jit(lanes)), ("outside jit", lanes))[: 2 if method in IN_BOTH_WAYS else 1]:
                seen.clear()
                anomalies += check_value(f"{label}, {way}", lambda run=run: run(BATCH, BESIDE), BATCH + BESIDE)  # type: ignore[misc]
                anomalies += check_quiet_barrier(bench, f"{label}, {way}")
                if seen != wanted:
                    witness = f"{label}, {way}: it got {seen}, expected {wanted}"
                    anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


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


@planted("pjit", "id_tap call", "H10", minimum_devices=2, functions="barrier_wait")
def places_by_any_integer(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H10: a device may be named by any object that is an integer, of Python, of NumPy and of a class of the user."""

    class Index:
        def __init__(self, number: int) -> None:
            self.number = number

        def __index__(self) -> int:
            return self.number

    seen: list[Any] = []
    hostcb = library(bench)

    def apply(x: Any, index: Any) -> Any:
        def note(operand: Any, transforms: Any = None, device: Any = None) -> Any:
            seen.append(device)
            return np.asarray(operand)

        if callback.function == "id_tap":
            return hostcb.id_tap(note, x, tap_with_device=True, device_index=index)
        return hostcb.call(note, x, result_shape=x, call_with_device=True, device_index=index)

    last = len(bench.devices) - 1
    orders = {"in order": [*bench.devices], "in reverse": [*bench.devices][::-1]}
    anomalies: list[Anomaly] = []
    for order, devices in orders.items():
        mesh = Mesh(np.asarray(devices), ("x",))
        operand = jax.device_put(np.arange(len(devices), dtype=np.float32), NamedSharding(mesh, PartitionSpec("x")))
        for kind in (int, np.int64, np.uint8, np.asarray, Index) if order == "in order" else (int, np.int32):
            index = kind(last)
            for way, run in (("outside jit", apply), ("in jit", jax.jit(apply, static_argnums=1))):
                if way == "in jit" and kind is np.asarray:
                    # JAX takes no array for a static argument.
                    continue
                seen.clear()
                error = error_of(lambda run=run, index=index, given=operand: run(given, index))  # type: ignore[misc]
                anomalies += check_quiet_barrier(bench, f"after a device that {kind.__name__} names")
                if error is not None or seen != [devices[last]]:
                    came = summary(error) if error is not None else f"ran on {seen}"
                    witness = f"devices {order}, {way}: number {index!r} of {kind.__name__} {came}"
                    anomalies.append(Anomaly("wrong place", Stage.CALLBACK, witness))
    return anomalies
