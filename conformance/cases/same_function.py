"""Fault cells of one function in one program, with several types, shapes and results: no two may be confused."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import ONE_OF_EACH, planted
from .traces import library

_ROW = np.array([1.0, 2.0, 3.0], np.float32)

# Of one size, so that the one could stand for the other.
OPERANDS: tuple[np.ndarray, ...] = (_ROW, _ROW.astype(np.int32), _ROW.astype(np.uint32), _ROW[None], _ROW[:, None])

RUNS = 10

WHILE = 0.2
"""Seconds for what must not come."""

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


@planted("pjit", "id_tap call", "H10 H18", minimum_devices=2)
def same_function_on_other_devices(bench: Bench, callback: Callback) -> list[Anomaly]:
    """In one program over all devices, each callback of one function names another device."""
    seen: list[Any] = []

    def function(operand: Any, transforms: Any = None, *, device: Any) -> Any:
        seen.append(device)
        return np.asarray(operand)

    def on(index: int, x: Any) -> Any:
        if callback.function == "id_tap":
            return library(bench).id_tap(function, x, tap_with_device=True, device_index=index)
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return library(bench).call(function, x, result_shape=like, call_with_device=True, device_index=index)

    def computation(x: Any) -> Any:
        for index in range(len(bench.devices)):
            x = on(index, x)
        return x

    compiled = bench.compile(computation)
    anomalies: list[Anomaly] = []
    for _ in range(2):
        seen.clear()
        anomalies += check_value("the program", lambda: compiled(bench.operand), bench.operand)
        anomalies += check_quiet_barrier(bench, "after callbacks on all devices")
        if {*seen} != {*bench.devices} or len(seen) != len(bench.devices):
            witness = f"callbacks that name one device after the other ran for {seen}"
            return [*anomalies, Anomaly("wrong device", Stage.CALLBACK, witness)]
    return anomalies


@planted("pjit", "call", "H5 H10", minimum_devices=2)
def in_order_on_its_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A call that names the last device runs after the taps there, and its failure names this device."""
    last = len(bench.devices) - 1
    seen: list[str] = []
    fails: list[bool] = []
    called = threading.Event()

    def tapped(operand: Any, transforms: Any) -> None:
        called.wait(WHILE)
        seen.append("tap")

    def function(operand: Any) -> Any:
        seen.append("call")
        called.set()
        if fails:
            raise ValueError(PLANTED)
        return np.asarray(operand)

    def computation(x: Any) -> Any:
        x = library(bench).id_tap(tapped, x, device_index=last)
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return library(bench).call(function, x, result_shape=like, device_index=last)

    compiled = bench.compile(computation)
    anomalies: list[Anomaly] = []
    for _ in range(3):
        seen.clear()
        called.clear()
        anomalies += check_value("the program", lambda: compiled(bench.operand), bench.operand)
        anomalies += check_quiet_barrier(bench, "after a tap and a call on the last device")
        if seen != ["tap", "call"]:
            anomalies.append(Anomaly("order", Stage.CALLBACK, f"on the last device came {seen}"))
    fails.append(True)
    error, told = error_of(lambda: compiled(bench.operand)), error_of(bench.implementation.barrier)
    for where, text in (("the error", str(error)), ("the barrier", str(told))):
        if PLANTED not in text or str(bench.devices[last]) not in text:
            witness = f"{where} of a call that failed on {bench.devices[last]} is {text!r}"
            anomalies.append(Anomaly("poor error", Stage.RESULT, witness))
    return anomalies


@planted("pjit", "debug_callback", "H18 X4", minimum_devices=2)
def same_function_in_parts(bench: Bench, callback: Callback) -> list[Anomaly]:
    """In one program over all devices, with and without `partitioned`: the whole once, and each part once."""
    seen: list[tuple[int, ...]] = []

    def function(operand: Any) -> None:
        seen.append(np.shape(operand))

    debug = library(bench).debug.callback
    whole = np.shape(bench.operand)
    wanted = sorted([whole, *[(1, *whole[1:])] * len(bench.devices)])
    anomalies: list[Anomaly] = []
    for order in ((False, True), (True, False)):

        def computation(x: Any, order: tuple[bool, ...] = order) -> Any:
            for partitioned in order:
                debug(function, x, partitioned=partitioned)
            return x

        seen.clear()
        anomalies += check_value("the program", lambda f=computation: bench.compile(f)(bench.operand), bench.operand)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, "after a whole and its parts")
        if sorted(seen) != wanted:
            anomalies.append(Anomaly("mistaken", Stage.CALLBACK, f"it saw {sorted(seen)}, expected {wanted}"))
    return anomalies


