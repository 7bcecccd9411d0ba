"""Reports about callbacks in loops, branches and solvers, about what host functions return, and about formats."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.external_callbacks import callback_named
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.programs import row, rows
from ..harness.registry import WITH_EFFECTS, WITH_RESULTS

TRIPS = 5


@case("jit", WITH_EFFECTS)
def loop_with_large_carry(case: Case) -> None:
    """#25861: a while_loop with a large carry calls back in each step."""
    host = case.host()

    def step(state: Any) -> Any:
        case.apply(host, row(state[0]))
        return state[0] + 1, state[1] * 1.5 + 1

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda state: state[0] < TRIPS, step, (0, x))[1]

    for _ in case.runs(loop, jnp.zeros((500, 500)), TRIPS):
        case.saw(host, rows(*range(TRIPS)))


@case("jit", f"{WITH_EFFECTS} io_callback")
def condition_with_frozen_carry(case: Case) -> None:
    """#10577: the condition of a loop calls back, and a part of the carry never changes. The body may keep an order."""
    host, of_body = case.host(), case.host()
    ordered = callback_named("debug_callback_ordered")

    def loop(in_order: bool, x: Any) -> Any:
        def unfinished(state: Any) -> Any:
            case.apply(host, row(state[0]))
            return state[0] < TRIPS

        def body(state: Any) -> Any:
            if in_order:
                case.apply(of_body, row(state[0]), by=ordered)
            return state[0] + 1, state[1]

        return jax.lax.while_loop(unfinished, body, (jnp.float32(0), x))[1]

    for in_order in (False, True):
        for result in case.runs(functools.partial(loop, in_order), case.operand, times=1):
            case.gave(result, case.operand)
            case.saw(host, rows(*range(TRIPS + 1)))
            case.saw(of_body, rows(*range(TRIPS if in_order else 0)))


@case("jit", "io_callback io_callback_ordered debug_callback id_tap", "H6 X3 X4")
def invariant_predicate(case: Case) -> None:
    """google/brax#634, liesel-devs/liesel#317: in a differentiated scan a callback runs once at each step.

    It is behind a cond with one flag for all steps.
    """
    host = case.host()

    def loss(x: Any, flag: Any) -> Any:
        def step(carry: Any, number: Any) -> Any:
            jax.lax.cond(flag, lambda: (case.apply(host, row(number)), None)[1], lambda: None)
            return jnp.sin(carry), None

        return jax.lax.scan(step, x, jnp.arange(TRIPS))[0]

    jax.block_until_ready(jax.jit(jax.grad(loss))(np.float32(1), np.bool_(True)))
    case.saw(host, rows(*range(TRIPS)))


@case("jit", WITH_EFFECTS)
def implicit_derivative(case: Case) -> None:
    """No public number: a solver wrapped in custom_root calls back once, without differentiation."""
    host = case.host()

    def solve(function: Any, start: Any) -> Any:
        case.apply(host, row(0))
        return start - function(start)

    def root(x: Any) -> Any:
        return jax.lax.custom_root(lambda y: y - x, x, solve, lambda linear, right: right / linear(1.0))

    for result in case.runs(root, np.float32(2), times=1):
        case.gave(result, np.float32(2))
        case.saw(host, rows(0))


@case("jit", WITH_RESULTS)
def mapped(case: Case) -> None:
    """#23854: `jax.lax.map` of a callback over rows gives each row its result."""
    rows = np.arange(8 * 256, dtype=np.float32).reshape(8, 256)
    host = case.host(add_one)
    for result in case.runs(lambda x: jax.lax.map(lambda row: case.apply(host, row), x), rows, times=1):
        case.gave(result, rows + np.float32(1))


@case("jit", "id_tap io_callback debug_callback")
def shape_first(case: Case) -> None:
    """#16732: `eval_shape` of a function, and then its execution: the first leaves no state for the second."""
    host = case.host()

    def function(x: Any) -> Any:
        return case.apply(host, x) * 1

    shape = jax.eval_shape(function, case.operand)
    case.same("result", Stage.TRACE, shape.shape, case.operand.shape, "the shape")
    case.gave(function(jnp.asarray(case.operand)), case.operand)
    case.saw(host, [case.operand])


SCALAR = jax.ShapeDtypeStruct((), np.float32)


@case("jit", "pure_callback io_callback")
def python_number(case: Case) -> None:
    """#20433: a Python number as a float32 result is converted or refused, and never becomes garbage."""
    compiled = jax.jit(lambda x: case.apply(lambda _: 42.0, x, SCALAR))
    try:
        case.gave(compiled(case.operand), np.float32(42))
    except Exception:
        # The barrier reports a refusal once more, and then it is over.
        case.drain()


@case("jit pjit", f"{WITH_RESULTS} dlpack_callback")
def reuses_its_result(case: Case) -> None:
    """As #37830: a function returns the same array each time, with new values; earlier results do not change."""
    mine = np.zeros(case.callback_shape, np.float32)

    def host(operand: Any) -> Any:
        mine[...] = add_one(operand)
        return mine

    compiled = case.program(host)
    operands = [case.operand + np.float32(10 * number) for number in range(TRIPS)]
    results = [jax.block_until_ready(compiled(operand)) for operand in operands]
    for operand, result in zip(operands, results, strict=True):
        case.gives(operand + np.float32(1), np.asarray, result)


@case("jit", "debug_print", "X4")
def text_in_format(case: Case) -> None:
    """#23600: a print shows the text and the traced values that its format mixes."""
    with case.prints("2.0 text"):
        jax.jit(lambda x: case.implementation.print_as("{a} {b}", a=x, b="text"))(np.float32(2))
