"""Fault cells of callbacks where no program of the matrix has them: held functions, mutable arrays, inline calls."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import linear_call
from jax.experimental.custom_partitioning import custom_partitioning

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench, Function
from .harness.checks import PLANTED, check_quiet_barrier, error_of, unequal
from .harness.registry import planted
from .traces import library

START = np.arange(4, dtype=np.float32)


seen_as = partial(unequal, "wrong callback", Stage.CALLBACK)


def _in_linear_call(function: Function) -> Function:
    return lambda x: linear_call(lambda residual, x: function(x), lambda residual, ct: ct, (), x)


def _in_composite(function: Function) -> Function:
    return lambda x: jax.lax.composite(lambda x: function(x), "conformance.held")(x)


def _in_custom_partitioning(function: Function) -> Function:
    held = custom_partitioning(lambda x: function(x))
    held.def_partition(infer_sharding_from_operands=None, partition=None, sharding_rule="i -> i")
    return held


HOLDERS: dict[str, Callable[[Function], Function]] = {
    "linear_call": _in_linear_call,
    "composite": _in_composite,
    "custom_partitioning": _in_custom_partitioning,
}


@planted("jit", "id_tap call", "H4")
def held_functions(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H4: a primitive that holds a function hides its effects. The callback runs even if nobody uses the result."""
    anomalies = []
    for name, held in HOLDERS.items():
        seen: list[float] = []

        def host(operand: Any, seen: list[float] = seen) -> Any:
            seen.append(float(np.asarray(operand).sum()))
            return np.asarray(operand)

        def function(x: Any, host: Any = host) -> Any:
            return bench.apply(callback, host, x)

        def twice(x: Any, function: Any = function, held: Any = held) -> Any:
            held(function)(x)
            return function(held(function)(x + 1) + 1)

        result = np.asarray(jax.jit(twice)(START))
        bench.implementation.barrier()
        anomalies += seen_as(name, seen, [6.0, 10.0, 14.0])
        if not np.array_equal(result, START + 2):
            anomalies.append(Anomaly("result", Stage.RESULT, f"{name} gave {result}, expected {START + 2}"))
    return anomalies


