"""Fault cells of one function in one program, with several types, shapes and results: no two may be confused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback, Runs
from .bench import Bench
from .checks import check_quiet_barrier
from .fault import ONE_OF_EACH, planted
from .traces import library

_ROW = np.array([1.0, 2.0, 3.0], np.float32)

# Of one size, so that the one could stand for the other.
OPERANDS: tuple[np.ndarray, ...] = (_ROW, _ROW.astype(np.int32), _ROW.astype(np.uint32), _ROW[None], _ROW[:, None])

Seen = tuple[str, tuple[int, ...], list[float]]


def _shown(array: Any) -> Seen:
    return array.dtype.name, array.shape, array.ravel().tolist()


class _Function:
    """Notes its operand, and returns it."""

    def __init__(self, seen: list[Seen]) -> None:
        self.seen = seen

    def __call__(self, operand: Any, transforms: Any = ()) -> Any:
        array = np.asarray(operand)
        self.seen.append(_shown(array))
        return array.copy()


class _Converting(_Function):
    """Returns its operand in the next type of the list at each call."""

    def __init__(self, seen: list[Seen], dtypes: list[Any]) -> None:
        super().__init__(seen)
        self.dtypes = dtypes

    def __call__(self, operand: Any, transforms: Any = ()) -> Any:
        array = super().__call__(operand)
        return array.astype(self.dtypes[len(self.seen) - 1])


def _applied(bench: Bench, callback: Callback, function: Any, x: Any, dtype: Any = None) -> Any:
    # The function itself: what `Bench.apply` wraps around that of a tap is another one each time.
    if callback.function == "id_tap":
        return bench.implementation.tap(function, x)
    return bench.apply(callback, function, x, jax.ShapeDtypeStruct(jnp.shape(x), dtype or x.dtype))


@planted("jit pmap", f"{ONE_OF_EACH} io_callback_ordered debug_callback_ordered", "H18")
def same_function_of_other_types(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Operands of several types and shapes. Ordered ones come in the order of the program, on each device."""
    count = bench.callbacks_per_run
    operands = [operand if bench.layout == "jit" else np.stack([operand] * count) for operand in OPERANDS]
    seen: list[Seen] = []
    function = _Function(seen)
    compiled = bench.compile(lambda operands: [_applied(bench, callback, function, x) for x in operands])
    anomalies: list[Anomaly] = []
    wanted = [_shown(operand) for operand in OPERANDS for _ in range(count)]
    # Another way may be taken from the second run on.
    for _ in range(2):
        seen.clear()
        results = jax.block_until_ready(compiled(operands))
        anomalies += check_quiet_barrier(bench, "after one function of several types")
        in_order = callback.ordered and count == 1
        found = [each for each in wanted if each in seen] if callback.runs is Runs.IF_NEEDED else [*seen]
        if (found if in_order else sorted(found)) != (wanted if in_order else sorted(wanted)):
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"it saw {seen}, expected {wanted}"))
        for result, operand in zip(results, operands, strict=True):
            if _shown(np.asarray(result)) != _shown(operand):
                witness = f"of {_shown(operand)} came {_shown(np.asarray(result))}"
                anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies


@planted("jit", "call io_callback_ordered", "H18")
def same_function_of_other_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One operand, and a result of another type at each place: the function returns them in this order."""
    dtypes = [np.dtype(name) for name in ("float32", "int32", "uint8", "float32")]
    seen: list[Seen] = []
    function = _Converting(seen, dtypes)
    compiled = bench.compile(lambda x: [_applied(bench, callback, function, x, dtype) for dtype in dtypes])
    anomalies: list[Anomaly] = []
    for _ in range(2):
        seen.clear()
        results = jax.block_until_ready(compiled(_ROW))
        anomalies += check_quiet_barrier(bench, "after one function of several results")
        for result, dtype in zip(results, dtypes, strict=True):
            if _shown(np.asarray(result)) != _shown(_ROW.astype(dtype)):
                witness = f"a result of {dtype} came as {_shown(np.asarray(result))}"
                anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies


@planted("pjit", "id_tap", "H10 H18", minimum_devices=2)
def same_function_on_other_devices(bench: Bench, callback: Callback) -> list[Anomaly]:
    """In one program over all devices, taps of one function name one device after the other."""
    seen: list[Any] = []

    def function(operand: Any, transforms: Any, *, device: Any) -> None:
        seen.append(device)

    def computation(x: Any) -> Any:
        for index in range(len(bench.devices)):
            x = library(bench).id_tap(function, x, tap_with_device=True, device_index=index)
        return x

    compiled = bench.compile(computation)
    anomalies: list[Anomaly] = []
    for _ in range(2):
        seen.clear()
        jax.block_until_ready(compiled(bench.operand))
        anomalies += check_quiet_barrier(bench, "after taps on all devices")
        if {*seen} != {*bench.devices} or len(seen) != len(bench.devices):
            witness = f"taps that name one device after the other ran for {seen}"
            return [*anomalies, Anomaly("wrong device", Stage.CALLBACK, witness)]
    return anomalies
