"""Programs over meshes: parts of buffers, typed keys, unreduced operands, and batches and loops along an axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.registry import EVERY_KIND
from ..values.keys import words_of

OF_BUFFERS = "buffer_callback buffer_callback_side_effect dlpack_callback dlpack_callback_side_effect"
KEY_WORDS = {"threefry2x32": 2, "rbg": 4}


@case("pjit pmap shard_map", OF_BUFFERS, "B5", minimum_devices=2)
def parts_of_buffers(case: Case) -> None:
    """Each device calls with its part, or with the whole operand under jit over a mesh, or the callback is refused."""
    host = case.host(lambda operand: np.asarray(operand) * np.float32(2) + np.float32(1))
    program = case.program(host)
    operand = case.operand + np.float32(1)
    placed = jax.device_put(operand, case.split)
    refusal = case.callback.refusals.mesh if case.layout == "pjit" else None
    errors, words = (refusal.errors, refusal.words) if refusal else ((), ())
    if (result := case.or_refused(lambda: program(placed), errors, words)) is None:
        return
    case.gives(operand * 2 + 1, np.asarray, result)
    if case.layout == "pjit":
        # On a mesh, such a callback may run on each device.
        seen = [event.leaves[0] for event in case.events]
        right = bool(seen) and all(np.array_equal(each, operand) for each in seen)
        case.check(right, "wrong operand", Stage.CALLBACK, f"the callbacks saw {seen}, expected {operand}")
    else:
        case.saw_parts(host, operand)


@case("pjit", EVERY_KIND, "H1 H3 X2 X3 X4 B1 D1", minimum_devices=2)
@case("shard_map", "id_tap call io_callback_ordered buffer_callback", "H1 H3 X3 B1", minimum_devices=2)
def keys_on_a_mesh(case: Case) -> None:
    """Each device of a mesh gets its part of the typed keys of a program's argument, of two generators."""
    for generator, size in KEY_WORDS.items():
        seen: list[tuple[int, ...]] = []

        def host(operand: Any, seen: list[Any] = seen, size: int = size) -> Any:
            seen.extend(tuple(row) for row in words_of(operand["key"]).reshape(-1, size).tolist())
            return add_one(operand["number"])

        def through(operand: Any, host: Any = host) -> Any:
            result = case.apply(host, operand, operand["number"])
            return result if case.callback.returns_new_value else operand["number"]

        keys = jax.random.split(jax.random.key(7, impl=generator), len(case.devices))
        numbers = case.operand[:, 0]
        operand = {"key": jax.device_put(keys, case.split), "number": jax.device_put(numbers, case.split)}
        with case.part(f"keys of {generator}"):
            result = np.asarray(case.compile(through)(operand))
            case.implementation.barrier()
            case.gives(case.expected_of(numbers), np.asarray, result)
            expected = sorted(tuple(row) for row in words_of(keys).tolist())
            # On a mesh a buffer callback runs on each device, and a pure one as often as it is needed.
            actual = sorted({*seen}) if case.callback.runs is Runs.IF_NEEDED else sorted(seen)
            case.same("wrong operand", Stage.CALLBACK, actual, expected)


def explicit_mesh(case: Case) -> Mesh:
    axes = (jax.sharding.AxisType.Explicit,)
    return jax.make_mesh((len(case.devices),), ("devices",), axis_types=axes, devices=case.devices)


@case("pjit", f"{EVERY_KIND} debug_callback_ordered", "H10", minimum_devices=2, isolated=True, needs="set_mesh")
def unreduced_operand(case: Case) -> None:
    """Each device has a term of the sum that the operand is. A callback sees the sum, or is refused with the reason."""
    host = case.host(add_one)

    @jax.jit
    def program(rows: Any, columns: Any) -> Any:
        terms = jnp.einsum("i,ij->j", rows, columns, out_sharding=PartitionSpec(None, unreduced={"devices"}))
        return jax.sharding.reshard(case.apply(host, terms), PartitionSpec(None))

    count = len(case.devices)
    with jax.set_mesh(explicit_mesh(case)):
        rows = jax.device_put(np.arange(count, dtype=np.float32), PartitionSpec("devices"))
        columns = jax.device_put(np.ones((count, 1), np.float32), PartitionSpec("devices", None))
        result = case.or_refused(lambda: program(rows, columns), NotImplementedError, ["unreduced"])
    if result is None:
        return
    total = np.array([count * (count - 1) / 2], np.float32)
    case.gives(case.expected_of(total), np.asarray, result)
    seen = [event.leaves[0] for event in case.events]
    right = all(np.array_equal(each, total) for each in seen)
    case.check(right, "wrong operand", Stage.CALLBACK, f"the callbacks saw {seen}, expected {total}")


@case("pjit", "id_tap", "H4 H7", minimum_devices=2, needs="set_mesh")
def loop_along_a_mesh(case: Case) -> None:
    """A loop under vmap along an axis of a mesh gives each element its result, and each device calls with its part.

    A shard_map is in the loop's body, and a tap in its condition.
    """
    mesh, whole = Mesh(np.asarray(case.devices), ("devices",)), PartitionSpec()
    trips = np.arange(len(case.devices), dtype=np.float32) % 2 + 1
    host, other = case.host(), case.host()

    def inner(x: Any) -> Any:
        return jax.shard_map(lambda part: case.apply(host, part + 1), mesh=mesh, in_specs=whole, out_specs=whole)(x)

    def loop(trip: Any) -> Any:
        return jax.lax.while_loop(lambda x: case.apply(other, x[0]) < trip, inner, np.zeros(2, np.float32))

    with jax.set_mesh(mesh):
        program = jax.jit(jax.vmap(loop, spmd_axis_name="devices"))
        case.gives(np.repeat(trips[:, None], 2, axis=1), program, trips)
        case.barrier()
    shapes = {event.leaves[0].shape for event in case.events if event.site == host.site}
    case.same("wrong operand", Stage.CALLBACK, shapes, {(1, 2)}, "the shapes of operands on each device")


# JAX's own refuse such a batch: "0th dimension of all xs should be replicated".
@case("pjit", "call", "H8 H10", minimum_devices=2, needs="set_mesh")
def batches_along_a_mesh(case: Case) -> None:
    """H8: one call for each element of a batch that lies along an explicit axis of a mesh."""
    mesh = explicit_mesh(case)
    for method in ("sequential", "sequential_unrolled"):
        for batch in (case.operand, np.ravel(case.operand)):
            host = case.host(add_one)

            def element(x: Any, host: Any = host, method: str = method) -> Any:
                return case.implementation.call(host, x, jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method=method)

            with jax.set_mesh(mesh):
                operand = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("devices")))
                program = jax.jit(jax.vmap(element))
                case.gives(batch + np.float32(1), program, operand)
            case.saw(host, [*batch])
