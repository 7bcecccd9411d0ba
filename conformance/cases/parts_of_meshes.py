"""Fault cells of meshes that a computation has in part: some axes are the compiler's, or a batch lies along one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import planted
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


@planted("pjit", "io_callback call", "H9 H10 X3", minimum_devices=4, functions="barrier_wait")
def chosen_of_any_order(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A mesh in reverse: the chosen device runs the callback, and the failure names it, whatever its place is."""
    mesh = Mesh(np.asarray(bench.devices)[::-1], ("devices",))
    operand = jax.device_put(bench.operand, NamedSharding(mesh, PartitionSpec("devices")))
    hostcb = library(bench)

    def host(_: Any) -> Any:
        raise ValueError(PLANTED)

    def program(x: Any, place: int) -> Any:
        if callback.function == "call":
            return hostcb.call(host, x, result_shape=x, device_index=place)
        chosen = SingleDeviceSharding(mesh.devices[place])
        return hostcb.io_callback(host, x, x, sharding=chosen)

    anomalies: list[Anomaly] = []
    for place in (0, 1, len(bench.devices) - 1):
        error_of(lambda place=place: jax.jit(program, static_argnums=1)(operand, place))  # type: ignore[misc]
        reported: Any = error_of(bench.implementation.barrier)
        found = [failure.device for failure in getattr(reported, "failures", ())]
        if found != [mesh.devices[place]]:
            witness = f"of a mesh {mesh.devices}, number {place} was chosen: failures are of {found}"
            anomalies.append(Anomaly("wrong place", Stage.CALLBACK, witness))
    return anomalies


@planted("pjit", "id_tap", "H4 H7", minimum_devices=2, needs="set_mesh")
def loop_along_a_mesh(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A loop under vmap along an axis of a mesh, with a shard_map in its body and a tap in its condition."""
    mesh = Mesh(np.asarray(bench.devices), ("devices",))
    trips = np.arange(len(bench.devices), dtype=np.float32) % 2 + 1
    seen: list[tuple[int, ...]] = []

    def inner(x: Any) -> Any:
        tapped = lambda part: bench.apply(callback, lambda one: seen.append(np.shape(one)), part + 1)
        return jax.shard_map(tapped, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())(x)

    def loop(trip: Any) -> Any:
        condition = lambda x: bench.apply(callback, lambda _: None, x[0]) < trip
        return jax.lax.while_loop(condition, inner, np.zeros(2, np.float32))

    with jax.set_mesh(mesh):
        program = jax.jit(jax.vmap(loop, spmd_axis_name="devices"))
        anomalies = check_value("each lane's trips", lambda: program(trips), np.repeat(trips[:, None], 2, axis=1))
        anomalies += check_quiet_barrier(bench, "after lanes along a mesh")
    if {*seen} != {(1, 2)}:
        witness = f"taps on each device saw operands of {sorted({*seen})}, expected [(1, 2)]"
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


# JAX's own refuse such a batch: "0th dimension of all xs should be replicated".
@planted("pjit", "call", "H8 H10", minimum_devices=2, needs="set_mesh")
def lanes_along_a_mesh(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H8: one call for each element of a batch that lies along an explicit axis of a mesh."""
    mesh = jax.make_mesh(
        (len(bench.devices),), ("devices",), axis_types=(jax.sharding.AxisType.Explicit,), devices=bench.devices
    )
    anomalies = []
    batches = {"rows": bench.operand, "numbers": np.ravel(bench.operand)}
    for method, (what, batch) in itertools.product(("sequential", "sequential_unrolled"), batches.items()):
        seen: list[Any] = []

        def host(operand: Any, seen: list[Any] = seen) -> Any:
            seen.append(np.asarray(operand).tolist())
            return np.asarray(operand) + np.float32(1)

        def lane(x: Any, host: Any = host, method: str = method) -> Any:
            return bench.implementation.call(host, x, jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method=method)

        with jax.set_mesh(mesh):
            operand = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("devices")))
            result = jax.jit(jax.vmap(lane))(operand)
            wanted = batch + np.float32(1)
            anomalies += check_value(f"{method}, {what}", lambda r=result: r, wanted)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after {method} lanes along a mesh")
        if seen != batch.tolist():
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"{method}, {what}: it saw {seen}"))
    return anomalies
