"""Callbacks in a differentiated program: in loops, in solvers, and where no differentiated value reaches them.

To differentiate a program, JAX splits it into a part that it evaluates now and a part that it transposes. A callback
belongs to neither, if no derivative depends on it. It must not be dropped, repeated or moved out of its loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.composing import Composition, ran
from ..harness.hosts import add_one
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


Call = Callable[[Any], Any]
"""Calls back with a number that is not differentiated, and returns the factor."""
Place = Callable[[Call, Any, Any], Any]
"""The product of `x` and some factors, with callbacks that get `n` or the number of a step."""


def _scan(call: Call, x: Any, n: Any) -> Any:
    return jax.lax.scan(lambda carry, step: (carry * call(step), None), x, np.arange(TRIPS))[0]


ONCE, EACH = Counter({7: 1}), Counter(range(TRIPS))

PLACES: dict[str, tuple[Place, Counter[int], int]] = {
    "alone": (lambda call, x, n: x * call(n), ONCE, 1),
    "in a jitted function": (lambda call, x, n: jax.jit(lambda x, n: x * call(n))(x, n), ONCE, 1),
    "in a branch": (lambda call, x, n: jax.lax.cond(n > 0, lambda x: x * call(n), lambda x: x, x), ONCE, 1),
    "in a scan": (_scan, EACH, TRIPS),
    "in a function in a scan": (lambda call, x, n: _scan(lambda step: jax.jit(call)(step), x, n), EACH, TRIPS),
    "in a branch in a scan": (
        lambda call, x, n: _scan(lambda step: jax.lax.cond(step % 2 == 0, call, lambda _: FACTOR, step), x, n),
        Counter(range(0, TRIPS, 2)),
        TRIPS,
    ),
    "in a scan in a scan": (
        lambda call, x, n: jax.lax.scan(lambda carry, _: (_scan(call, carry, n), None), x, None, length=2)[0],
        EACH + EACH,
        2 * TRIPS,
    ),
    "in a fori_loop": (
        lambda call, x, n: jax.lax.fori_loop(0, TRIPS, lambda step, carry: carry * call(step), x),
        EACH,
        TRIPS,
    ),
}
"""Each place, the numbers with which its callback runs, and how many factors it multiplies."""


@case("jit", EVERY_EFFECT, "H6 X3 X4 B4")
def beside_derivatives(case: Case) -> None:
    """A callback that no derivative needs runs under grad and jvp as often as without them.

    Its result is used or not, in functions, branches and loops.
    """
    numbers: defaultdict[str, Counter[int]] = defaultdict(Counter)
    uses = (False, True) if case.callback.returns_new_value else (False,)

    def calling(label: str, used: bool) -> Call:
        def call(n: Any) -> Any:
            # Another function at each place, and each trace.
            def host(operand: Any) -> Any:
                numbers[label][int(np.asarray(operand))] += 1
                return FACTOR

            result = case.apply(host, n, FACTOR)
            return result if used else FACTOR

        return call

    def product(x: Any, n: Any) -> Any:
        for place, (function, _, _) in PLACES.items():
            for used in uses:
                x = function(calling(f"{place}, its result {'' if used else 'not '}used", used), x, n)
        return x

    factors = np.float32(FACTOR ** (len(uses) * sum(count for _, _, count in PLACES.values())))
    ways: dict[str, Callable[..., Any]] = {
        "grad": jax.jit(jax.grad(product)),
        "jvp": jax.jit(lambda x, n: jax.jvp(lambda x: product(x, n), (x,), (np.float32(1),))[1]),
    }
    for way, function in ways.items():
        numbers.clear()
        case.gives(factors, function, np.float32(1), 7, what=f"under {way}: the derivative")
        case.barrier()
        for place, (_, wanted, _) in PLACES.items():
            for used in uses:
                label = f"{place}, its result {'' if used else 'not '}used"
                case.same("wrong count", Stage.CALLBACK, numbers[label], wanted, f"under {way}, {label}")


@case("jit", "id_tap call io_callback io_callback_ordered debug_callback debug_callback_ordered", "H4 H6 X3 X4")
def in_a_solver(case: Case) -> None:
    """A while_loop calls back once at each step, also under grad where nothing needs the derivative of its result."""
    host = case.host(add_one)

    def step(carry: Any) -> Any:
        number, x = carry
        case.apply(host, jax.lax.stop_gradient(x))
        return number + 1, x * 2

    def function(x: Any) -> Any:
        return x * jax.lax.stop_gradient(jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, x))[1])

    case.gives(np.float32(8), jax.jit(jax.grad(function)), np.float32(1))
    case.saw(host, [np.float32(1), np.float32(2), np.float32(4)])


@case("jit", "io_callback", "H4")
def fuzz_grad_scan_io(case: Case) -> None:
    """An unused io_callback of what is carried and not differentiated runs at each step of a differentiated scan."""
    run = Composition(case)

    def step(carry: Any, _: Any) -> Any:
        y, count = carry
        run("io_callback", "unordered", count)
        run("io_callback_ordered", "ordered", count)
        return (y * y, count + 1), None

    program = jax.value_and_grad(lambda x: jax.lax.scan(step, (x, np.int32(3)), None, length=3)[0][0])
    expected = [ran(name, count) for count in (3, 4, 5) for name in ("unordered", "ordered")]
    run.check(jax.jit(program), 2.0, [256.0, 1024.0], expected)
