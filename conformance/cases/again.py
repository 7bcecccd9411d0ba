"""Fault cells of the runs after the first: JAX may dispatch them in another way, and what they return is of one kind.

The kind of an array is its type, its devices, and whether these were chosen; a callback leaves it as it is without one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.jax_versions import shard_map
from ..spec.thresholds import THRESHOLDS
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value, still_alive
from .harness.registry import EVERY_KIND, planted
from .traces import library

RUNS = 4
ODD = np.arange(5)


def _kind_of(array: Any) -> list[Any]:
    parts = sorted(
        (part.device.id, str(part.index), np.asarray(part.data).tolist()) for part in array.addressable_shards
    )
    return [array.dtype.name, array.weak_type, array.shape, array.committed, parts]


def _program(bench: Bench, through: Callable[[Any], Any]) -> Callable[..., Any]:
    """A program that uses all of its operands but the first, and whose results are of several types and places."""

    def program(unused: Any, whole: Any, half: Any, rows: Any) -> Any:
        called = through(rows)
        return whole * 2, called, half * through(2.0), jnp.asarray(rows[..., :2], np.int32)

    if bench.layout == "jit":
        return jax.jit(program)
    all_of_it, by_row = PartitionSpec(), bench.split.spec
    places = all_of_it, all_of_it, all_of_it, by_row
    return jax.jit(
        shard_map(program, mesh=bench.mesh, in_specs=places, out_specs=(all_of_it, by_row, all_of_it, by_row))
    )


@planted("jit shard_map", f"{EVERY_KIND} debug_callback_ordered", "H1 H3 X2 X3 X4 B1 D1")
def same_at_each_run(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Of a program with an operand that it does not use, and with results of several types, on several devices."""

    def host(operand: Any) -> Any:
        return np.asarray(operand) + np.float32(1)

    def through(x: Any) -> Any:
        if callback.returns_new_value and not np.ndim(x):
            return x
        return bench.apply(callback, host, x)

    def without(x: Any) -> Any:
        return bench.expected(callback, x) if np.ndim(x) else x

    free = (ODD, np.float32(3), jnp.ones(2, jnp.bfloat16), bench.operand)
    chosen = jax.device_put(free, bench.devices[0])
    if bench.layout != "jit":
        everywhere = NamedSharding(bench.mesh, PartitionSpec())
        chosen = jax.device_put(free, (everywhere, everywhere, everywhere, bench.split))
    anomalies: list[Anomaly] = []
    for what, operands in (("free operands", free), ("operands on chosen devices", chosen)):
        program, plain = _program(bench, through), _program(bench, without)
        for run in range(RUNS):
            found = [_kind_of(each) for each in jax.block_until_ready(program(*operands))]
            wanted = [_kind_of(each) for each in plain(*operands)]
            for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
                if one != other:
                    witness = f"run {run} on {what}: result {number} is {one}, without a callback {other}"
                    anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies[:3] + check_quiet_barrier(bench, "after several runs")


@dataclass(frozen=True)
class _Scale:
    """Scales of 1, 1.0 and True are equal, and do not do the same."""

    by: object
    seen: list[str] = field(compare=False)

    def __call__(self, *arguments: Any) -> Any:
        self.seen.append(type(self.by).__name__)
        return np.asarray(arguments[-1]) * np.float32(1)


@planted("jit", EVERY_KIND, "H18 X2 X3 X4 B1 D1", functions="barrier_wait")
def equal_functions_that_differ(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H18: equal functions make equal programs, and each program still calls its own, outside jit as well."""
    seen: list[str] = []
    anomalies: list[Anomaly] = []
    for how in ("outside jit", "in jit"):
        seen.clear()
        for by in (1, True, 1.0):

            def program(x: Any, by: object = by) -> Any:
                return bench.apply(callback, _Scale(by, seen), x)

            jax.block_until_ready((jax.jit(program) if how == "in jit" else program)(jnp.asarray(bench.operand)))
            anomalies += check_quiet_barrier(bench, "after equal functions")
        if seen != ["int", "bool", "float"]:
            anomalies.append(Anomaly("mistaken", Stage.CALLBACK, f"{how} the functions with {seen} ran"))
    return anomalies


class _Column:
    """A function that keeps what it gets, and is equal to others of its name."""

    def __init__(self) -> None:
        self.rows: list[float] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Column)

    def __hash__(self) -> int:
        return hash("a column")

    def __call__(self, operand: Any, transforms: Any = ()) -> Any:
        self.rows.append(float(np.asarray(operand)))
        return np.asarray(operand)


@planted("jit", "id_tap call", "H1 H3 H18", functions="barrier_wait")
def equal_functions_in_one_program(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H18: of two functions that are equal, each gets its own operands, alone and in a loop."""
    hostcb = library(bench)

    def through(column: _Column, x: Any) -> Any:
        return hostcb.id_tap(column, x) if callback.function == "id_tap" else hostcb.call(column, x, result_shape=x)

    def both(x: Any) -> Any:
        return through(second, through(first, x) * 2)

    anomalies: list[Anomaly] = []
    for what, program, due in (
        ("alone", both, [[1.0], [2.0]]),
        ("in a loop", lambda x: jax.lax.fori_loop(0, 2, lambda _, carry: both(carry), x), [[1.0, 2.0], [2.0, 4.0]]),
    ):
        first, second = _Column(), _Column()
        jax.block_until_ready(jax.jit(program)(np.float32(1)))
        anomalies += check_quiet_barrier(bench, "after equal functions")
        if [first.rows, second.rows] != due:
            witness = f"{what}, two equal functions saw {[first.rows, second.rows]}, expected {due}"
            anomalies.append(Anomaly("mistaken", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "buffer_callback dlpack_callback", "H18", crosses=("eager_programs",), functions="barrier_wait")
def many_outside_jit_are_forgotten(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H18: of many functions that were used outside jit, some live on with their programs, and not all."""
    limit = THRESHOLDS["eager_programs"].value
    references: dict[str, weakref.ref[Any]] = {}
    anomalies: list[Anomaly] = []
    for number in range(2 * limit):

        def host(operand: Any, number: int = number) -> Any:
            return np.asarray(operand) + np.float32(number)

        def run(host: Any = host) -> Any:
            return bench.apply(callback, host, jnp.asarray(bench.operand))

        references[str(number)] = weakref.ref(host)
        anomalies += check_value(f"function {number}", run, bench.operand + np.float32(number))
    del host, run
    alive = still_alive({name: reference for name, reference in references.items() if int(name) < limit - 1})
    if alive:
        witness = f"of {2 * limit} functions, the first ones are still there: {alive}"
        anomalies.append(Anomaly("leak", Stage.EXIT, witness))
    return anomalies[:3] + check_quiet_barrier(bench, "after many functions")
