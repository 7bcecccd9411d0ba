"""Fault cells of meshes: parts of operands for buffer callbacks, keys, nested and partially manual computations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback, Runs
from ..spec.jax_versions import shard_map
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value, error_of
from .harness.registry import EVERY_KIND, planted
from .traces import library

OF_BUFFERS = "buffer_callback buffer_callback_side_effect dlpack_callback dlpack_callback_side_effect"
KEY_WORDS = {"threefry2x32": 2, "rbg": 4}


@planted("pjit pmap shard_map", OF_BUFFERS, "B5", minimum_devices=2)
def parts_of_buffers(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each device calls with its part, or with the whole operand under jit over a mesh, or the callback is refused."""
    seen: list[Any] = []

    def host(operand: Any) -> Any:
        seen.append(np.array(operand))
        return seen[-1] * np.float32(2) + np.float32(1)

    program = bench.applying(callback, host)
    operand = bench.operand + np.float32(1)
    try:
        result = np.asarray(program(jax.device_put(operand, bench.split)))
        bench.implementation.barrier()
    except Exception as error:
        refusal = callback.refusals.mesh
        if bench.layout != "pjit" or refusal is None:
            raise
        if isinstance(error, refusal.errors) and any(word in str(error) for word in refusal.words):
            return []
        witness = f"a side effect under jit over a mesh must be refused with its reason: {summary(error)}"
        return [Anomaly("poor error", stage_of(error), witness)]
    anomalies = check_value("the program", lambda: result, operand * 2 + 1)
    parts = [operand] if bench.layout == "pjit" else [row.reshape(bench.callback_shape) for row in operand]
    found = sorted(array.tolist() for array in seen)
    if bench.layout == "pjit":
        found = found[:1] if all(each == found[0] for each in found) else found
    elif callback.runs is Runs.IF_NEEDED:
        found = [each for number, each in enumerate(found) if each not in found[:number]]
    if found != [part.tolist() for part in parts]:
        witness = f"the callbacks saw {found}, expected {[part.tolist() for part in parts]}"
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after buffers on several devices")


