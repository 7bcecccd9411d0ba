"""A host function lives no longer than the programs that call it, and programs that have run leave nothing behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ...spec.external_callbacks import callback_named
from ..harness.case import Case, case
from ..harness.hosts import add_one, still_alive
from ..harness.registry import EVERY_KIND, WITH_SIDE_EFFECT
from .operands import LARGE

MANY = 5


class _Function:
    """A function to which a weak reference shows that it is gone; what it holds would be kept with it."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __call__(self, operand: Any) -> Any:
        return np.asarray(operand)


_Around = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
_AROUND: dict[str, _Around] = {
    "alone": lambda function: function,
    # In a shard_map, the type of a result of JAX's own callback is replicated, and the carry's type is not.
    "in a loop": lambda function: lambda x: jax.lax.fori_loop(0, 2, lambda _, carry: function(carry) + 0 * carry, x),
    "in a cond": lambda function: (
        lambda x: jax.lax.cond(x.ravel()[0] >= 0, lambda x: function(x) + 0 * x, lambda x: x, x)
    ),
    "in a jitted function": lambda function: jax.jit(function),
}


def _used(case: Case, held: Any = None, around: _Around = _AROUND["alone"]) -> weakref.ref[Any]:
    """A function whose program has run and is gone."""
    function = _Function(held)
    program = case.compile(around(lambda x: case.apply(function, x)))
    np.asarray(program(case.operand))
    return weakref.ref(function)


@case("jit", f"{EVERY_KIND} debug_callback_ordered {WITH_SIDE_EFFECT}", "H18")
@case("pmap shard_map", "id_tap call io_callback", "H18")
def is_forgotten(case: Case) -> None:
    """A function is gone when its program is gone; caches are cleared only if JAX itself keeps the function."""
    references = {label: _used(case, around=around) for label, around in _AROUND.items()}
    case.drain()
    # JAX keeps every function that it has mapped, with or without callbacks.
    alive = still_alive(references, jax.clear_caches if case.layout == "pmap" else lambda: None)
    case.same("leak", Stage.EXIT, alive, [], "functions of programs that are gone")


@case("jit", f"{EVERY_KIND} debug_callback_ordered", "H18")
@case("pjit shard_map", "call", "H18")
def many_are_forgotten(case: Case) -> None:
    """Jitted functions that are made, run and dropped, again and again: neither functions nor arrays add up."""
    references = {str(number): _used(case, np.zeros(LARGE, np.int8)) for number in range(MANY)}
    case.drain()
    case.same("leak", Stage.EXIT, still_alive(references), [], "functions of programs that are gone")


WARM_UP = 5
RUNS = 60
"""Fewer than the executions of which an implementation may keep those that have ended."""
MANY_RUNS = 600
"""Many more than those."""


@case("jit", "call pure_callback io_callback debug_callback", "H3 H18 X2 X3 X4")
def runs_leave_nothing(case: Case) -> None:
    """The objects of the process do not grow in number with the runs of a program, also before the next barrier."""

    def through(x: Any) -> Any:
        result = case.apply(add_one, x)
        # A callback without an effect comes last: the program has one all the same.
        pure = callback_named("pure_callback")
        return case.apply(add_one, result, by=pure) if case.callback.runs is Runs.ONCE else result

    program = case.compile(through)

    def run(times: int) -> int:
        for _ in range(times):
            jax.block_until_ready(program(case.operand))
        gc.collect()
        return len(gc.get_objects())

    run(WARM_UP)
    before = run(WARM_UP)
    grown = run(RUNS) - before
    case.check(grown < 2 * RUNS, "leak", Stage.EXIT, f"{RUNS} runs left {grown} objects")


@case("pmap shard_map", "id_tap call io_callback_ordered", "H3 H18 X3", minimum_devices=2)
def unawaited_runs_leave_nothing(case: Case) -> None:
    """As `runs_leave_nothing`, of programs on several devices that nobody waits for until the barrier."""
    program = case.compile(lambda x: case.apply(add_one, x))

    def run(times: int) -> int:
        for _ in range(times):
            program(case.operand)
        case.barrier()
        gc.collect()
        return len(gc.get_objects())

    # It may keep so many that have ended, and not more with more runs.
    before = run(RUNS)
    grown = run(MANY_RUNS) - before
    case.check(grown < MANY_RUNS, "leak", Stage.EXIT, f"{MANY_RUNS} runs left {grown} objects")
