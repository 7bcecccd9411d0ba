"""Callbacks in `shard_map`: which results vary over an axis of the mesh, and what each device calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ...spec.jax_versions import shard_map
from ..harness.case import Case, case
from ..harness.hosts import add_one, error_of
from ..harness.registry import EVERY_KIND, WITH_RESULTS

EVERYWHERE = PartitionSpec()


@case("pjit", f"{EVERY_KIND} debug_callback_ordered", "H9 H10", minimum_devices=2)
def around_shard_map(case: Case) -> None:
    """Callbacks before a shard_map, in it and after it, in one program over a mesh, give the right result."""
    if case.callback.refusals.mesh:
        return
    host = case.host(add_one)
    rows = case.split.spec
    inside = shard_map(lambda x: case.apply(host, x * 2), mesh=case.mesh, in_specs=rows, out_specs=rows)
    program = jax.jit(lambda x: case.apply(host, inside(case.apply(host, x)) * 3), in_shardings=case.split)
    expected = case.operand
    for factor in (1, 2, 3):
        expected = case.expected_of(expected * np.float32(factor))
    for _ in range(2):
        case.gives(expected, program, case.operand)


def _sum_of(case: Case, *each: Any) -> Any:
    """One more than the sum of the operands, by a callback."""
    like = jax.ShapeDtypeStruct(np.broadcast_shapes(*map(jnp.shape, each)), np.float32)
    return case.apply(lambda given: add_one(sum(map(np.asarray, given))), each, like)


def _check_varies(case: Case, places: Sequence[Any], operands: Sequence[Any], expected: Any) -> None:
    """The result differs between the rows, and cannot leave as one that is the same everywhere."""

    def program(place: Any) -> Any:
        return jax.shard_map(
            lambda *each: _sum_of(case, *each), mesh=case.mesh, in_specs=tuple(places), out_specs=place
        )

    for staged in (jax.jit, lambda function: function):
        case.gives(expected, staged(program(case.split.spec)), *operands)
    _check_refused(case, lambda: jax.jit(program(EVERYWHERE)).lower(*operands))


def _check_refused(case: Case, lower: Any) -> None:
    case.raises(lower, of=ValueError, kind="not refused", stage=Stage.TRACE)


# A check of what varies is in releases with `jax.shard_map` alone.
@case("shard_map", f"{WITH_RESULTS} buffer_callback", "H9", minimum_devices=2, needs="shard_map")
def varies_as_its_operands(case: Case) -> None:
    """A result differs between devices if one operand does: JAX must not take the first device's for all."""
    rows, whole = case.split.spec, np.ones((1, 3), np.float32)
    for which in range(3):
        places, operands = [EVERYWHERE] * 3, [whole] * 3
        places[which], operands[which] = rows, case.operand
        _check_varies(case, places, operands, case.operand + np.float32(3))
    count, odd = divmod(len(case.devices), 2)
    if odd:
        return
    mesh = Mesh(np.asarray(case.devices).reshape(count, 2), ("x", "y"))
    columns = np.arange(count, dtype=np.float32), np.array([10, 20], np.float32)

    def program(place: Any) -> Any:
        places = PartitionSpec("x"), PartitionSpec("y")
        return jax.jit(jax.shard_map(lambda *each: _sum_of(case, *each), mesh=mesh, in_specs=places, out_specs=place))

    sums = add_one(columns[0][:, None] + columns[1]).ravel()
    case.gives(sums, lambda: program(PartitionSpec(("x", "y")))(*columns))
    for place in (PartitionSpec("x"), PartitionSpec("y"), EVERYWHERE):
        _check_refused(case, lambda place=place: program(place).lower(*columns))


@case("shard_map", "id_tap call io_callback_ordered", "H9 X3", minimum_devices=2, needs="shard_map")
def devices_in_both_orders(case: Case) -> None:
    """Programs over the same devices in one order and in the other go on, one after the other, with their own parts."""
    case = case.over(case.devices[:2])
    host = case.host(add_one)
    operand = np.arange(2, dtype=np.float32)
    programs = []
    for devices in (case.devices, case.devices[::-1]):
        mesh, rows = Mesh(np.asarray(devices), ("rows",)), PartitionSpec("rows")
        program = jax.jit(jax.shard_map(lambda x: case.apply(host, x), mesh=mesh, in_specs=rows, out_specs=rows))
        placed = jax.device_put(operand, NamedSharding(mesh, rows))
        programs.append(lambda f=program, x=placed: f(x))
    for number in (0, 1, 0) * 4:
        case.forget()
        case.gives(case.expected_of(operand), programs[number])
        case.saw_parts(host, operand)


