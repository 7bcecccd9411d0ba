"""Cases of differentiation: loops that JAX splits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.programs import WIDTH
from ..harness.registry import EVERY_EFFECT

TRIPS = 5
FACTOR = np.float32(2)


@case("jit", EVERY_EFFECT, "H4 X3 X4")
def scan_without_operands(case: Case) -> None:
    """#16637, #28738: a loop-invariant callback in the body of a scan runs in each step, also under grad."""
    calls: list[str] = []
    operands = {"constant operands": np.full(WIDTH, FACTOR), "no operands": ()}
    uses = (False, True) if case.callback.returns_new_value else (False,)
    loops = {
        f"{what}, its result {'' if used else 'not '}used": (operand, used)
        for what, operand in operands.items()
        for used in uses
    }

    def looped(label: str, operand: Any, used: bool) -> Callable[[Any], Any]:
        def host(operand: Any) -> Any:
            calls.append(label)
            return FACTOR

        def body(carry: Any, _: Any) -> Any:
            result = case.apply(host, operand, jax.ShapeDtypeStruct((), np.float32))
            return carry * (result if used else FACTOR), None

        return lambda x: jax.lax.scan(body, x, None, length=TRIPS)[0]

    for where, around in (("", lambda loop: loop), (", in a checkpoint", jax.checkpoint)):
        if where and case.callback.refusals.checkpoint:
            continue
        calls.clear()

        # Each loop is one of its own: what JAX does with a body, it does for all of it.
        def product(x: Any, around: Any = around) -> Any:
            for label, loop in loops.items():
                x = around(looped(label, *loop))(x)
            return x

        derivative = FACTOR ** np.float32(TRIPS * len(loops))
        case.gives(derivative, jax.jit(jax.grad(product)), 1.0, what=f"the derivative{where}")
        case.barrier()
        # In a checkpoint the forward pass may run again; JAX keeps the result of a call.
        counts = {TRIPS, 2 * TRIPS} if where else {TRIPS}
        for label in loops:
            count = calls.count(label)
            witness = f"with {label}{where}: {count} calls in {TRIPS} steps"
            case.check(count in counts, "wrong count", Stage.CALLBACK, witness)
