"""Cases of differentiation: loops that JAX splits for it."""

from __future__ import annotations

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
    for what, operand in (("constant operands", np.full(WIDTH, FACTOR)), ("no operands", ())):
        for used in (False, True):
            for checkpointed in (False, True):
                if checkpointed and case.callback.refusals.checkpoint:
                    continue
                where = f"{what}, its result {'' if used else 'not '}used{', in a checkpoint' if checkpointed else ''}"
                _check_loop(case, operand, used, checkpointed, where)


def _check_loop(case: Case, operand: Any, used: bool, checkpointed: bool, where: str) -> None:
    calls: list[None] = []

    def host(operand: Any) -> Any:
        calls.append(None)
        return np.full(WIDTH, FACTOR)

    def body(carry: Any, _: Any) -> Any:
        result = case.apply(host, operand, jax.ShapeDtypeStruct((WIDTH,), np.float32))
        factor = result[0] if used and case.callback.returns_new_value else FACTOR
        return carry * factor, None

    def looped(x: Any) -> Any:
        return jax.lax.scan(body, x, None, length=TRIPS)[0]

    compiled = jax.jit(jax.grad(jax.checkpoint(looped) if checkpointed else looped))
    case.gives(np.asarray(FACTOR**TRIPS), compiled, 1.0, what=f"with {where}: the derivative")
    case.barrier()
    # In a checkpoint the forward pass may run again; JAX keeps the result of a call.
    right = len(calls) in ({TRIPS, 2 * TRIPS} if checkpointed else {TRIPS})
    case.check(right, "wrong count", Stage.CALLBACK, f"with {where}: {len(calls)} calls in {TRIPS} steps")
