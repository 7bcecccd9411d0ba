"""Cases of differentiation: loops that JAX splits for it, and taps in derivative rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.bench import WIDTH, Bench
from ..harness.case import Case, case
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
        result = case.call_back(host, operand, jax.ShapeDtypeStruct((WIDTH,), np.float32))
        factor = result[0] if used and case.callback.returns_new_value else FACTOR
        return carry * factor, None

    def looped(x: Any) -> Any:
        return jax.lax.scan(body, x, None, length=TRIPS)[0]

    if checkpointed:
        looped = jax.checkpoint(looped)
    compiled = jax.jit(jax.grad(looped))
    case.value(f"with {where}: the derivative", lambda: compiled(1.0), np.asarray(FACTOR**TRIPS))
    case.implementation.barrier()
    # In a checkpoint the forward pass may run again; JAX keeps the result of a call.
    wanted = {TRIPS, 2 * TRIPS} if checkpointed else {TRIPS}
    if len(calls) not in wanted:
        witness = f"with {where}: {len(calls)} calls in {TRIPS} steps"
        case.wrong("wrong count", Stage.CALLBACK, witness)


@case("jit", "id_tap", "H6")
def tapped_tangents(case: Case) -> None:
    """A tap in a `custom_jvp` rule sees tangents under jvp, and cotangents with a transpose entry under grad."""
    transposed: tuple[str, dict[str, Any]] = ("transpose", {})
    both = np.array([1, 2], np.float32)

    def in_loop(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jax.lax.scan(lambda carry, _: (function(carry), None), x, None, length=2)[0]

    # The rule returns twice the tangent for every square x**2, whose derivative is 2x.
    programs: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
        "jvp": (lambda square: jax.jit(lambda: jax.jvp(square, (3.0,), (5.0,))[1])(), [(5.0, [])]),
        "grad": (lambda square: jax.jit(jax.grad(lambda x: 7 * square(x)))(3.0), [(42.0, [transposed])]),
        "grad, not compiled": (lambda square: jax.grad(lambda x: 7 * square(x))(3.0), [(42.0, [transposed])]),
        "vmap of grad": (
            lambda square: jax.jit(jax.vmap(jax.grad(square)))(both),
            [([2.0, 4.0], [transposed, ("batch", {"batch_dims": (0,)})])],
        ),
        "grad of scan": (
            lambda square: jax.jit(jax.grad(in_loop(square)))(3.0),
            # For (x**2)**2 the outer square comes first.
            [(18.0, [transposed]), (108.0, [transposed])],
        ),
        "grad of checkpoint": (
            lambda square: jax.jit(jax.grad(jax.checkpoint(lambda x: 7 * square(x))))(3.0),
            [(42.0, [transposed])],
        ),
    }
    results = {
        **{"jvp": 30.0, "grad": 42.0, "grad, not compiled": 42.0, "vmap of grad": both * 2, "grad of scan": 108.0},
        "grad of checkpoint": 42.0,
    }
    for label, (program, wanted) in programs.items():
        received: list[Any] = []
        result = program(_square(case.bench, received))
        case.value(label, lambda r=result: r, np.asarray(results[label], np.float32))  # type: ignore[misc]
        case.barrier()
        if received != wanted:
            witness = f"under {label} the tap received {received}, expected {wanted}"
            case.wrong("wrong transforms", Stage.CALLBACK, witness)
    _beside_primals(case)
    seen: list[Any] = []
    result = jax.jit(jax.grad(lambda x: 7 * _square(case.bench, seen, paired=True)(x)))(3.0)
    case.value("grad of a pair", lambda: result, np.float32(42))
    case.barrier()
    if seen != [([42.0, 0.0], [transposed])]:
        witness = f"of a pair of tangents one is not used; the tap received {seen}, expected 42 and 0"
        case.wrong("wrong transforms", Stage.CALLBACK, witness)


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
        case.value(where, lambda r=result: r, np.float32(6))  # type: ignore[misc]
        case.barrier()
        # The result does not depend on the tapped primal. Twice the tapped tangent is multiplied by 3.
        if seen != [(0.0, 6.0, ["transpose"])]:
            witness = f"{where}: the tap received {seen}, expected 0 and 6 once, transposed"
            case.wrong("wrong transforms", Stage.CALLBACK, witness)


def _square(bench: Bench, seen: list[Any], paired: bool = False) -> Callable[[Any], Any]:
    def host(operand: Any, transforms: Any) -> None:
        values = [float(leaf) for leaf in operand] if paired else operand.tolist()
        seen.append((values, [(name, dict(parameters)) for name, parameters in transforms]))

    def tapped(tangent: Any) -> Any:
        if paired:
            return bench.implementation.tap(host, (tangent, 3 * tangent))[0]
        return bench.implementation.tap(host, tangent)

    @jax.custom_jvp
    def square(x: Any) -> Any:
        return x * x

    @square.defjvp
    def rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        return square(primals[0]), 2 * primals[0] * tapped(tangents[0])

    function: Callable[[Any], Any] = square
    return function
