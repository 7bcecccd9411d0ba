"""Fault cells of a `shard_map` inside of another one: together they are manual over all axes of the mesh."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value, error_of
from .harness.registry import planted

REFUSED = jax.__version_info__ < (0, 11, 2)
"""Whether the contract refuses a callback that keeps an order there: the compiler would end the process."""


@planted("shard_map", "id_tap call", "H9", minimum_devices=4, needs="shard_map")
def nested_shard_maps(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each device calls back with its part, or the program is refused with the reason."""
    seen: list[Any] = []

    def host(operand: Any) -> Any:
        seen.append(np.array(operand).tolist())
        return np.asarray(operand) + np.float32(1)

    mesh = Mesh(np.asarray(bench.devices).reshape(2, -1), ("rows", "columns"))
    rows, columns = PartitionSpec("rows"), PartitionSpec(None, "columns")

    def outer(x: Any) -> Any:
        inner = jax.shard_map(
            lambda y: bench.apply(callback, host, y), in_specs=columns, out_specs=columns, axis_names={"columns"}
        )
        return inner(x * 2)

    program = jax.jit(jax.shard_map(outer, mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"rows"}))
    operand = np.arange(4 * len(bench.devices), dtype=np.float32).reshape(4, -1)
    found: list[Any] = []
    error = error_of(lambda: found.append(np.asarray(program(operand))))
    if REFUSED:
        if isinstance(error, NotImplementedError) and "shard_map inside of another" in str(error):
            return check_quiet_barrier(bench, "after what was refused")
        witness = f"it must be refused with the reason: {error and summary(error)}"
        return [Anomaly("not refused", Stage.LOWER, witness)]
    if error is not None:
        return [Anomaly("error", Stage.DISPATCH, f"the program failed: {summary(error)}")]
    anomalies = check_quiet_barrier(bench, "after callbacks in two shard_maps")
    wanted = bench.expected(callback, operand * 2)
    if not np.array_equal(found[0], wanted):
        anomalies.append(Anomaly("result", Stage.RESULT, f"the program gave {found[0]}, expected {wanted}"))
    count = len(bench.devices) // 2
    parts = [part.tolist() for row in np.split(operand * 2, 2) for part in np.split(row, count, axis=1)]
    if sorted(seen) != sorted(parts):
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"the devices saw {seen}, expected {parts}"))
    return anomalies


@planted("shard_map", "id_tap call", "H4 H9", minimum_devices=2, needs="shard_map")
def nested_in_size_one(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The outer one is manual over an axis of size 1, or the inner one is: each device calls back with its part."""
    anomalies: list[Anomaly] = []
    for shape, names in (((1, -1), ("one", "all")), ((-1, 1), ("all", "one"))):
        seen: list[float] = []

        def host(operand: Any, seen: list[float] = seen) -> Any:
            seen.append(float(np.asarray(operand)[0]))
            return np.asarray(operand) + np.float32(1)

        outer_axis, inner_axis = names
        split, inner_split = PartitionSpec(outer_axis), PartitionSpec(inner_axis)

        def outer(x: Any, host: Any = host, spec: Any = inner_split, axis: str = inner_axis) -> Any:
            inner = jax.shard_map(
                lambda y: bench.apply(callback, host, y), in_specs=spec, out_specs=spec, axis_names={axis}
            )
            return inner(x)

        mesh = Mesh(np.asarray(bench.devices).reshape(shape), names)
        program = jax.jit(jax.shard_map(outer, mesh=mesh, in_specs=split, out_specs=split, axis_names={outer_axis}))
        operand = np.arange(len(bench.devices), dtype=np.float32)
        anomalies += check_value(f"over {names}", lambda p=program, x=operand: p(x), bench.expected(callback, operand))  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after callbacks over {names}")
        if sorted(seen) != operand.tolist():
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"over {names} the devices saw {seen}"))
    return anomalies