@planted("pjit", f"{EVERY_KIND} debug_callback_ordered", "H9 H10", minimum_devices=2)
def around_shard_map(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One program over a mesh calls back before a shard_map, in it, and after it."""
    if callback.refusals.mesh:
        return []

    def through(x: Any) -> Any:
        return bench.apply(callback, lambda operand: np.asarray(operand) + np.float32(1), x)

    rows = bench.split.spec
    inside = shard_map(lambda x: through(x * 2), mesh=bench.mesh, in_specs=rows, out_specs=rows)
    program = jax.jit(lambda x: through(inside(through(x)) * 3), in_shardings=bench.split)

    def due(x: Any) -> Any:
        return bench.expected(callback, x)

    wanted = due(due(due(bench.operand) * 2) * 3)
    anomalies = check_value("the program", lambda: program(bench.operand), wanted)
    anomalies += check_value("the program again", lambda: program(bench.operand), wanted)
    return anomalies + check_quiet_barrier(bench, "after callbacks around a shard_map")


@planted("pjit", EVERY_KIND, "H1 H3 X2 X3 X4 B1 D1", minimum_devices=2)
@planted("shard_map", "id_tap call io_callback_ordered buffer_callback", "H1 H3 X3 B1", minimum_devices=2)
def keys_on_a_mesh(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Typed keys of two generators as arguments of a program over a mesh, each device with its part of the keys."""
    anomalies: list[Anomaly] = []
    for generator, size in KEY_WORDS.items():
        seen: list[tuple[int, ...]] = []

        def host(operand: Any, seen: list[tuple[int, ...]] = seen, size: int = size) -> Any:
            leaf = operand["key"]
            typed = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            words = np.asarray(jax.random.key_data(leaf) if typed else leaf)
            seen.extend(tuple(row) for row in words.reshape(-1, size).tolist())
            return np.asarray(operand["number"]) + np.float32(1)

        def computation(operand: Any, host: Any = host) -> Any:
            wanted = jax.ShapeDtypeStruct(operand["number"].shape, np.float32)
            result = bench.apply(callback, host, operand, wanted)
            return result if callback.returns_new_value else operand["number"]

        keys = jax.random.split(jax.random.key(7, impl=generator), len(bench.devices))
        numbers = bench.operand[:, 0]
        operand = {"key": jax.device_put(keys, bench.split), "number": jax.device_put(numbers, bench.split)}
        try:
            result = np.asarray(bench.compile(computation)(operand))
            bench.implementation.barrier()
        except Exception as error:
            error_of(bench.implementation.barrier)
            anomalies.append(Anomaly("error", stage_of(error), f"with keys of {generator}: {summary(error)}"))
            continue
        anomalies += check_value(f"with keys of {generator}", lambda r=result: r, bench.expected(callback, numbers))  # type: ignore[misc]
        wanted = sorted(tuple(row) for row in np.asarray(jax.random.key_data(keys)).tolist())
        # On a mesh a buffer callback runs on each device, and a pure one as often as it is needed.
        found = sorted({*seen}) if callback.runs is Runs.IF_NEEDED else sorted(seen)
        if found != wanted:
            witness = f"keys of {generator}: the callbacks saw {found}, expected {wanted}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


@planted("shard_map", "call pure_callback io_callback", "H9", minimum_devices=2, needs="shard_map")
def varies_as_its_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A result differs between devices if one operand does: JAX must not take the first device's for all."""

    def host(operand: Any) -> Any:
        return np.asarray(operand["a"] + operand["b"]) + np.float32(1)

    def computation(first: Any, second: Any) -> Any:
        like = jax.ShapeDtypeStruct(np.broadcast_shapes(first.shape, second.shape), np.float32)
        return bench.apply(callback, host, {"a": first, "b": second}, like)

    rows, everywhere = bench.split.spec, PartitionSpec()
    anomalies: list[Anomaly] = []
    for what, places, given in (
        ("the first", (rows, everywhere), (bench.operand, np.float32(5))),
        ("the last", (everywhere, rows), (np.float32(5), bench.operand)),
    ):
        by_row = jax.jit(jax.shard_map(computation, mesh=bench.mesh, in_specs=places, out_specs=rows))
        wanted = bench.operand + np.float32(6)
        anomalies += check_value(f"{what} differs", lambda f=by_row, g=given: f(*g), wanted)  # type: ignore[misc]
        as_one = jax.jit(jax.shard_map(computation, mesh=bench.mesh, in_specs=places, out_specs=everywhere))
        error = error_of(lambda f=as_one, g=given: f(*g))  # type: ignore[misc]
        if not isinstance(error, ValueError):
            came = "nothing was raised" if error is None else summary(error)
            witness = f"{what} operand differs between devices, and the result was taken for one of all: {came}"
            anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
    if len(bench.devices) >= 4:
        anomalies += _varies_along_two_axes(bench, computation)
    return anomalies + check_quiet_barrier(bench, "after results that vary")


def _varies_along_two_axes(bench: Bench, computation: Callable[[Any, Any], Any]) -> list[Anomaly]:
    """One operand differs along one axis of the mesh, and the other along the other: the result does along both."""
    mesh = Mesh(np.asarray(bench.devices[:4]).reshape(2, 2), ("rows", "columns"))
    given = np.arange(2, dtype=np.float32), 10 * np.arange(2, dtype=np.float32)
    places = PartitionSpec("rows"), PartitionSpec("columns")
    anomalies: list[Anomaly] = []
    for place in places:
        of_one = jax.jit(jax.shard_map(computation, mesh=mesh, in_specs=places, out_specs=place))
        if not isinstance(error := error_of(lambda f=of_one: f(*given)), ValueError):  # type: ignore[misc]
            came = "nothing was raised" if error is None else summary(error)
            witness = f"the result differs along both axes, and was taken for one along {place}: {came}"
            anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
    of_both = jax.shard_map(
        lambda first, second: computation(first, second)[None],
        mesh=mesh,
        in_specs=places,
        out_specs=PartitionSpec("rows", "columns"),
    )
    wanted = given[0][:, None] + given[1] + np.float32(1)
    return anomalies + check_value("along both axes", lambda: jax.jit(of_both)(*given), wanted)


@planted("shard_map", f"{EVERY_KIND} debug_callback_ordered", "H9 X4", minimum_devices=4, needs="shard_map")
def partially_manual(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A shard_map that leaves axes to the compiler: one call for each manual part, or a refusal that says why."""
    anomalies = _partially_manual(bench, callback, (2, -1))
    if len(bench.devices) % 4 == 0:
        anomalies += _partially_manual(bench, callback, (2, 2, -1))
    return anomalies


@planted("shard_map", "debug_callback", "H9 X4", minimum_devices=4, needs="shard_map")
def partially_manual_without_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Such a shard_map whose callback has no operands: one call for each manual part, also where it is recomputed."""
    seen: list[None] = []
    mesh = Mesh(np.asarray(bench.devices).reshape(2, -1), ("manual", "automatic"))
    rows = PartitionSpec("manual")

    def computation(x: Any) -> Any:
        library(bench).debug.callback(lambda: seen.append(None))
        return x * 2

    mapped = jax.shard_map(computation, mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"manual"})
    operand = np.arange(4, dtype=np.float32)
    programs: dict[str, tuple[Callable[[Any], Any], Any, int]] = {
        "as it is": (mapped, operand * 2, 2),
        "in a scan": (lambda x: jax.lax.scan(lambda y, _: (mapped(y), None), x, None, length=3)[0], operand * 8, 6),
        "in a checkpoint": (jax.grad(lambda x: jax.checkpoint(mapped)(x).sum()), np.full(4, 2, np.float32), 4),
    }
    anomalies: list[Anomaly] = []
    for what, (program, wanted, count) in programs.items():
        seen.clear()
        anomalies += check_value(what, lambda p=program: jax.jit(p)(operand), wanted)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after a callback {what}")
        if len(seen) != count:
            anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"{what} it ran {len(seen)} times, not {count}"))
    return anomalies