@case("pjit", "io_callback io_callback_ordered", "H9 H10 X3", minimum_devices=2, needs="shard_map")
def draws_inside_and_outside(case: Case) -> None:
    """One callback without operands, in a `shard_map` and outside of it in one program: each has its own result."""
    draws = np.arange(1, 5, dtype=np.float32)
    rows = case.split.spec

    def draw() -> Any:
        like = jax.ShapeDtypeStruct(draws.shape, draws.dtype)
        return case.library.io_callback(lambda: draws, like, ordered=case.callback.ordered)

    @jax.jit
    def program(x: Any) -> Any:
        return jax.shard_map(lambda x: x + draw(), mesh=case.mesh, in_specs=rows, out_specs=rows)(x), draw()

    operand = jax.device_put(jnp.zeros(4 * len(case.devices), np.float32), case.split)
    case.gives((np.tile(draws, len(case.devices)), draws), program, operand)


@case("shard_map", "io_callback debug_callback", "H9 X3 X4", minimum_devices=2)
@case(
    "shard_map",
    "id_tap call io_callback_ordered debug_callback_ordered",
    "H1 H3 H9 X3 X4",
    minimum_devices=2,
    functions="barrier_wait",
)
def shard_map_without_values(case: Case) -> None:
    """A shard_map that has no results and uses no operand: each device calls, or the program is refused with advice."""
    host = case.host()

    def body(_: Any) -> tuple[()]:
        case.apply(host, jax.lax.axis_index("devices"))
        return ()

    rows = PartitionSpec("devices")
    mapped = shard_map(body, mesh=case.mesh, in_specs=rows, out_specs=())
    everywhere = NamedSharding(case.mesh, PartitionSpec())

    def beside(x: Any) -> Any:
        mapped(x)
        return jax.lax.with_sharding_constraint(x * 2, everywhere)

    operand = jax.device_put(np.arange(len(case.devices), dtype=np.float32), case.split)
    programs = {"alone": mapped, "beside another value": beside, "in a nested jit": lambda x: jax.jit(mapped)(x)}
    for what, program in programs.items():
        case.forget()
        error = error_of(jax.jit(program), operand)
        advised = isinstance(error, NotImplementedError) and "set_mesh" in str(error)
        if what != "beside another value" and advised and not host.count:
            continue
        if error:
            case.wrong("error", stage_of(error), f"a shard_map without values, {what}: {summary(error)}")
        case.saw_each(host, [np.int32(number) for number in range(len(case.devices))])


@case("pjit", "debug_callback", "X4", minimum_devices=2)
def parts_without_operands(case: Case) -> None:
    """X4: a debug callback with `partitioned=True` that has no operands runs on each device, at each step of a loop."""
    seen: list[None] = []

    def step(_: Any, x: Any) -> Any:
        case.library.debug.callback(lambda: seen.append(None), partitioned=True)
        return x + 1

    program = case.compile(lambda x: jax.lax.fori_loop(0, 2, step, x))
    case.gives(case.operand + 2, program, case.operand)
    case.barrier()
    case.same("wrong count", Stage.CALLBACK, len(seen), 2 * len(case.devices))


@case("pjit", "debug_print", "X4", minimum_devices=2)
def prints_each_part(case: Case) -> None:
    """X4: `partitioned=True` prints the part of each device, and without it the whole is printed once."""
    whole = np.arange(len(case.devices), dtype=np.int32)
    for partitioned, lines in ((True, [f"[{number}]" for number in whole]), (False, [f"{whole}"])):
        program = jax.jit(lambda x, p=partitioned: case.implementation.print_as("{}", x, partitioned=p))
        with case.prints(*lines, what=f"partitioned={partitioned}"):
            program(jax.device_put(whole, case.split))
