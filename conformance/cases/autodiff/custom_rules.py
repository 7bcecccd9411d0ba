"""Callbacks in the rules of `custom_jvp` and `custom_vjp`: on tangents, on cotangents, and beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ..harness.case import Case, case
from ..harness.composing import FLOAT0, TRANSPOSED, Composition, ran
from ..harness.hosts import add_one
from ..harness.registry import EVERY_EFFECT

POINT, TANGENT = np.float32(3), np.float32(5)
LOOPS = 2
INTEGER = np.int32(7)
"""An operand beside a tangent. In reverse mode a tap gets its cotangent, of type float0."""


@case("jit", f"{EVERY_EFFECT} pure_callback buffer_callback", "H6 H8 X2 X3 X4 B4")
def called_with_tangents(case: Case) -> None:
    """Under jvp a callback gets the tangent. Under grad it is refused if it cannot be transposed, also if unused."""
    seen: list[float] = []
    square = _square(case, seen)

    def looped(x: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (square(carry), None), x, None, length=LOOPS)[0]

    # The derivative of x**2 is 2x, and that of (x**2)**2 is 4x**3; the tangent of the outer square is 2x times 5.
    for label, function, tangents, derivative in (
        ("jvp", square, [TANGENT], 2 * POINT),
        ("jvp of scan", looped, [TANGENT, 2 * POINT * TANGENT], 4 * POINT**3),
    ):
        seen.clear()
        wanted = np.float32(derivative * TANGENT)
        program = jax.jit(lambda x, t, f=function: jax.jvp(f, (x,), (t,))[1])
        case.gives(wanted, program, POINT, TANGENT, what=label)
        case.barrier()
        case.same("wrong operand", Stage.CALLBACK, seen, [float(each) for each in tangents], f"under {label} it saw")
    if case.callback.refusals.differentiation and case.callback.runs is Runs.ONCE:
        _check_refused(case, square)


def _square(case: Case, seen: list[float]) -> Callable[[Any], Any]:
    def host(operand: Any) -> Any:
        seen.append(float(np.asarray(operand)))
        return np.float32(0)

    @jax.custom_jvp
    def square(x: Any) -> Any:
        return x * x

    @square.defjvp
    def rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        (x,), (tangent,) = primals, tangents
        result = case.apply(host, tangent)
        # A pure callback runs only if its result is used.
        used = result if case.callback.runs is Runs.IF_NEEDED else 0
        return square(x), 2 * x * tangent + used

    return square


def _check_refused(case: Case, square: Callable[[Any], Any]) -> None:
    refusal = case.callback.refusals.differentiation
    assert refusal is not None
    program = jax.jit(jax.grad(square))
    error = case.raises(lambda: program(POINT), of=refusal.errors, kind="accepted", stage=Stage.TRACE)
    if error and not any(word in str(error) for word in (*refusal.words, "transpose")):
        case.wrong("poor error", stage_of(error), f"under grad the error does not say why: {summary(error)}")


@case("jit", "id_tap call debug_callback debug_callback_ordered", "H4 X4")
def in_an_optimized_rule(case: Case) -> None:
    """A forward rule with optimize_remat=True runs its callback once, also if it leaves the backward rule nothing."""
    host = case.host(add_one)

    @jax.custom_vjp
    def double(x: Any) -> Any:
        return x * 2

    def forward(x: Any) -> tuple[Any, None]:
        case.apply(host, x)
        return x * 2, None

    double.defvjp(forward, lambda _, cotangent: (cotangent * 2,), optimize_remat=True)
    case.gives(np.float32(2), jax.jit(jax.grad(double)), np.float32(3))
    case.saw(host, [np.float32(3)])


@case("jit", "call", "H4 H5 H6")
def fuzz_grad_scan_rules(case: Case) -> None:
    """The derivative of a scan runs the callbacks of custom_vjp and custom_jvp rules at each step, in order."""
    run = Composition(case)

    @jax.custom_vjp
    def double(y: Any) -> Any:
        return 2 * run("id_tap", "double", y)

    def backward(y: Any, slope: Any) -> Any:
        run("io_callback_ordered", "rule", slope, y)
        return (3 * run("id_tap", "cotangent", slope),)

    double.defvjp(lambda y: (double(y), y), backward)

    @jax.custom_jvp
    def increased(y: Any) -> Any:
        return y + 1

    @increased.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        run("debug_callback", "at", *primals)
        return increased(*primals), -run("id_tap", "tangent", *tangents, INTEGER)

    def step(total: Any, y: Any) -> Any:
        doubled = double(total + y)
        return increased(doubled), doubled

    def objective(x: Any) -> Any:
        last, doubled = lax.scan(step, jnp.float32(1), x)
        return last + 2 * jnp.sum(doubled)

    def program(x: Any) -> Any:
        value, slopes = jax.value_and_grad(objective)(x)
        return run("call", "slopes", slopes, value)

    expected = [
        *(ran("double", 2.0), ran("at", 4.0), ran("double", 7.0), ran("at", 14.0)),
        ran("tangent", -1.0, FLOAT0, transforms=TRANSPOSED),
        *(ran("rule", 1.0, 7.0), ran("cotangent", 1.0)),
        ran("tangent", -3.0, FLOAT0, transforms=TRANSPOSED),
        *(ran("rule", -1.0, 2.0), ran("cotangent", -1.0)),
        ran("slopes", [-3.0, 3.0], 51.0),
    ]
    run.check(jax.jit(program), [1.0, 2.0], [[-2.0, 4.0]], expected)
