"""Cases of differentiation: loops that JAX splits for it, and taps in derivative rules."""

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


@case("jit", "id_tap", "H6")
def tapped_tangents(case: Case) -> None:
    """A tap in a `custom_jvp` rule sees tangents under jvp, and cotangents with a transpose entry under grad."""
    transposed: tuple[str, dict[str, Any]] = ("transpose", {})
    both = np.array([1, 2], np.float32)
    seven = lambda square: lambda x: 7 * square(x)
    twice = lambda square: lambda x: jax.lax.scan(lambda carry, _: (square(carry), None), x, None, length=2)[0]
    of_both = ([2.0, 4.0], [transposed, ("batch", {"batch_dims": (0,)})])
    # The rule returns twice the tangent for every square x**2, whose derivative is 2x.
    programs: dict[str, tuple[Callable[[Any], Any], Any, list[Any]]] = {
        "jvp": (lambda square: jax.jit(lambda: jax.jvp(square, (3.0,), (5.0,))[1])(), 30.0, [(5.0, [])]),
        "grad": (lambda square: jax.jit(jax.grad(seven(square)))(3.0), 42.0, [(42.0, [transposed])]),
        "grad, not compiled": (lambda square: jax.grad(seven(square))(3.0), 42.0, [(42.0, [transposed])]),
        "vmap of grad": (lambda square: jax.jit(jax.vmap(jax.grad(square)))(both), both * 2, [of_both]),
        # For (x**2)**2 the outer square comes first.
        "grad of scan": (
            *(lambda square: jax.jit(jax.grad(twice(square)))(3.0), 108.0),
            [(18.0, [transposed]), (108.0, [transposed])],
        ),
        "grad of checkpoint": (
            *(lambda square: jax.jit(jax.grad(jax.checkpoint(seven(square))))(3.0), 42.0),
            [(42.0, [transposed])],
        ),
    }
    for label, (program, expected, wanted) in programs.items():
        received: list[Any] = []
        case.gives(np.asarray(expected, np.float32), program, _square(case, received), what=label)
        case.barrier()
        case.same("wrong transforms", Stage.CALLBACK, received, wanted, f"under {label} the tap received")
    _beside_primals(case)
    # Of a pair of tangents one is not used.
    seen: list[Any] = []
    of_pair = jax.jit(jax.grad(seven(_square(case, seen, paired=True))))
    case.gives(np.float32(42), of_pair, 3.0, what="grad of a pair")
    case.barrier()
    case.same("wrong transforms", Stage.CALLBACK, seen, [([42.0, 0.0], [transposed])], "the tap of a pair received")


def _beside_primals(case: Case) -> None:
    """A tap of a primal and its tangent, in a checkpoint: it is of the cotangents, and the derivative is right."""
    seen: list[Any] = []

    def host(operand: Any, transforms: Any) -> None:
        seen.append((*map(float, operand), [name for name, _ in transforms]))

    @jax.custom_jvp
    def square(x: Any) -> Any:
        return x * x

    @square.defjvp
    def rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        _, tangent = case.implementation.tap(host, (primals[0], tangents[0]))
        return square(primals[0]), 2 * primals[0] * tangent

    saved = jax.checkpoint(square)
    for label, program in {
        "a checkpoint": saved,
        "a scan of checkpoints": lambda x: jax.lax.scan(lambda carry, _: (saved(carry), None), x, None, length=1)[0],
    }.items():
        seen.clear()
        result = jax.jit(jax.grad(program))(3.0)
        where = f"a primal and its tangent, in {label}"
        case.gives(np.float32(6), np.asarray, result, what=where)
        case.barrier()
        # The result does not depend on the tapped primal. Twice the tapped tangent is multiplied by 3.
        case.same("wrong transforms", Stage.CALLBACK, seen, [(0.0, 6.0, ["transpose"])], f"{where}: the tap received")


def _square(case: Case, seen: list[Any], paired: bool = False) -> Callable[[Any], Any]:
    def host(operand: Any, transforms: Any) -> None:
        values = [float(leaf) for leaf in operand] if paired else operand.tolist()
        seen.append((values, [(name, dict(parameters)) for name, parameters in transforms]))

    def tapped(tangent: Any) -> Any:
        if paired:
            return case.implementation.tap(host, (tangent, 3 * tangent))[0]
        return case.implementation.tap(host, tangent)

    @jax.custom_jvp
    def square(x: Any) -> Any:
        return x * x

    @square.defjvp
    def rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        return square(primals[0]), 2 * primals[0] * tapped(tangents[0])

    function: Callable[[Any], Any] = square
    return function
