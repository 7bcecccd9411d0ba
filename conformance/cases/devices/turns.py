"""Devices that call in quick succession take turns: each gets its results, and none waits for ever."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.thresholds import LEAST_TURN, MOST_TURN, around
from ..harness.case import Case, case
from ..harness.hosts import add_one

RUNS = 4
"""Devices take turns from the third run on of a program that calls as often as the one before."""

CALLS = 500
STALL_SECONDS = 1e-5


@case("pmap", "call pure_callback io_callback", "H9 X2 X3", minimum_devices=2)
def quick_calls(case: Case) -> None:
    """Loops on two devices that call in quick succession, so often that the devices take turns."""
    case = case.over(case.devices[:2])

    def loop(x: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, carry: case.apply(add_one, carry), x)

    program = jax.pmap(loop, in_axes=(0, None), devices=case.devices)
    for number in (LEAST_TURN, MOST_TURN):
        for count in around(number):
            for _ in range(RUNS - 1):
                case.gives(case.operand + np.float32(count), program, case.operand, count)


@case("pmap", "call", "H5 H9", minimum_devices=2)
def waits_between_calls(case: Case) -> None:
    """Devices that wait for each other between two calls: none waits for its turn until another has ended its own."""
    case = case.over(case.devices[:2])
    count = LEAST_TURN + 1

    def step(_: Any, carry: Any) -> Any:
        called = case.apply(add_one, carry)
        return called + 0 * jax.lax.psum(called, "devices")

    # The number of steps is an operand, so that XLA does not unroll the loop.
    loop = jax.pmap(
        lambda x, count: jax.lax.fori_loop(0, count, step, x),
        axis_name="devices",
        in_axes=(0, None),
        devices=case.devices,
    )
    for _ in range(RUNS):
        case.gives(case.operand + np.float32(count), loop, case.operand, count)


@case("pmap", "call", "H5 H9", minimum_devices=2)
def many_calls_between_sums(case: Case) -> None:
    """Many calls of two devices, some of them slower, and then a sum, twice: a device that waits gets its turn."""
    case = case.over(case.devices[:2])
    called = [0]

    def answer(operand: Any) -> Any:
        called[0] += 1
        if not called[0] % 20:
            # No wait for something: the slower one is the point.
            threading.Event().wait(STALL_SECONDS)
        return operand

    def calls_and_sum(carry: Any, _: Any) -> Any:
        carry = jax.lax.fori_loop(0, CALLS, lambda _, inner: case.apply(answer, inner), carry)
        return jax.lax.psum(carry, "devices") / 2, None

    program = case.compile(lambda x: jax.lax.scan(calls_and_sum, x, None, length=2)[0])
    for _ in range(RUNS + 2):
        case.gives(np.full(2, 0.5, np.float32), program, np.arange(2, dtype=np.float32))
    case.barrier()
    case.same("wrong count", Stage.CALLBACK, called, [(RUNS + 2) * 2 * 2 * CALLS])