@planted("jit", "id_tap call", "H4")
def held_beside_an_effect(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A held function with an ordered callback and an io_callback: both run, or the latter is refused."""
    anomalies = []
    for name, held in HOLDERS.items():
        seen: list[str] = []

        def ordered(operand: Any, seen: list[str] = seen) -> Any:
            seen.append("ordered")
            return np.asarray(operand)

        def function(x: Any, seen: list[str] = seen, ordered: Any = ordered) -> Any:
            library(bench).io_callback(lambda _: seen.append("effect"), None, x)
            return bench.apply(callback, ordered, x)

        through = held(function)
        result = np.asarray(jax.jit(lambda x, f=through: (f(x), x)[1])(START))
        bench.implementation.barrier()
        anomalies += seen_as(name, sorted(seen), ["effect", "ordered"])
        if not np.array_equal(result, START):
            anomalies.append(Anomaly("result", Stage.RESULT, f"{name} gave {result}, expected {START}"))
    through = _in_linear_call(function)
    lanes = jax.vmap(lambda x: jax.lax.cond(x[0] > 1, through, lambda x: x, x))
    error = error_of(lambda: jax.jit(lanes)(np.stack([START, START + 2])))
    if not isinstance(error, NotImplementedError) or "IO effect" not in str(error):
        witness = f"an io_callback in a function that is held in a branch of some lanes ended with {error!r}"
        anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
    return anomalies + check_quiet_barrier(bench, "after held functions with two effects")


@planted("jit", "debug_callback", "X4", functions="barrier_wait")
def held_and_unused(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A debug callback in a held function runs although nobody uses the function's result."""
    anomalies: list[Anomaly] = []
    for name, held in HOLDERS.items():
        seen: list[float] = []

        def function(x: Any, seen: list[float] = seen) -> Any:
            library(bench).debug.callback(lambda operand: seen.append(float(operand.sum())), x)
            return x * 2

        through = held(function)
        jax.block_until_ready(jax.jit(lambda x, f=through: (f(x), x)[1])(START))
        anomalies += check_quiet_barrier(bench, f"after a debug callback in a {name}")
        anomalies += seen_as(name, seen, [float(START.sum())])
    return anomalies


@planted("jit", "id_tap call", "H1 H3")
def mutable_arrays(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H1, H3: of a mutable array, the value at that point of the program travels, in loops and branches, too."""
    seen: list[list[float]] = []

    def note(value: Any, transforms: Any = None) -> Any:
        seen.append(np.asarray(value).tolist())
        return np.asarray(value)

    def changed(ref: Any) -> int:
        ref[...] += 1
        if callback.function == "id_tap":
            # It returns the mutable array itself.
            ref = bench.implementation.tap(note, ref)
        else:
            bench.implementation.call(note, ref, jax.ShapeDtypeStruct((2,), np.float32))
        ref[...] += 10
        return 0

    def in_scan(ref: Any) -> None:
        jax.lax.scan(lambda carry, _: (carry + changed(ref), None), 0, None, length=2)

    def in_loop(ref: Any) -> None:
        jax.lax.fori_loop(0, 2, lambda _, carry: carry + changed(ref), 0)

    def in_while(ref: Any) -> None:
        jax.lax.while_loop(lambda carry: carry < 2, lambda carry: carry + 1 + changed(ref), 0)

    def in_branch(ref: Any) -> None:
        jax.lax.cond(ref[0] < 5, lambda: changed(ref), lambda: 0)

    once = [[1.0, 2.0]]
    anomalies = []
    for name, program, wanted in (
        ("a program", changed, once),
        ("a scan", in_scan, [*once, [12.0, 13.0]]),
        ("a fori_loop", in_loop, [*once, [12.0, 13.0]]),
        ("a while_loop", in_while, [*once, [12.0, 13.0]]),
        ("a branch", in_branch, once),
    ):
        ref = jax.new_ref(jnp.arange(2.0))
        jax.jit(program)(ref)
        bench.implementation.barrier()
        anomalies += seen_as(name, seen, wanted)
        seen.clear()
    return anomalies


@contextlib.contextmanager
def flag(name: str) -> Iterator[None]:
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, None)


@planted("jit", "id_tap call", "H16")
def inline(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H16: outside jit, an inline callback runs in the calling thread at once, and its exceptions pass."""
    seen: list[tuple[bool, list[float]]] = []
    here = threading.current_thread()

    def host(operand: Any) -> Any:
        seen.append((threading.current_thread() is here, np.asarray(operand).tolist()))
        return np.asarray(operand) + np.float32(1)

    def failing(operand: Any) -> Any:
        raise ValueError(PLANTED)

    anomalies = []
    with flag("jax_host_callback_inline"):
        result = np.asarray(bench.apply(callback, host, jnp.asarray(START)))
        anomalies += seen_as("at once", seen, [(True, START.tolist())])
        if not np.array_equal(result, bench.expected(callback, START)):
            anomalies.append(Anomaly("result", Stage.RESULT, f"an inline callback gave {result}"))
        try:
            bench.apply(callback, failing, jnp.asarray(START))
        except ValueError as error:
            anomalies += seen_as("the text of its exception", PLANTED in str(error), True)
        else:
            anomalies.append(Anomaly("swallowed error", Stage.DISPATCH, "an inline callback raised, and nothing came"))
    with contextlib.suppress(bench.implementation.callback_exception):
        bench.implementation.barrier()
    return anomalies + check_quiet_barrier(bench, "after an inline failure")


@planted("jit", "id_tap", "H16")
def taps_of_derivatives(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H16: with the setting, tangents and cotangents are tapped, with 'jvp' and 'transpose' among the transforms."""
    seen: list[tuple[Any, list[str]]] = []

    def note(value: Any, transforms: Any) -> None:
        numbers = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(value)]
        seen.append((numbers, [name for name, _ in transforms]))

    def cubed(x: Any) -> Any:
        return bench.implementation.tap(note, x * x) * x

    with warnings.catch_warnings(record=True) as warned, flag("jax_host_callback_ad_transforms"):
        warnings.simplefilter("always")
        tangent = jax.jit(lambda x: jax.jvp(cubed, (x,), (1.0,)))(3.0)
        bench.implementation.barrier()
        forward = [*seen]
        seen.clear()
        derivative = float(jax.jit(jax.grad(cubed))(3.0))
        bench.implementation.barrier()
    anomalies = seen_as("whether a warning came", any(each.category is FutureWarning for each in warned), True)
    anomalies += seen_as("values and tangents", forward, [([9.0, 6.0], ["jvp"])])
    anomalies += seen_as("values, then cotangents", seen, [([9.0], []), ([3.0], ["jvp", "transpose"])])
    anomalies += seen_as("the derivatives", ([float(each) for each in tangent], derivative), ([27.0, 27.0], 27.0))
    return anomalies
