"""Fault cells of meshes that a computation has in part: some axes are the compiler's, or a batch lies along one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .checks import check_quiet_barrier, check_value
from .fault import planted
from .traces import library


def _held(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function under custom_partitioning, which runs it on each part."""
    held = custom_partitioning(lambda x: function(x))
    held.def_partition(
        infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
        partition=lambda mesh, operands, result: (mesh, function, operands[0].sharding, (operands[0].sharding,)),
        sharding_rule="i -> i",
    )
    partitioned: Callable[[Any], Any] = held
    return partitioned


@planted("shard_map", "id_tap", "H4 H9", minimum_devices=4, needs="shard_map")
def refused_while_traced(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Where a shard_map leaves axes to the compiler, a refusal comes before the compiler sees the program."""
    hostcb = library(bench)
    one = jax.ShapeDtypeStruct((2,), np.float32)

    def nothing(*operands: Any) -> None:
        raise AssertionError("a callback ran, and its program should have been refused")

    def shows(x: Any) -> Any:
        hostcb.debug.callback(nothing, x)
        return x * 2

    mesh = Mesh(np.asarray(bench.devices).reshape(2, -1), ("manual", "automatic"))
    rows = PartitionSpec("manual")
    anomalies = []
    # The compiler partitions a held function apart, so all callbacks are refused there, when the program is lowered.
    cases: dict[str, tuple[Callable[[Any], Any], str, bool]] = {
        "id_tap": (lambda x: hostcb.id_tap(nothing, x), "manual", False),
        "call": (lambda x: hostcb.call(nothing, x, result_shape=one), "manual", False),
        "pure_callback": (lambda x: hostcb.pure_callback(nothing, one, x), "manual", False),
        "io_callback": (lambda x: hostcb.io_callback(nothing, one, x), "manual", False),
        "a debug.callback in custom_partitioning": (_held(shows), "custom_partitioning", True),
    }
    for what, (function, word, when_lowered) in cases.items():
        mapped = jax.shard_map(
            function, mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"manual"}, check_vma=False
        )
        try:
            traced = jax.jit(mapped).trace(np.zeros(4, np.float32))
            if when_lowered:
                traced.lower().compile()
        except NotImplementedError as error:
            if word not in str(error):
                witness = f"the refusal of {what} lacks {word!r}: {summary(error)}"
                anomalies.append(Anomaly("wrong refusal", Stage.TRACE, witness))
        except Exception as error:
            witness = f"{what} must be refused with NotImplementedError, came {summary(error)}"
            anomalies.append(Anomaly("wrong refusal", Stage.TRACE, witness))
        else:
            anomalies.append(Anomaly("not refused", Stage.TRACE, f"{what} was not refused"))
    return anomalies


# JAX's own refuse such a batch: "0th dimension of all xs should be replicated".
@planted("pjit", "call", "H8 H10", minimum_devices=2, needs="set_mesh")
def lanes_along_a_mesh(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H8: one call for each element of a batch that lies along an explicit axis of a mesh."""
    mesh = jax.make_mesh(
        (len(bench.devices),), ("devices",), axis_types=(jax.sharding.AxisType.Explicit,), devices=bench.devices
    )
    anomalies = []
    for method in ("sequential", "sequential_unrolled"):
        seen: list[list[float]] = []

        def host(operand: Any, seen: list[list[float]] = seen) -> Any:
            seen.append(np.asarray(operand).tolist())
            return np.asarray(operand) + np.float32(1)

        def lane(x: Any, host: Any = host, method: str = method) -> Any:
            return bench.implementation.call(host, x, jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method=method)

        with jax.set_mesh(mesh):
            operand = jax.device_put(bench.operand, NamedSharding(mesh, PartitionSpec("devices")))
            result = jax.jit(jax.vmap(lane))(operand)
            anomalies += check_value(method, lambda r=result: r, bench.operand + np.float32(1))  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after {method} lanes along a mesh")
        if seen != bench.operand.tolist():
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"{method} saw {seen}"))
    return anomalies
