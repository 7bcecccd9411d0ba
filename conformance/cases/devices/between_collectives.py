"""Calls of devices that wait for each other, in quick succession and between collectives."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import add_one

RUNS = 3
CALLS = 500


@case("pmap", "call pure_callback io_callback", "H9 X2 X3", minimum_devices=2)
def quick_calls(case: Case) -> None:
    """Loops on two devices that call back in quick succession, for the one interpreter lock, have the right results."""
    case = case.over(case.devices[:2])

    def loop(x: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, carry: case.apply(add_one, carry), x)

    program = jax.pmap(loop, in_axes=(0, None), devices=case.devices)
    for count in (1, 32, 1024):
        for _ in range(RUNS):
            case.gives(case.operand + np.float32(count), program, case.operand, count)


@case("pmap", "call io_callback", "H5 H9 X3", minimum_devices=2)
def calls_between_sums(case: Case) -> None:
    """Devices that wait for each other, after each call or after many: none waits for ever."""
    case = case.over(case.devices[:2])
    host = case.host()
    for calls in (1, CALLS):

        def step(_: Any, carry: Any, calls: int = calls) -> Any:
            carry = jax.lax.fori_loop(0, calls, lambda _, inner: case.apply(host, inner), carry)
            return jax.lax.psum(carry, "devices") / 2

        # The number of steps is an operand, so that XLA does not unroll the loop.
        loop = jax.pmap(
            lambda x, count, step=step: jax.lax.fori_loop(0, count, step, x),
            axis_name="devices",
            in_axes=(0, None),
            devices=case.devices,
        )
        steps = 33 if calls == 1 else 2
        for _ in range(RUNS):
            case.forget()
            case.gives(np.full(2, 0.5, np.float32), loop, np.arange(2, dtype=np.float32), steps)
            case.barrier()
            case.same("wrong count", Stage.CALLBACK, host.count, 2 * steps * calls)
