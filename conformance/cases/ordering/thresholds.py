"""Numbers of callbacks, batch elements, steps, programs and runs around those at which a program takes another way.

`spec.thresholds` has those of implementations, and cases go through a number below, at and above each.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.thresholds import (
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

SEQUENTIAL = "call_sequential call_sequential_unrolled pure_callback_sequential"
BY_ELEMENT = f"{SEQUENTIAL} io_callback debug_callback_ordered buffer_callback_side_effect"
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


@case("jit", "call io_callback", "H3 H5 X3")
def loop_steps(case: Case) -> None:
    """Loops with a number of steps that the compiler knows call back at each step, below and above a threshold."""
    host = case.host(add_one)
    for count in around(FAST_STEPS):
        loop = jax.jit(lambda x, count=count: jax.lax.fori_loop(0, count, lambda _, carry: case.apply(host, carry), x))
        for start in range(2):
            case.gives(np.float32(start + count), loop, np.float32(start))


@case("jit", "id_tap", "H5 H11 H12")
@case("jit", "debug_callback_ordered", "X4")
def many_values(case: Case) -> None:
    """All values reach the tap in order: more than a ring gives at once, and more bytes than it has."""
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
