"""Cases of callbacks in a differentiated program that no differentiated value reaches: each runs where it stands.

To differentiate a program, JAX splits it into a part that it evaluates now and a part that it transposes. A callback
belongs to neither, if no derivative depends on it. It must not be dropped, repeated or moved out of its loop.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.registry import EVERY_EFFECT

TRIPS = 5
FACTOR = np.float32(2)

Call = Callable[[Any], Any]
"""Calls back with a number that is not differentiated, and returns the factor."""
Place = Callable[[Call, Any, Any], Any]
"""The product of `x` and some factors, with callbacks that get `n` or the number of a step."""


def _alone(call: Call, x: Any, n: Any) -> Any:
    return x * call(n)


def _in_a_function(call: Call, x: Any, n: Any) -> Any:
    return jax.jit(lambda x, n: x * call(n))(x, n)


def _in_a_branch(call: Call, x: Any, n: Any) -> Any:
    return jax.lax.cond(n > 0, lambda x: x * call(n), lambda x: x, x)


def _in_a_scan(call: Call, x: Any, n: Any) -> Any:
    return jax.lax.scan(lambda carry, step: (carry * call(step), None), x, np.arange(TRIPS))[0]


def _in_a_function_in_a_scan(call: Call, x: Any, n: Any) -> Any:
    return _in_a_scan(lambda step: jax.jit(call)(step), x, n)


def _in_a_branch_in_a_scan(call: Call, x: Any, n: Any) -> Any:
    return _in_a_scan(lambda step: jax.lax.cond(step % 2 == 0, call, lambda _: FACTOR, step), x, n)


def _in_a_scan_in_a_scan(call: Call, x: Any, n: Any) -> Any:
    return jax.lax.scan(lambda carry, _: (_in_a_scan(call, carry, n), None), x, None, length=2)[0]


def _in_a_fori_loop(call: Call, x: Any, n: Any) -> Any:
    return jax.lax.fori_loop(0, TRIPS, lambda step, carry: carry * call(step), x)


PLACES: dict[str, tuple[Place, Counter[int], int]] = {
    "alone": (_alone, Counter({7: 1}), 1),
    "in a jitted function": (_in_a_function, Counter({7: 1}), 1),
    "in a branch": (_in_a_branch, Counter({7: 1}), 1),
    "in a scan": (_in_a_scan, Counter(range(TRIPS)), TRIPS),
    "in a function in a scan": (_in_a_function_in_a_scan, Counter(range(TRIPS)), TRIPS),
    "in a branch in a scan": (_in_a_branch_in_a_scan, Counter(range(0, TRIPS, 2)), TRIPS),
    "in a scan in a scan": (_in_a_scan_in_a_scan, Counter(dict.fromkeys(range(TRIPS), 2)), 2 * TRIPS),
    "in a fori_loop": (_in_a_fori_loop, Counter(range(TRIPS)), TRIPS),
}
"""Each place, the numbers with which its callback runs, and how many factors it multiplies."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Told:
    """A function that writes down the numbers that it gets."""

    label: str
    numbers: dict[str, Counter[int]]

    def __call__(self, operand: Any) -> Any:
        self.numbers.setdefault(self.label, Counter())[int(np.asarray(operand))] += 1
        return FACTOR


@case("jit", EVERY_EFFECT, "H6 X3 X4 B4")
def beside_derivatives(case: Case) -> None:
    """Under grad and jvp, with a result that is used or not, in functions, branches and loops."""
    numbers: dict[str, Counter[int]] = {}
    one = jax.ShapeDtypeStruct((), np.float32)
    uses = (False, True) if case.callback.returns_new_value else (False,)

    def calling(label: str, used: bool) -> Call:
        def call(n: Any) -> Any:
            result = case.apply(_Told(label, numbers), n, one)
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
                found = numbers.get(label, Counter())
                case.same("wrong count", Stage.CALLBACK, found, wanted, f"under {way}, {label}")
