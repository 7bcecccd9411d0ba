"""Fault cells of functions that get JAX arrays: of every type, by the wrapper or the setting, and under a guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted
from .places import flag
from .traces import library

DTYPES = ("bool", "bfloat16", "float16", "float32", "int8", "uint32", "complex64")
NAMES = np.array(["one", "two"])

Seen = tuple[bool, str, Any]


def _shown(array: Any) -> Seen:
    host = np.asarray(array)
    return isinstance(array, jax.Array), str(array.dtype), host.astype(np.complex64).tolist()


@planted("jit", "debug_callback", "H16 X4", functions="jax_arrays")
def jax_arrays_of_each_type(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Operands of each type arrive as JAX arrays of this type; an array of texts, which JAX lacks, as it is."""
    operands = [jnp.asarray([1, 0, 1]).astype(name) for name in DTYPES]
    wanted = [(True, name, [1, 0, 1]) for name in DTYPES]
    seen: list[Seen] = []
    texts: list[Any] = []

    def note(names: Any, *values: Any) -> None:
        texts.append(names)
        seen.extend(map(_shown, values))

    hostcb = library(bench)
    debug = hostcb.debug.callback
    anomalies: list[Anomaly] = []

    def check(way: str, function: Callable[..., None]) -> list[Anomaly]:
        seen.clear()
        texts.clear()
        jax.block_until_ready(jax.jit(lambda *values: (debug(function, NAMES, *values), values)[1])(*operands))
        found = check_quiet_barrier(bench, f"after JAX arrays by {way}")
        if seen != wanted:
            witness = f"by {way}, whether it is a JAX array, its type and its values: {seen}, expected {wanted}"
            found.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
        if [np.asarray(each).tolist() for each in texts] != [NAMES.tolist()]:
            found.append(Anomaly("wrong operand", Stage.CALLBACK, f"by {way}, an array of texts came as {texts}"))
        return found

    anomalies += check("the wrapper", hostcb.jax_arrays(note))
    with flag("hostcb_jax_arrays"):
        anomalies += check("the setting", note)
    return anomalies


@planted("jit", "call", "H3", isolated=True)
def jax_arrays_under_a_guard(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A transfer guard that allows explicit transfers alone does not refuse the arrays of a callback."""
    like = jax.ShapeDtypeStruct((3,), np.float32)
    kinds: list[bool] = []

    def host(operand: Any) -> Any:
        kinds.append(isinstance(operand, jax.Array))
        # No transfer of a number.
        return operand + operand

    compiled = jax.jit(lambda x: library(bench).call(library(bench).jax_arrays(host), x, result_shape=like))
    operand = jnp.arange(3, dtype=np.float32)
    wanted = np.arange(3, dtype=np.float32) * 2
    anomalies = check_value("before the guard", lambda: compiled(operand), wanted)
    # Of all threads: a context manager guards the calling one alone.
    jax.config.update("jax_transfer_guard", "disallow")
    try:
        result = jax.block_until_ready(compiled(operand))
    finally:
        jax.config.update("jax_transfer_guard", "allow")
    anomalies += check_value("under a guard", lambda: result, wanted)
    anomalies += check_quiet_barrier(bench, "after a callback under a guard")
    if kinds != [True, True]:
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"whether the operands were JAX arrays: {kinds}"))
    return anomalies


@planted("jit", "pure_callback io_callback", "H16 X2 X3", functions="jax_arrays", minimum_devices=2, isolated=True)
def jax_arrays_of_every_argument(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Arguments by position and by name are JAX arrays, and a function of JAX in the callback is on the CPU device.

    The device of the program's choice is another one.
    """
    hostcb = library(bench)
    function = getattr(hostcb, callback.function)
    like = jax.ShapeDtypeStruct((3,), np.float32)
    cpu = jax.local_devices(backend="cpu")[0]
    seen: list[Any] = []

    def host(*args: Any, **named: Any) -> Any:
        values = [*args, *named.values()]
        seen.append(([isinstance(each, jax.Array) for each in values], jnp.ones(2).devices() == {cpu}))
        return values[0] + np.float32(1)

    ways: dict[str, Callable[[Any, Any], Any]] = {
        "by position": lambda f, x: function(f, like, x),
        "by name": lambda f, x: function(f, like, x=x),
        "by both": lambda f, x: function(f, like, x, y=x),
    }
    anomalies: list[Anomaly] = []
    jax.config.update("jax_default_device", bench.devices[-1])
    for how, way in ways.items():
        seen.clear()
        programs = [jax.jit(lambda x, way=way: way(hostcb.jax_arrays(host), x))]
        anomalies += check_value(f"{how}, the wrapper", lambda p=programs[0]: p(bench.operand), bench.operand + 1)  # type: ignore[misc]
        with flag("hostcb_jax_arrays"):
            asked = jax.jit(lambda x, way=way: way(host, x))
            anomalies += check_value(f"{how}, the setting", lambda p=asked: p(bench.operand), bench.operand + 1)  # type: ignore[misc]
        count = 2 if how == "by both" else 1
        if seen != [([True] * count, True)] * 2:
            witness = f"{how}, whether arguments are JAX arrays, and whether JAX runs on the CPU device: {seen}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after JAX arrays")
