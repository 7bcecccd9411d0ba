"""Callbacks that run too few times or too many times."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import jax
import numpy as np

from .host_functions import around, surround
from .mutant import Library, Names, mutant

ONE_IN = 5


@mutant("id_tap/jit/* id_tap/scan/cpu-8dev id_tap/pmap/cpu-8dev debug_callback/jit/cpu-8dev", "lost at callback")
@around("id_tap", "debug.callback", having=lambda: itertools.count(1))
def dropped(numbers: Any, function: Any, *arguments: Any, **options: Any) -> None:
    """One callback in five never runs."""
    if next(numbers) % ONE_IN:
        function(*arguments, **options)


@mutant("id_tap/jit/* id_tap/scan/cpu-8dev id_tap/pmap/cpu-8dev debug_callback/jit/cpu-8dev", "duplicate at callback")
@around("id_tap", "debug.callback", having=lambda: itertools.count(1))
def duplicated(numbers: Any, function: Any, *arguments: Any, **options: Any) -> None:
    """One callback in five runs twice."""
    function(*arguments, **options)
    if not next(numbers) % ONE_IN:
        function(*arguments, **options)


@mutant("id_tap/case.equal_operands.* call/case.equal_operands.* io_*/case.equal_operands.*", "lost at callback")
@around("id_tap", "call", "io_callback", "debug.callback", having=dict)
def remembered(results: Any, function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
    """A function is not called again with an operand that it has been called with."""
    key = (function, *(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(operand)))
    if key not in results:
        results[key] = function(operand, *arguments, **options)
    return results[key]


@mutant(
    "io_callback/jit/cpu-8dev io_callback_ordered/scan/cpu-8dev io_callback/table.guaranteed/cpu-8dev",
    "duplicate at callback",
)
@around("io_callback")
def io_twice(function: Any, *arguments: Any) -> Any:
    """An io_callback's function is called twice."""
    function(*arguments)
    return function(*arguments)


@mutant("pure_callback/jit/cpu-8dev pure_callback/scan/cpu-8dev", "unexpected at callback")
def pure_when_unused(library: Library) -> Names:
    """A pure callback is called though nobody uses its result."""

    def pure_callback(function: Any, wanted: Any, *arguments: Any, vmap_method: Any = None, **options: Any) -> Any:
        return library.io_callback(function, wanted, *arguments, **options)

    return {"pure_callback": pure_callback}


@mutant("io_callback/grad.scan.detached/cpu-8dev io_callback/grad.fori.detached/cpu-8dev", "lost at callback")
@mutant(
    "io_callback*/case.called_with_tangents.*",
    "accepted at trace",
    name="dropped_in_rule",
    fault="A callback on a tangent is dropped by grad, which should refuse it.",
)
def lost_in_differentiated_loop(_: Library) -> Names:
    """A callback in a scan or fori_loop whose result is not used is lost under grad."""
    # JAX loses its own callback in this case only.
    return {"io_callback": jax.experimental.io_callback}


@mutant("id_tap/grad.remat/cpu-8dev id_tap/jit.grad.remat/cpu-8dev", "lost at callback")
def not_recomputed(library: Library) -> Names:
    """What a checkpoint runs a second time does not call back."""
    seen: set[Any] = set()
    lock = threading.Lock()

    def run(function: Any, operand: Any, *arguments: Any, **options: Any) -> None:
        # All other callbacks of the suite's programs have different operands.
        key = (function, np.asarray(operand).tobytes())
        with lock:
            known = key in seen
            seen.add(key)
        if not known:
            function(operand, *arguments, **options)

    def barrier_wait() -> None:
        library.barrier_wait()
        seen.clear()

    return {**surround(library, run, "id_tap"), "barrier_wait": barrier_wait}


@mutant("id_tap/while_cond/cpu-8dev id_tap/vmap.while_cond/cpu-8dev", "lost at callback")
def lost_in_condition(library: Library) -> Names:
    """Callbacks in a loop's condition do not run."""
    conditions: list[None] = []
    while_loop = jax.lax.while_loop

    def watching(unfinished: Any, body: Any, start: Any) -> Any:
        def condition(state: Any) -> Any:
            conditions.append(None)
            try:
                return unfinished(state)
            finally:
                conditions.pop()

        return while_loop(condition, body, start)

    # This process runs only cells of this mutant.
    watched: Any = watching
    jax.lax.while_loop = watched

    def id_tap(function: Any, operand: Any, **options: Any) -> Any:
        return operand if conditions else library.id_tap(function, operand, **options)

    return {"id_tap": id_tap}


@mutant(
    "io_callback*/case.scan_without_operands.* debug_callback*/case.scan_without_operands.* "
    "io_callback*/case.beside_derivatives.*",
    "wrong count at callback",
)
def out_of_the_loop(_: Library) -> Names:
    """A callback without operands runs once before a differentiated loop, and not in its steps."""
    # JAX moves its own callbacks out of a differentiated loop.
    return {"io_callback": jax.experimental.io_callback, "debug.callback": jax.debug.callback}
