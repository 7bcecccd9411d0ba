"""What runs after a callback has failed: nothing that needs its result, and everything else."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ...spec.external_callbacks import callback_named
from ..harness.case import BEGINS_WITHIN, Case, case
from ..harness.hosts import PLANTED, error_of, fail
from ..harness.programs import repeated
from .misbehaving import Misbehaving, ends

START = np.float32(10)
STEPS = 4
END = START + np.float32(STEPS)
FAILING = 2
"""The step that fails, counted from 0."""


@case("jit", "call pure_callback io_callback io_callback_ordered buffer_callback dlpack_callback")
def nothing_after_a_failure(case: Case) -> None:
    """Callbacks that take the result of a failed one, in a loop and one by one, do not run with what it left.

    Nor do taps of it, and those before it have run.
    """
    seen: list[float] = []
    fails = False
    taps, tap = case.host(), callback_named("id_tap")

    def host(operand: Any) -> Any:
        seen.append(float(np.asarray(operand)))
        if fails and len(seen) > FAILING:
            raise ValueError(PLANTED)
        return np.asarray(operand) + np.float32(1)

    def step(x: Any) -> Any:
        result = case.apply(host, x)
        return case.apply(taps, result, by=tap) if case.callback.function == "call" else result

    for program in map(jax.jit, repeated(step, STEPS)):
        # The second dispatch of a program may go another way than the first.
        for _ in range(2):
            case.gives(END, program, START)
        case.barrier()
        case.forget()
        seen.clear()
        fails = True
        case.raises(lambda: program(START), PLANTED)  # noqa: B023
        fails = False
        case.drain()
        numbers = [START + np.float32(number) for number in range(FAILING + 1)]
        case.same("wrong operand", Stage.CALLBACK, seen, [*map(float, numbers)])
        case.saw(taps, numbers[1:] if case.callback.function == "call" else [])
        case.gives(END, program, START)


@case("jit", "call pure_callback io_callback buffer_callback dlpack_callback", "H15 X2 X3 B1 D1")
def failure_leaves_operands(case: Case) -> None:
    """A failed call has no results, and the operand, which the program may have lent it, is as it was."""
    program = jax.jit(lambda x: case.apply(fail, x, np.zeros(2, np.float32)))
    for size in (64, 1 << 20):
        operand = jax.device_put(np.arange(size, dtype=np.float32) + 1)
        for _ in range(3):
            case.raises(lambda: program(operand))  # noqa: B023 - called at once
        case.drain()
        case.gives(np.arange(size, dtype=np.float32) + 1, np.asarray, operand)


@case("pmap", "io_callback", "H13 H15", minimum_devices=2)
def jaxs_barrier_raises_once(case: Case) -> None:
    """A program fails after its dispatch has returned: `jax.effects_barrier` raises that at most once."""
    dispatched = threading.Event()

    def host(operand: Any) -> Any:
        # An implementation may wait for its callbacks as it dispatches.
        dispatched.wait(BEGINS_WITHIN)
        return fail(operand)

    def run() -> Any:
        try:
            return program(case.operand)
        finally:
            dispatched.set()

    program = case.program(host)
    case.raises(run, PLANTED)
    _, *later = [error_of(jax.effects_barrier) for _ in range(3)]
    case.same("stale error", Stage.BARRIER, [summary(error) for error in later if error], [], "raised again")
    # This barrier may report the failure as well.
    case.drain()


@case("jit", "call pure_callback buffer_callback dlpack_callback")
def fails_in_a_while_loop(case: Case) -> None:
    """A loop that goes on until a callback's result is large enough ends when that callback fails."""

    def too_far(operand: Any) -> Any:
        if float(np.asarray(operand)) > STEPS // 2:
            raise ValueError(PLANTED)
        return np.asarray(operand) + np.float32(1)

    host = Misbehaving(too_far)

    def loop(x: Any) -> Any:
        result = jax.lax.while_loop(lambda carry: carry < STEPS, lambda carry: case.apply(host, carry), x)
        # What comes last does not say of which callbacks the program is made.
        return case.implementation.tap(lambda *_: None, result) if case.callback.function == "call" else result

    program = jax.jit(loop)
    # JAX dispatches a program in another way from its second run on.
    for _ in range(2):
        case.gives(np.float32(STEPS), program, np.float32(0))
        case.barrier()
        host.armed = True
        ends(case, lambda: program(np.float32(0)), PLANTED)
        host.armed = False
        # This barrier may report the failure as well.
        case.drain()
    case.gives(np.float32(STEPS), program, np.float32(0))
