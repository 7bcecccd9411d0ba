"""Cases of callbacks of every kind on tangents of a `custom_jvp` rule: called or refused, and not dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.checkers import Anomaly
from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Callback
from ..harness.bench import Bench
from ..harness.case import Case, case
from ..harness.registry import EVERY_EFFECT

POINT, TANGENT = np.float32(3), np.float32(5)
LOOPS = 2


@case("jit", f"{EVERY_EFFECT} pure_callback buffer_callback dlpack_callback", "H6 H8 X2 X3 X4 B4")
def called_with_tangents(case: Case) -> None:
    """Under jvp it gets the tangent. Under grad, what cannot be transposed is refused, even if its result is unused."""
    seen: list[float] = []
    square = _square(case.bench, case.callback, seen)

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
        case.value(label, lambda p=program: p(POINT, TANGENT), wanted)  # type: ignore[misc]
        case.barrier()
        if seen != [float(each) for each in tangents]:
            case.wrong("wrong operand", Stage.CALLBACK, f"under {label} it saw {seen}, not {tangents}")
    if case.callback.refusals.differentiation and case.callback.runs.value == "once":
        case.found(_check_refused(case.callback, square))


def _square(bench: Bench, callback: Callback, seen: list[float]) -> Callable[[Any], Any]:
    def host(operand: Any) -> Any:
        seen.append(float(np.asarray(operand)))
        return np.float32(0)

    @jax.custom_jvp
    def square(x: Any) -> Any:
        return x * x

    @square.defjvp
    def rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        (x,), (tangent,) = primals, tangents
        result = bench.apply(callback, host, tangent, jax.ShapeDtypeStruct((), np.float32))
        # A pure callback runs only if its result is used.
        used = result if callback.runs.value == "if_needed" else 0
        return square(x), 2 * x * tangent + used

    function: Callable[[Any], Any] = square
    return function


def _check_refused(callback: Callback, square: Callable[[Any], Any]) -> list[Anomaly]:
    refusal = callback.refusals.differentiation
    assert refusal is not None
    try:
        found = jax.jit(jax.grad(square))(jnp.float32(POINT))
    except refusal.errors as error:
        if any(word in str(error) for word in (*refusal.words, "transpose")):
            return []
        return [Anomaly("poor error", stage_of(error), f"under grad the error does not say why: {summary(error)}")]
    except Exception as error:
        return [Anomaly("wrong error", stage_of(error), f"under grad: {summary(error)}")]
    witness = f"under grad a callback on a tangent was not refused, and the derivative is {found}"
    return [Anomaly("accepted", Stage.TRACE, witness)]