@planted("shard_map", "io_callback debug_callback", "H9 X3 X4", minimum_devices=2)
@planted(
    "shard_map",
    "id_tap call io_callback_ordered debug_callback_ordered",
    "H1 H3 H9 X3 X4",
    minimum_devices=2,
    functions="barrier_wait",
)
def shard_map_without_values(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A shard_map that has no results and uses no operand: each device calls, or the program is refused with advice."""
    seen: list[int] = []

    def host(operand: Any) -> Any:
        seen.append(int(operand))
        return np.asarray(operand)

    def body(_: Any) -> tuple[()]:
        bench.apply(callback, host, jax.lax.axis_index("devices"), jax.ShapeDtypeStruct((), np.int32))
        return ()

    rows = PartitionSpec("devices")
    mapped = shard_map(body, mesh=bench.mesh, in_specs=rows, out_specs=())
    everywhere = NamedSharding(bench.mesh, PartitionSpec())

    def beside(x: Any) -> Any:
        mapped(x)
        return jax.lax.with_sharding_constraint(x * 2, everywhere)

    anomalies: list[Anomaly] = []
    operand = jax.device_put(np.arange(len(bench.devices), dtype=np.float32), bench.split)
    programs = {"alone": mapped, "beside another value": beside, "in a nested jit": lambda x: jax.jit(mapped)(x)}
    for what, program in programs.items():
        seen.clear()
        error = error_of(lambda p=program: jax.block_until_ready(jax.jit(p)(operand)))  # type: ignore[misc]
        after = error_of(bench.implementation.barrier)
        refused = what != "beside another value" and isinstance(error, NotImplementedError) and "set_mesh" in str(error)
        if refused and not seen:
            continue
        for each in filter(None, (error, after)):
            anomalies.append(Anomaly("error", stage_of(each), f"a shard_map without values, {what}: {summary(each)}"))
        if sorted(seen) != [*range(len(bench.devices))]:
            witness = f"a shard_map without values, {what}, called on {sorted(seen)} of {len(bench.devices)} devices"
            anomalies.append(Anomaly("wrong count", Stage.CALLBACK, witness))
    return anomalies


def _partially_manual(bench: Bench, callback: Callback, shape: tuple[int, ...]) -> list[Anomaly]:
    seen: list[Any] = []

    def host(operand: Any) -> Any:
        seen.append(np.array(operand))
        return seen[-1] + np.float32(1)

    names = ("manual", "automatic", "further")[: len(shape)]
    mesh = Mesh(np.asarray(bench.devices).reshape(shape), names)
    rows = PartitionSpec("manual")
    mapped = jax.shard_map(
        lambda x: bench.apply(callback, host, x), mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"manual"}
    )
    program = jax.jit(mapped, in_shardings=NamedSharding(mesh, PartitionSpec("manual", names[1:])))
    operand = np.arange(4 * len(bench.devices), dtype=np.float32).reshape(4, -1)
    try:
        result = np.asarray(program(operand))
        bench.implementation.barrier()
    except Exception as error:
        error_of(bench.implementation.barrier)
        refused = isinstance(error, NotImplementedError | ValueError) and any(
            word in str(error) for word in ("manual", "axis", "axes")
        )
        if refused:
            return []
        return [Anomaly("poor error", stage_of(error), f"the refusal gives no reason: {summary(error)}")]
    anomalies = check_value("the program", lambda: result, bench.expected(callback, operand))
    parts = [part.tolist() for part in np.split(operand, 2)]
    found = sorted(array.tolist() for array in seen)
    if callback.runs is Runs.IF_NEEDED:
        found = [each for number, each in enumerate(found) if each not in found[:number]]
    if found != parts:
        witness = f"the callbacks of two parts saw {found}, expected {parts}"
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


@planted("pjit", "debug_callback", "X4", minimum_devices=2, functions="barrier_wait")
def parts_without_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: a debug callback with `partitioned=True` that has no operands runs on each device, at each step of a loop."""
    seen: list[None] = []

    def step(_: Any, x: Any) -> Any:
        library(bench).debug.callback(lambda: seen.append(None), partitioned=True)
        return x + 1

    compiled = bench.compile(lambda x: jax.lax.fori_loop(0, 2, step, x))
    anomalies = check_value("a loop", lambda: compiled(bench.operand), bench.operand + 2)
    anomalies += check_quiet_barrier(bench, "after callbacks of each part")
    if len(seen) != 2 * len(bench.devices):
        witness = f"in two steps on {len(bench.devices)} devices it ran {len(seen)} times"
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, witness))
    return anomalies


