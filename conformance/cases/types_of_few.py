"""Fault cells of types that few programs use, where hostcb must name each by itself: in lanes, and by DLPack."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback, Runs
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import planted
from .traces import library

NUMBERS = [0, 1, 2, 4]
BY_DLPACK = (
    *("bool", "bfloat16", "float16", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "int8", "uint16"),
)
METHODS = "sequential", "sequential_unrolled", "expand_dims", "broadcast_all"


def _shown(array: Any) -> tuple[str, list[float]]:
    host = np.asarray(array)
    return host.dtype.name, host.astype(np.float32).ravel().tolist()


@planted("jit", "dlpack_callback", "D1")
def types_by_dlpack(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The function gets each type of an operand that DLPack has, and returns it."""
    anomalies: list[Anomaly] = []
    for name in BY_DLPACK:
        operand = np.asarray(NUMBERS).astype(jnp.dtype(name))
        if jax.dtypes.canonicalize_dtype(operand.dtype) != operand.dtype:
            continue
        seen: list[tuple[str, list[float]]] = []

        def host(given: Any, seen: list[Any] = seen) -> Any:
            seen.append(_shown(given))
            return np.asarray(given).copy()

        like = jax.ShapeDtypeStruct(operand.shape, operand.dtype)
        result = np.asarray(jax.jit(lambda x, h=host, s=like: library(bench).dlpack_callback(h, s)(x))(operand))
        wanted = _shown(operand)
        if seen != [wanted] or _shown(result) != wanted:
            witness = f"of {wanted} the function got {seen}, and the program {_shown(result)}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after types by DLPack")


@planted("jit", "call pure_callback", "H8 X2", functions="barrier_wait")
def small_types_in_lanes(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Under vmap, operands and results of less than a byte keep their type, alone and beside others, by each method."""
    hostcb = library(bench)
    anomalies: list[Anomaly] = []
    for name in ("int4", "uint4", "int2"):
        small = np.asarray([0, 1, 1]).astype(jnp.dtype(name))
        floats = np.arange(3, dtype=np.float32)
        for method in METHODS:
            seen: list[str] = []

            def host(x: Any, n: Any, seen: list[str] = seen) -> Any:
                seen.append(np.asarray(n).dtype.name)
                return np.asarray(x) * 2, np.asarray(n)

            def lane(x: Any, n: Any, host: Any = host, method: str = method) -> Any:
                like = jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct((), n.dtype)
                if callback.function == "pure_callback":
                    return hostcb.pure_callback(host, like, x, n, vmap_method=method)
                return hostcb.call(lambda both: host(*both), (x, n), result_shape=like, vmap_method=method)

            doubled, same = jax.jit(jax.vmap(lane))(floats, small)
            found = _shown(doubled), _shown(same)
            if found != (_shown(floats * 2), _shown(small)) or {*seen} != {name}:
                witness = f"by {method}, lanes of {name} gave {found}, and the function got {seen}"
                anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies + check_quiet_barrier(bench, "after lanes of small types")


@planted("jit", "id_tap call pure_callback io_callback debug_callback", "H1 H3 X2 X3 X4", functions="barrier_wait")
def small_types_beside_others(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A leaf of less than a byte keeps its type and its values, before and after leaves of other types."""
    anomalies: list[Anomaly] = []
    for name in ("int4", "uint4", "int2"):
        small = np.asarray([0, 1, 1]).astype(jnp.dtype(name))
        floats = np.arange(3, dtype=np.float32)
        for tree in ({"a": floats, "b": small}, {"a": small, "b": floats, "c": small}):
            seen: list[Any] = []

            def host(operand: Any, seen: list[Any] = seen) -> Any:
                seen.append(jax.tree.map(_shown, operand))
                return operand["b"]

            like = jax.ShapeDtypeStruct(tree["b"].shape, tree["b"].dtype)
            jax.block_until_ready(jax.jit(lambda x, h=host, s=like: bench.apply(callback, h, x, s))(tree))
            anomalies += check_quiet_barrier(bench, "after small types beside others")
            wanted = jax.tree.map(_shown, tree)
            if (seen and seen[0] != wanted) or (callback.runs is not Runs.IF_NEEDED and len(seen) != 1):
                anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"the function got {seen}, not {wanted}"))
    return anomalies


SMALL = ("int4", "uint4", "int2", "float4_e2m1fn")
"""Types of less than a byte; releases that lack one leave it out."""

RUNS = 3


@planted("jit", "id_tap call debug_callback", "H1 H24 X4", functions="barrier_wait")
@planted("pjit", "debug_callback_partitioned", "X4", minimum_devices=2, functions="barrier_wait")
def small_types_at_each_run(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Values of less than a byte have their own type at each run, alone and as parts on each device."""
    anomalies: list[Anomaly] = []
    for name in SMALL:
        dtype = getattr(jnp, name, None)
        if dtype is None:
            continue
        seen: list[Any] = []

        def host(operand: Any, seen: list[Any] = seen) -> Any:
            seen.append((np.asarray(operand).dtype.name, np.asarray(operand).astype(np.float32).sum()))
            return np.float32(1)

        def program(x: Any, host: Any = host, dtype: Any = dtype) -> Any:
            bench.apply(callback, host, x.astype(dtype), jax.ShapeDtypeStruct((), np.float32))
            return x

        compiled = bench.compile(program)
        ones = np.ones_like(bench.operand)
        for _ in range(RUNS):
            jax.block_until_ready(compiled(ones))
        anomalies += check_quiet_barrier(bench, f"after {name}")
        parts = len(bench.devices) if bench.layout == "pjit" else 1
        wanted = [(name, ones.size / parts)] * (RUNS * parts)
        if seen != wanted:
            witness = f"{RUNS} runs with {name} gave {seen[:8]}, expected {len(wanted)} times {wanted[0]}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


@planted("pjit", "call pure_callback io_callback", "H3 X2 X3", minimum_devices=2, functions="barrier_wait")
def small_results_beside_others(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Results over a mesh with elements of less than a byte, before and after others: each keeps its values."""
    small = [np.asarray([0, 1, 1]).astype(getattr(jnp, name)) for name in SMALL if hasattr(jnp, name)]
    others: list[Any] = [np.int32(-7), np.complex64(1 - 2j), np.float32(-0.0)]
    operand = jax.device_put(bench.operand, bench.split)
    anomalies: list[Anomaly] = []
    for results in ((*small, *others), (*others, *small)):
        likes = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in results)
        compiled = jax.jit(lambda x, r=results, s=likes: bench.apply(callback, lambda _: r, x, s))
        found, wanted = [_bits(each) for each in compiled(operand)], [_bits(each) for each in results]
        if found != wanted:
            anomalies.append(Anomaly("value", Stage.RESULT, f"the results were {found}, expected {wanted}"))
    return anomalies + check_quiet_barrier(bench, "after results of several types")


def _bits(array: Any) -> tuple[str, str]:
    """Its type and its values, whose text has the signs of zeros."""
    host = np.asarray(array)
    wide = host if host.dtype.kind == "c" else host.astype(np.float32)
    return host.dtype.name, str(wide.tolist())
