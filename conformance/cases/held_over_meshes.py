"""Fault cells of functions that the compiler partitions apart, and of axes that it has and that divide nothing."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench, Function
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import EVERY_KIND, planted


def _partitioned(function: Function, part: Function) -> Function:
    """`function` under custom_partitioning, which runs `part` on each device."""
    held = custom_partitioning(lambda x: function(x))
    held.def_partition(
        infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
        partition=lambda mesh, operands, result: (mesh, part, operands[0].sharding, (operands[0].sharding,)),
        sharding_rule="i -> i",
    )
    partitioned: Function = held
    return partitioned


# A callback that is not refused there may end the process.
@planted(
    "pjit",
    EVERY_KIND,
    "H4 X2 X3 X4 B5 D1",
    minimum_devices=2,
    functions="barrier_wait",
    isolated=True,
    deadline=40.0,
)
def refused_in_parts(bench: Bench, callback: Callback) -> list[Anomaly]:
    """On several devices, a callback in a function or in its part is refused in words, and is not called."""
    seen: list[Any] = []

    def host(operand: Any) -> Any:
        seen.append(operand)
        return np.asarray(operand)

    def calls(x: Any) -> Any:
        return bench.apply(callback, host, x)

    def calls_and_drops(x: Any) -> Any:
        bench.apply(callback, host, x)
        return x + 1

    def plain(x: Any) -> Any:
        return x + 1

    operand = jax.device_put(np.arange(len(bench.devices), dtype=np.float32), bench.split)
    anomalies: list[Anomaly] = []
    for what, function, part in (
        ("the function and its part", calls, calls),
        ("the function", calls, plain),
        ("the part", plain, calls),
        ("the part, which drops the result", plain, calls_and_drops),
    ):
        if callback.name == "pure_callback" and part is calls_and_drops:
            # It is not promised to be there at all.
            continue
        try:
            jax.block_until_ready(jax.jit(_partitioned(function, part))(operand))
        except Exception as error:
            # Behind the partitioner's own words where the part is lowered.
            if "custom_partitioning" not in str(error):
                anomalies.append(Anomaly("wrong refusal", Stage.COMPILE, f"in {what} it came to {summary(error)}"))
        else:
            anomalies.append(Anomaly("not refused", Stage.COMPILE, f"in {what} a callback was not refused"))
    if seen:
        anomalies.append(Anomaly("not refused", Stage.CALLBACK, f"refused callbacks were given {seen}"))
    return anomalies + check_quiet_barrier(bench, "after what was refused")


@planted(
    "shard_map",
    "id_tap call pure_callback io_callback debug_callback",
    "H4 H9 X2 X3 X4",
    minimum_devices=2,
    needs="shard_map",
    functions="barrier_wait",
)
def held_in_shard_map(bench: Bench, callback: Callback) -> list[Anomaly]:
    """In a shard_map over all axes nothing is left to partition: each device calls back from the held function."""
    seen: list[float] = []

    def host(operand: Any) -> Any:
        seen.append(float(np.asarray(operand)[0]))
        return np.asarray(operand) + np.float32(1)

    def calls(x: Any) -> Any:
        return bench.apply(callback, host, x)

    count = len(bench.devices)
    operand = np.arange(count, dtype=np.float32)
    wanted = bench.expected(callback, operand)
    meshes = {"one axis": (count,), "an axis of one device": (count, 1)}
    if count % 2 == 0:
        meshes["two axes"] = (count // 2, 2)
    anomalies: list[Anomaly] = []
    for what, shape in meshes.items():
        seen.clear()
        names = ("x", "y")[: len(shape)]
        mesh, rows = Mesh(np.asarray(bench.devices).reshape(shape), names), PartitionSpec(names)
        mapped = jax.jit(
            jax.shard_map(_partitioned(calls, calls), mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
        )
        given = jax.device_put(operand, NamedSharding(mesh, rows))
        anomalies += check_value(what, lambda run=mapped, given=given: run(given), wanted)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after {what}")
        if sorted({*seen}) != operand.tolist() or (callback.name != "pure_callback" and len(seen) != count):
            anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"over {what} devices called back with {seen}"))
    return anomalies


@planted(
    "shard_map",
    "debug_callback debug_print",
    "H9 X4",
    minimum_devices=2,
    needs="shard_map",
    functions="barrier_wait",
)
def left_without_division(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: a shard_map leaves an axis of one device to the compiler, alone or beside another: once for each part."""
    seen: list[list[float]] = []

    def host(operand: Any) -> Any:
        seen.append(np.asarray(operand).tolist())

    def calls(x: Any) -> Any:
        return bench.apply(callback, host, x) * 2

    count = len(bench.devices)
    shapes: dict[tuple[int, ...], tuple[str, ...]] = {
        (count, 1): ("x", "y"),
        (1, count): ("y", "x"),
        (1, count, 1): ("y", "x", "z"),
    }
    if count % 2 == 0:
        shapes[count // 2, 2, 1] = ("x", "y", "z")
    operand = np.arange(count, dtype=np.float32)
    rows = PartitionSpec("x")
    anomalies: list[Anomaly] = []
    for shape, names in shapes.items():
        seen.clear()
        mesh = Mesh(np.asarray(bench.devices).reshape(shape), names)
        mapped = jax.jit(jax.shard_map(calls, mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"x"}))
        given = jax.device_put(operand, NamedSharding(mesh, rows))
        label = f"a mesh of {shape}"
        anomalies += check_value(label, lambda run=mapped, given=given: run(given), operand * 2)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after {label}")
        parts = [part.tolist() for part in np.split(operand, mesh.shape["x"])]
        if sorted(seen) != parts:
            anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"{label}: it showed {seen}, expected {parts}"))
    return anomalies