@planted("jit", "id_tap", "H1 H3 H18 X2 X3 X4")
def same_function_by_other_ways(bench: Bench, callback: Callback) -> list[Anomaly]:
    """In one program: with and without the device, pure and not, ordered and not; each as in a program of its own."""
    hostcb = library(bench)
    one = jax.ShapeDtypeStruct((3,), np.float32)
    seen: list[str] = []

    def function(operand: Any, transforms: Any = None, *, device: Any = None) -> Any:
        seen.append(f"{float(np.asarray(operand)[0])}{'' if device is None else ' on a device'}")
        return np.asarray(operand)

    def unused(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def program(x: Any) -> Any:
            call(x)
            return x

        return program

    ways: dict[str, Callable[[Any], Any]] = {
        "a tap": lambda x: hostcb.id_tap(function, x),
        "a tap with its device": lambda x: hostcb.id_tap(function, x, tap_with_device=True),
        "a call": lambda x: hostcb.call(function, x, result_shape=one),
        "a call with its device": lambda x: hostcb.call(function, x, result_shape=one, call_with_device=True),
        "a pure callback": lambda x: hostcb.pure_callback(function, one, x),
        "an unused pure callback": unused(lambda x: hostcb.pure_callback(function, one, x)),
        "an unused io_callback": unused(lambda x: hostcb.io_callback(function, one, x)),
        "an ordered io_callback": lambda x: hostcb.io_callback(function, one, x, ordered=True),
        "a debug callback": unused(lambda x: hostcb.debug.callback(function, x)),
        "an ordered debug callback": unused(lambda x: hostcb.debug.callback(function, x, ordered=True)),
    }

    def run(program: Callable[[Any], Any]) -> list[str]:
        seen.clear()
        jax.block_until_ready(jax.jit(program)(_ROW))
        bench.implementation.barrier()
        return sorted(seen)

    alone = {name: run(way) for name, way in ways.items()}
    # Each runs alone after the others, whose programs may live.
    anomalies = [
        Anomaly("mistaken", Stage.CALLBACK, f"{name} after the others saw {found}")
        for name, found in alone.items()
        if (name == "an unused pure callback") != (not found)
        or any(each.endswith("on a device") != name.endswith("with its device") for each in found)
    ]
    for (first, one_way), (second, other_way) in itertools.permutations(ways.items(), 2):
        found = run(lambda x, one=one_way, other=other_way: (one(x), other(x)))  # type: ignore[misc]
        if found != sorted(alone[first] + alone[second]):
            witness = f"{first} and {second} in one program saw {found}, and apart {alone[first]} and {alone[second]}"
            anomalies.append(Anomaly("mistaken", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "buffer_callback", "B1 H18")
def same_types_with_and_without_alias(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Two functions of the same types in one program, of which one changes its operand in place: in each order."""
    like = jax.ShapeDtypeStruct(_ROW.shape, _ROW.dtype)

    def twice(context: Any, out: Any, x: Any) -> None:
        np.multiply(np.asarray(x), 2, out=np.asarray(out))

    def one_more(context: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] += 1

    doubled = library(bench).buffer_callback(twice, like)
    in_place = library(bench).buffer_callback(one_more, like, input_output_aliases={0: 0})
    orders: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
        "in place at last": (lambda x: in_place(doubled(x)), _ROW * 2 + 1),
        "in place at first": (lambda x: doubled(in_place(x + 0)), (_ROW + 1) * 2),
    }
    anomalies: list[Anomaly] = []
    for order, (function, wanted) in orders.items():
        program = jax.jit(function)
        for _ in range(2):
            anomalies += check_value(order, lambda p=program: p(_ROW), wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after functions in place and not")


@planted("jit", "id_tap", "H1 H18")
def same_tap_with_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Taps of one function, with and without `result=`: each returns its operand, or what was given."""
    seen: list[Seen] = []
    function = _Function(seen)
    tap = library(bench).id_tap

    def computation(x: Any) -> Any:
        return tap(function, x), tap(function, x + 1, result=x * 5), tap(function, x + 2), tap(function, x, result=-x)

    anomalies: list[Anomaly] = []
    for way, run in (("outside jit", computation), ("in jit", bench.compile(computation))):
        seen.clear()
        results = jax.block_until_ready(run(jnp.asarray(_ROW)))
        anomalies += check_quiet_barrier(bench, f"after taps with results {way}")
        for result, wanted in zip(results, (_ROW, _ROW * 5, _ROW + 2, -_ROW), strict=True):
            anomalies += check_value(f"a tap {way}", lambda r=result: r, wanted)  # type: ignore[misc]
        if seen != [_shown(each) for each in (_ROW, _ROW + 1, _ROW + 2, _ROW)]:
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"{way} it saw {seen}"))
    return anomalies


@planted("jit", "call", "H3 H18")
def same_function_of_other_trees(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One operand, and the same arrays in another tree at each place: the function returns them in this order."""
    one = jax.ShapeDtypeStruct((3,), np.float32)
    trees: list[Any] = [one, None, (one,), [one], {"a": one}, {"b": one}, (one, None), ()]
    returned: list[Any] = []

    def function(operand: Any) -> Any:
        returned.append(None)
        return jax.tree.map(lambda _: np.asarray(operand), trees[len(returned) - 1])

    compiled = bench.compile(lambda x: [library(bench).call(function, x, result_shape=tree) for tree in trees])
    anomalies: list[Anomaly] = []
    for _ in range(2):
        returned.clear()
        results = jax.block_until_ready(compiled(_ROW))
        anomalies += check_quiet_barrier(bench, "after one function of several trees")
        for result, tree in zip(results, trees, strict=True):
            structures: list[Any] = [jax.tree.structure(each) for each in (result, tree)]
            if structures[0] != structures[1] or not all(
                np.array_equal(leaf, _ROW) for leaf in jax.tree.leaves(result)
            ):
                anomalies.append(Anomaly("result", Stage.RESULT, f"for {tree} came {result}"))
    return anomalies


@planted("jit", ONE_OF_EACH, "H18")
def same_function_of_other_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The same two arrays in one tree after the other: the function gets each of them."""
    seen: list[str] = []

    def function(operand: Any, transforms: Any = None) -> Any:
        seen.append(str(jax.tree.structure(operand)))
        return _ROW

    def trees(x: Any) -> list[Any]:
        return [(x, x), [x, x], {"a": x, "b": x}, {"a": x, "c": x}, {"a": (x, x)}, (x, x)]

    like = jax.ShapeDtypeStruct(_ROW.shape, _ROW.dtype)

    def computation(x: Any) -> list[Any]:
        if callback.function == "id_tap":
            return [bench.implementation.tap(function, tree) for tree in trees(x)]
        return [bench.apply(callback, function, tree, like) for tree in trees(x)]

    jax.block_until_ready(bench.compile(computation)(_ROW))
    anomalies = check_quiet_barrier(bench, "after one function of several operands")
    wanted = [str(jax.tree.structure(tree)) for tree in trees(0)]
    # Without an effect, the compiler orders them, and may keep one of equal calls.
    if seen != wanted if callback.ordered else {*seen} != {*wanted}:
        anomalies.append(Anomaly("mistaken", Stage.CALLBACK, f"it saw {seen}, expected {wanted}"))
    return anomalies


@planted("jit", "id_tap", "H5 H18 X3 X4")
def same_function_in_order(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function that has been used without an order keeps it where it is asked for: after taps, and under vmap."""
    hostcb = library(bench)
    one = jax.ShapeDtypeStruct((), np.float32)
    order: list[str] = []

    def function(operand: Any) -> Any:
        order.append("called")
        return np.float32(0)

    def tapped(step: Any, value: Any) -> Any:
        hostcb.id_tap(lambda *_: order.append("tapped"), step)
        return value

    def debugged(x: Any) -> Any:
        x = jax.lax.fori_loop(0, RUNS, tapped, x)
        hostcb.debug.callback(function, x, ordered=True)
        return x

    # Whatever JAX and the library keep of these lives as long as they do.
    before = [
        jax.jit(lambda x: hostcb.debug.callback(function, x)).trace(np.float32(1)),
        jax.jit(lambda x: hostcb.io_callback(function, one, x)).trace(np.float32(1)),
    ]
    program = jax.jit(debugged)
    for _ in range(RUNS):
        jax.block_until_ready(program(np.float32(1)))
    anomalies = check_quiet_barrier(bench, "after taps and debug callbacks")
    if order != [*["tapped"] * RUNS, "called"] * RUNS:
        anomalies.append(Anomaly("order", Stage.CALLBACK, f"an ordered debug callback came in the order {order}"))
    lanes = jax.vmap(lambda x: hostcb.io_callback(function, one, x, ordered=True))
    refused = error_of(lambda: jax.jit(lanes)(_ROW))
    if not isinstance(refused, ValueError) or "ordered" not in str(refused):
        witness = f"vmap of an ordered io_callback ended with {refused or 'a result'!r}, beside {len(before)} others"
        anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
    return anomalies