@planted("pjit", f"{EVERY_KIND} debug_callback_ordered", "H10", minimum_devices=2, isolated=True, needs="set_mesh")
def unreduced_operand(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each device has a term of the sum that the operand is. A callback sees the sum, or is refused with the reason."""
    seen: list[list[float]] = []

    def host(operand: Any) -> Any:
        seen.append(np.asarray(operand).tolist())
        return np.asarray(operand) + np.float32(1)

    def program(rows: Any, columns: Any) -> Any:
        terms = jnp.einsum("i,ij->j", rows, columns, out_sharding=PartitionSpec(None, unreduced={"devices"}))
        return jax.sharding.reshard(bench.apply(callback, host, terms), PartitionSpec(None))

    count = len(bench.devices)
    mesh = jax.make_mesh((count,), ("devices",), axis_types=(jax.sharding.AxisType.Explicit,), devices=bench.devices)
    with jax.set_mesh(mesh):
        rows = jax.device_put(np.arange(count, dtype=np.float32), PartitionSpec("devices"))
        columns = jax.device_put(np.ones((count, 1), np.float32), PartitionSpec("devices", None))
        try:
            result = np.asarray(jax.jit(program)(rows, columns))
        except Exception as error:
            if isinstance(error, NotImplementedError) and "unreduced" in str(error):
                return check_quiet_barrier(bench, "after a refusal")
            return [Anomaly("poor error", stage_of(error), f"the refusal gives no reason: {summary(error)}")]
    anomalies = check_quiet_barrier(bench, "after an unreduced operand")
    wanted = np.array([count * (count - 1) / 2], np.float32)
    anomalies += check_value("the program", lambda: result, bench.expected(callback, wanted))
    if any(value != wanted.tolist() for value in seen):
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"callbacks saw {seen}, expected {wanted.tolist()}"))
    return anomalies
