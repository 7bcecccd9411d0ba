"""A host function lives no longer than the programs that call it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import still_alive
from ..harness.registry import EVERY_KIND


class _Function:
    """A function to which a weak reference shows that it is gone."""

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


def _used(case: Case, around: _Around) -> weakref.ref[Any]:
    """A function whose program has run and is gone."""
    function = _Function()
    program = case.compile(around(lambda x: case.apply(function, x)))
    np.asarray(program(case.operand))
    return weakref.ref(function)


@case("jit", f"{EVERY_KIND} buffer_callback_side_effect", "H18")
@case("pmap shard_map", "id_tap call io_callback", "H18")
def is_forgotten(case: Case) -> None:
    """A function is gone when its program is gone; caches are cleared only if JAX itself keeps the function."""
    references = {label: _used(case, around) for label, around in _AROUND.items()}
    case.drain()
    # JAX keeps every function that it has mapped, with or without callbacks.
    alive = still_alive(references, jax.clear_caches if case.layout == "pmap" else lambda: None)
    case.same("leak", Stage.EXIT, alive, [], "functions of programs that are gone")
