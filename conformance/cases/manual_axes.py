"""Fault cells of results in `shard_map`: a result varies over an axis of the mesh if one of the operands does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value, error_of
from .harness.registry import WITH_RESULTS, planted
from .traces import library


# A check of what varies is in releases with `jax.shard_map` alone.
@planted(
    "shard_map", f"{WITH_RESULTS} buffer_callback", "H9", minimum_devices=2, needs="shard_map", functions="barrier_wait"
)
def varies_with_each_operand(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H9: whichever of the operands varies, the result does: it cannot leave as one that is the same everywhere."""
    everywhere, by_row = PartitionSpec(), bench.split.spec
    whole = jax.device_put(jnp.ones((1, 3), np.float32), NamedSharding(bench.mesh, everywhere))
    rows = jax.device_put(jnp.asarray(bench.operand), bench.split)
    like = jax.ShapeDtypeStruct((1, 3), np.float32)

    def through(*each: Any) -> Any:
        return bench.apply(callback, lambda given: sum(map(np.asarray, given)), each, like)

    anomalies: list[Anomaly] = []
    for which in range(3):
        operands = [whole, whole, whole]
        operands[which] = rows
        places = tuple(by_row if number == which else everywhere for number in range(3))

        mapped = jax.shard_map(through, mesh=bench.mesh, in_specs=places, out_specs=by_row)
        wanted = bench.operand + np.float32(2)
        anomalies += check_value(f"operand {which} in parts", lambda run=mapped, given=operands: run(*given), wanted)  # type: ignore[misc]
        mistaken = jax.shard_map(through, mesh=bench.mesh, in_specs=places, out_specs=everywhere)
        refused = error_of(lambda run=mistaken, given=operands: jax.jit(run).lower(*given))  # type: ignore[misc]
        if not isinstance(refused, ValueError):
            witness = f"with operand {which} in parts, a result that is the same everywhere came to {refused!r}"
            anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
    return anomalies + check_quiet_barrier(bench, "after programs of several operands")


@planted("shard_map", WITH_RESULTS, "H9", minimum_devices=4, needs="shard_map", functions="barrier_wait")
def varies_over_two_axes(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H9: of operands that vary over different axes of a mesh, the result varies over all of these."""
    rows = len(bench.devices) // 2
    mesh = Mesh(np.asarray(bench.devices).reshape(rows, 2), ("x", "y"))
    first, second = np.arange(rows, dtype=np.float32), np.array([10, 20], np.float32)
    like = jax.ShapeDtypeStruct((1,), np.float32)

    def through(a: Any, b: Any) -> Any:
        return bench.apply(callback, lambda given: np.asarray(given[0]) + np.asarray(given[1]), (a, b), like)

    def program(place: Any) -> Any:
        places = (PartitionSpec("x"), PartitionSpec("y"))
        return jax.jit(jax.shard_map(through, mesh=mesh, in_specs=places, out_specs=place))

    wanted = (first[:, None] + second).ravel()
    over_both = program(PartitionSpec(("x", "y")))
    anomalies = check_value("over both axes", lambda: over_both(first, second), wanted)
    for place in (PartitionSpec("x"), PartitionSpec("y"), PartitionSpec()):
        refused = error_of(lambda place=place: program(place).lower(first, second))  # type: ignore[misc]
        if not isinstance(refused, ValueError):
            witness = f"a result that varies over two axes, as one with {place}, came to {refused!r}"
            anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
    return anomalies + check_quiet_barrier(bench, "after programs over two axes")


@planted("shard_map", "id_tap call io_callback_ordered", "H9 X3", minimum_devices=2, needs="shard_map")
def devices_in_both_orders(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Programs over the same devices in one order and in the other go on, one after the other, with their own parts."""
    seen: list[float] = []

    def host(operand: Any) -> Any:
        seen.append(float(np.asarray(operand).sum()))
        return np.asarray(operand) + np.float32(1)

    programs = []
    for devices in (bench.devices[:2], bench.devices[1::-1]):
        mesh, rows = Mesh(np.asarray(devices), ("rows",)), PartitionSpec("rows")
        through = jax.shard_map(
            lambda x: bench.apply(callback, host, x, jax.ShapeDtypeStruct((1,), np.float32)),
            mesh=mesh,
            in_specs=rows,
            out_specs=rows,
        )
        programs.append((jax.jit(through), jax.device_put(np.arange(2, dtype=np.float32), NamedSharding(mesh, rows))))
    wanted = bench.expected(callback, np.arange(2, dtype=np.float32))
    anomalies: list[Anomaly] = []
    for run in range(4):
        for number in (0, 1, 0):
            seen.clear()
            program, operand = programs[number]
            label = f"run {run} in order {number}"
            anomalies += check_value(label, lambda program=program, operand=operand: program(operand), wanted)  # type: ignore[misc]
            anomalies += check_quiet_barrier(bench, label)
            if sorted(seen) != [0.0, 1.0]:
                anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"{label}: callbacks saw {seen}"))
    return anomalies[:3]


@planted(
    "pjit",
    "io_callback io_callback_ordered",
    "H9 H10 X3",
    minimum_devices=2,
    needs="shard_map",
    functions="barrier_wait",
)
def draws_inside_and_outside(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One callback without operands, in a `shard_map` and outside of it in one program: each has its own result."""
    draws = np.array([-0.0, 1, 2, 3], np.float32)
    like = jax.ShapeDtypeStruct(draws.shape, draws.dtype)
    rows = bench.split.spec

    def draw(_: Any = None) -> Any:
        return draws

    def through() -> Any:
        return library(bench).io_callback(draw, like, ordered=callback.ordered)

    def program(x: Any) -> Any:
        part = jax.shard_map(lambda x: x + through(), mesh=bench.mesh, in_specs=rows, out_specs=rows)(x)
        return part, through()

    operand = jax.device_put(jnp.zeros(4 * len(bench.devices), np.float32), bench.split)
    part, whole = jax.jit(program)(operand)
    anomalies = check_value("parts", lambda: part, np.tile(np.abs(draws), len(bench.devices)))
    found = np.signbit(np.asarray(whole)).tolist()
    if found != [True, False, False, False]:
        anomalies.append(Anomaly("result", Stage.RESULT, f"the signs outside of the shard_map are {found}"))
    return anomalies + check_quiet_barrier(bench, "after draws")
