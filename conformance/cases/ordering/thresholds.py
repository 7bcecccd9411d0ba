"""Numbers of callbacks, batch elements, steps, programs and runs around those at which a program takes another way.

`spec.thresholds` has those of implementations, and cases go through a number below, at and above each. From its
second run on JAX may dispatch a program in another way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...oracle.verdicts import Stage
from ...spec.jax_versions import shard_map
from ...spec.thresholds import (
    FAST_BYTES,
    FAST_OPERATIONS,
    FAST_STEPS,
    LIVE_EXECUTIONS,
    READ_AHEAD,
    RING,
    UNROLLED_ELEMENTS,
    WAITING_EXECUTIONS,
    around,
)
from ..harness.case import WHILE, Case, case
from ..harness.hosts import add_one
from ..harness.registry import EVERY_KIND

SEQUENTIAL = "call_sequential call_sequential_unrolled pure_callback_sequential pure_callback_sequential_unrolled"
BY_ELEMENT = f"{SEQUENTIAL} io_callback debug_callback debug_callback_ordered buffer_callback_side_effect"
RUNS = 3


@case("jit", BY_ELEMENT, "H7 H8 X2 X3 X4 B4")
def batch_elements(case: Case) -> None:
    """Under vmap, each batch element calls with its own operand and gets its own result."""
    for count in around(UNROLLED_ELEMENTS):
        host = case.host(add_one)
        operand = np.arange(count, dtype=np.float32)
        program = jax.jit(jax.vmap(lambda x, host=host: case.apply(host, x)))
        case.gives(case.expected_of(operand), program, operand)
        case.saw(host, [*operand])


@case("jit", EVERY_KIND, "H3 H5 X2 X3 X4 B1 D1")
def fast_dispatch(case: Case) -> None:
    """Programs of several callbacks in a row, and of one on more elements with other operations around it."""
    added = 0 if case.callback.returns_new_value else 1
    for count in around(FAST_OPERATIONS):
        host = case.host(add_one)

        def chain(x: Any, host: Any = host, count: int = count) -> Any:
            for _ in range(count):
                x = case.apply(host, x) + added
            return x

        program = jax.jit(chain)
        for start in range(RUNS):
            case.forget()
            case.gives(np.float32(start + count), program, np.float32(start))
            case.saw(host, [np.float32(start + number) for number in range(count)])
    # The compiler's instructions are counted at 16 bytes an element.
    elements = FAST_BYTES // 16
    host = case.host(add_one)
    program = jax.jit(lambda x: jnp.flip(case.apply(host, jnp.flip(x) * 2)))
    for count in (elements - 1, elements, elements + 1):
        for start in range(RUNS):
            operand = np.arange(count, dtype=np.float32) + np.float32(start)
            case.gives(case.expected_of(operand * 2), program, operand)


@case("jit", "call pure_callback io_callback io_callback_ordered", "H3 H5 X2 X3")
def loop_steps(case: Case) -> None:
    """Loops with a number of steps that the compiler knows."""
    host = case.host(add_one)
    for count in around(FAST_STEPS):
        loop = jax.jit(lambda x, count=count: jax.lax.fori_loop(0, count, lambda _, carry: case.apply(host, carry), x))
        for start in range(2):
            case.gives(np.float32(start + count), loop, np.float32(start))


@case("jit", "id_tap", "H5 H11 H12")
@case("jit", "debug_callback_ordered", "X4")
def many_values(case: Case) -> None:
    """More values than a ring gives at once, and more bytes than it has."""
    _check_many(case, 1, 2 * READ_AHEAD + 1)
    if case.callback.function == "id_tap":
        _check_many(case, 1 << 14, RING // (1 << 16) + 44)


def _check_many(case: Case, elements: int, most: int) -> None:
    gate = threading.Event()
    seen: list[tuple[float, bool]] = []

    def host(operand: Any) -> None:
        array = np.asarray(operand)
        if not seen and case.callback.function == "id_tap":
            # Until then the values wait in the queue; a full queue lets the device run them itself.
            gate.wait(WHILE)
        seen.append((float(array[0]), bool((array == array[0]).all())))

    program = jax.jit(lambda x, count: jax.lax.fori_loop(0, count, lambda _, carry: case.apply(host, carry) + 1, x))
    for count in (most // 2 - 1, most // 2, most // 2 + 1, most):
        seen.clear()
        case.gives(np.full(elements, count, np.float32), program, np.zeros(elements, np.float32), count)
        gate.set()
        case.barrier()
        witness = f"of {count} values of {4 * elements} bytes in order {len(seen)} came, {seen[:5]} first"
        case.check(seen == [(float(number), True) for number in range(count)], "lost", Stage.CALLBACK, witness)


@case("pmap", "id_tap call io_callback_ordered", "H5 H13", minimum_devices=2)
def many_programs(case: Case) -> None:
    """Programs that are started before earlier ones have ended: each gets its own operands and results, in order."""
    case = case.over(case.devices[:2])
    host = case.host(add_one)
    program = case.program(host)
    for count in sorted({*around(WAITING_EXECUTIONS), *around(LIVE_EXECUTIONS)}):
        case.forget()
        # The operands of the second device are larger than all of the first.
        apart = np.array([[0], [4096]], np.float32)
        operands = [case.operand + apart + np.float32(number) for number in range(count)]
        for operand, result in zip(operands, [program(operand) for operand in operands], strict=True):
            case.gives(case.expected_of(operand), np.asarray, result)
        case.saw_parts(host, *operands)


DISPATCHES = 4


def _kind_of(array: Any) -> list[Any]:
    """Its type, its values on each device, and whether the devices were chosen."""
    parts = sorted(
        (part.device.id, str(part.index), np.asarray(part.data).tolist()) for part in array.addressable_shards
    )
    return [array.dtype.name, array.weak_type, array.shape, array.committed, parts]


def _program(case: Case, through: Callable[[Any], Any]) -> Callable[..., Any]:
    """A program that uses all of its operands but the first, and whose results are of several types and places."""

    def program(unused: Any, whole: Any, half: Any, rows: Any) -> Any:
        return whole * 2, through(rows), half * through(2.0), jnp.asarray(rows[..., :2], np.int32)

    if case.layout == "jit":
        return jax.jit(program)
    whole, rows = PartitionSpec(), case.split.spec
    return jax.jit(
        shard_map(program, mesh=case.mesh, in_specs=(whole, whole, whole, rows), out_specs=(whole, rows, whole, rows))
    )


@case("jit shard_map", f"{EVERY_KIND} debug_callback_ordered", "H1 H3 X2 X3 X4 B1 D1")
def same_at_each_run(case: Case) -> None:
    """Of a program with an operand that it does not use, and with results of several types, on several devices."""
    host = case.host(add_one)

    def through(x: Any) -> Any:
        return x if case.callback.returns_new_value and not np.ndim(x) else case.apply(host, x)

    rows, half = case.operand, np.ones(2, jnp.bfloat16)
    free = (np.arange(5), np.float32(3), half, rows)
    results = (np.float32(6), case.expected_of(rows), half + half, rows[..., :2].astype(np.int32))
    if case.layout == "jit":
        chosen, there = (jax.device_put(each, case.devices[0]) for each in (free, results))
        here = tuple(map(jnp.asarray, results))
    else:
        everywhere = NamedSharding(case.mesh, PartitionSpec())
        chosen = jax.device_put(free, (everywhere, everywhere, everywhere, case.split))
        here = there = jax.device_put(results, (everywhere, case.split, everywhere, case.split))
    for what, operands, expected in (("free operands", free, here), ("operands on chosen devices", chosen, there)):
        program = _program(case, through)
        wanted = [_kind_of(each) for each in expected]
        for run in range(DISPATCHES):
            actual = [_kind_of(each) for each in jax.block_until_ready(program(*operands))]
            case.same("result", Stage.RESULT, actual, wanted, f"run {run} on {what}")
