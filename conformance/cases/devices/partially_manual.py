"""A `shard_map` that leaves axes of the mesh to the compiler, or is inside of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import Host, add_one
from ..harness.registry import EVERY_KIND

NESTED_REFUSED = jax.__version_info__ < (0, 11, 2)
"""Whether the contract refuses a callback that keeps an order in two shard_maps: the compiler would end the process."""


@case("shard_map", f"{EVERY_KIND} debug_callback_ordered", "H9 X4", minimum_devices=4, needs="shard_map")
def partially_manual(case: Case) -> None:
    """A shard_map that leaves axes to the compiler: one call for each manual part, or a refusal that says why."""
    _check_partially(case, (2, -1))
    if len(case.devices) % 4 == 0:
        _check_partially(case, (2, 2, -1))


def _check_partially(case: Case, shape: tuple[int, ...]) -> None:
    host = case.host(add_one)
    names = ("manual", "automatic", "further")[: len(shape)]
    mesh, rows = Mesh(np.asarray(case.devices).reshape(shape), names), PartitionSpec("manual")
    mapped = jax.shard_map(
        lambda x: case.apply(host, x), mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"manual"}
    )
    program = jax.jit(mapped, in_shardings=NamedSharding(mesh, PartitionSpec("manual", names[1:])))
    operand = np.arange(4 * len(case.devices), dtype=np.float32).reshape(4, -1)
    refusals = (NotImplementedError, ValueError), ("manual", "axis", "axes")
    if (result := case.or_refused(lambda: program(operand), *refusals)) is not None:
        case.gives(case.expected_of(operand), np.asarray, result)
        case.saw_each(host, np.split(operand, 2))


@case("shard_map", "debug_callback", "H9 X4", minimum_devices=4, needs="shard_map")
def partially_manual_without_operands(case: Case) -> None:
    """Such a shard_map whose callback has no operands: one call for each manual part, also where it is recomputed."""
    seen: list[None] = []
    mesh = Mesh(np.asarray(case.devices).reshape(2, -1), ("manual", "automatic"))
    rows = PartitionSpec("manual")

    def body(x: Any) -> Any:
        case.library.debug.callback(lambda: seen.append(None))
        return x * 2

    mapped = jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"manual"})
    operand = np.arange(4, dtype=np.float32)
    programs: tuple[tuple[Callable[[Any], Any], Any, int], ...] = (
        (mapped, operand * 2, 2),
        (lambda x: jax.lax.scan(lambda y, _: (mapped(y), None), x, None, length=3)[0], operand * 8, 6),
        (jax.grad(lambda x: jax.checkpoint(mapped)(x).sum()), np.full(4, 2, np.float32), 4),
    )
    for program, expected, count in programs:
        seen.clear()
        case.gives(expected, jax.jit(program), operand)
        case.barrier()
        case.same("wrong count", Stage.CALLBACK, len(seen), count)


@case("shard_map", "debug_callback", "H9 X4", minimum_devices=2, needs="shard_map")
def left_without_division(case: Case) -> None:
    """X4: a shard_map leaves an axis of one device to the compiler, alone or beside another: once for each part."""
    count = len(case.devices)
    shapes: dict[tuple[int, ...], tuple[str, ...]] = {
        (count, 1): ("x", "y"),
        (1, count): ("y", "x"),
        (1, count, 1): ("y", "x", "z"),
    }
    if count % 2 == 0:
        shapes[count // 2, 2, 1] = ("x", "y", "z")
    operand = np.arange(count, dtype=np.float32)
    rows = PartitionSpec("x")
    for shape, names in shapes.items():
        host = case.host()
        mesh = Mesh(np.asarray(case.devices).reshape(shape), names)

        def calls(x: Any, host: Host = host) -> Any:
            return case.apply(host, x) * 2

        program = jax.jit(jax.shard_map(calls, mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"x"}))
        given = jax.device_put(operand, NamedSharding(mesh, rows))
        case.gives(operand * 2, program, given)
        case.saw_each(host, np.split(operand, mesh.shape["x"]))


def _nested(case: Case, host: Host, mesh: Mesh, outer_spec: PartitionSpec, inner_spec: PartitionSpec) -> Any:
    """The callback in a shard_map over one axis, in one over another axis."""
    outer_axis, inner_axis = outer_spec[0], inner_spec[-1]

    def outer(x: Any) -> Any:
        inner = jax.shard_map(
            lambda y: case.apply(host, y), in_specs=inner_spec, out_specs=inner_spec, axis_names={inner_axis}
        )
        return inner(x * 2)

    return jax.jit(jax.shard_map(outer, mesh=mesh, in_specs=outer_spec, out_specs=outer_spec, axis_names={outer_axis}))


@case("shard_map", "id_tap call io_callback_ordered", "H4 H9", minimum_devices=4, needs="shard_map")
def nested_shard_maps(case: Case) -> None:
    """Each device calls back with its part, or the program is refused with the reason; never with an axis of size 1."""
    count = len(case.devices)
    numbers = np.arange(count, dtype=np.float32)
    for shape, names in (((1, -1), ("one", "all")), ((-1, 1), ("all", "one"))):
        host = case.host(add_one)
        mesh = Mesh(np.asarray(case.devices).reshape(shape), names)
        program = _nested(case, host, mesh, PartitionSpec(names[0]), PartitionSpec(names[1]))
        case.gives(case.expected_of(numbers * 2), program, numbers)
        case.saw_each(host, np.split(numbers * 2, count))
    host = case.host(add_one)
    mesh = Mesh(np.asarray(case.devices).reshape(2, -1), ("rows", "columns"))
    program = _nested(case, host, mesh, PartitionSpec("rows"), PartitionSpec(None, "columns"))
    operand = np.arange(4 * count, dtype=np.float32).reshape(4, -1)
    if NESTED_REFUSED:
        case.raises(lambda: program(operand), "shard_map inside of another", of=NotImplementedError, kind="not refused")
        return
    case.gives(case.expected_of(operand * 2), program, operand)
    case.saw_each(host, [part for row in np.split(operand * 2, 2) for part in np.split(row, count // 2, axis=1)])
