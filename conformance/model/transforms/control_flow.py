"""scan, while_loop, fori_loop, cond.

Bodies and branches close over no operand and are made once per program. So JAX compiles a loop once
for all runs of an eager program, and not again for every run. A sum that begins with the operand needs no zero, which
would be a kernel more to compile.
"""

from __future__ import annotations

from dataclasses import replace

from ..values import Value, select
from ..worlds import ModelFunction, World
from .base import Place, Transform, offsets_source

_ODD = "jax.lax.rem(jax.lax.stop_gradient(x).ravel()[0], np.float32(2))"
"""1 or 0 from the first element, so that a predicate depends on the data, and so on the batch element."""


def _while_loop(name: str, unfinished: str, body: str) -> str:
    """A loop of one or two steps; the operand decides."""
    # Inside shard_map the start of a carry must vary over the mesh as x does, and a zero does not.
    return f"""\
def {name}(x):
    limit = {_ODD} + 1
    return jax.lax.while_loop({unfinished}, {body}, (limit - limit, limit, x, x))[2]"""


class _Steps(Transform):
    """The operand and the function of a fixed number of operands with offsets, added up."""

    promises = ("H4", "H5")
    radix = 3
    steps: int

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        total = x
        for step in range(self.steps):
            total = total + function(world.in_program(), x + step * stride)
        return total


class Scan(_Steps):
    name = "scan"
    steps = 2

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
def {place.helper}(state, offset):
    total, x = state
    return (total + {function}(x + offset), x), None

def {place.name}(x):
    (total, _), _ = jax.lax.scan({place.helper}, (x, x), jnp.asarray({offsets_source(range(self.steps), stride)}))
    return total"""


class ForiLoop(_Steps):
    name = "fori"
    steps = 3

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
def {place.helper}(step, state):
    total, x = state
    return total + {function}(x + jnp.float32(step) * {int(stride)}), x

def {place.name}(x):
    return jax.lax.fori_loop(0, {self.steps}, {place.helper}, (x, x))[0]"""


class WhileBody(Transform):
    """A loop whose body runs the function; its length depends on the data."""

    name = "while_body"
    promises = ("H4", "H5", "H7")
    radix = 5

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        limit = x.first().remainder(2) + 1.0
        world = world.in_program(batched_predicate=bool(limit.levels))
        step, total = limit - limit, x
        while (unfinished := step.less(limit)).data.any():
            # With a batched predicate the body runs for every batch element. A finished one keeps its state, and its
            # callbacks still see that state.
            new_total = total + function(world, x + step * stride)
            total = select(unfinished, new_total, total)
            step = select(unfinished, step + 1.0, step)
        return total

    def source(self, function: str, place: Place, stride: float) -> str:
        unfinished, body = f"{place.name}_unfinished", place.helper
        functions = f"""\
def {unfinished}(state):
    return state[0] < state[1]

def {body}(state):
    step, limit, total, x = state
    total = total + {function}(x + step * {int(stride)})
    return step + 1, limit, total, x

"""
        return functions + _while_loop(place.name, unfinished, body)


class WhileCond(Transform):
    """A loop whose condition runs the function, once more than the body runs."""

    name = "while_cond"
    promises = ("H4", "H5", "H7")
    radix = 5

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        limit = x.first().remainder(2) + 1.0
        world = world.in_program(batched_predicate=bool(limit.levels))
        condition = replace(world, batched_condition=world.batched_condition or bool(limit.levels))
        step, total = limit - limit, x
        while True:
            # A predicate has no derivative: the condition sees primal values only. Without jit it is no part of a loop.
            function(condition, (x if world.jit_disabled else x.primal()) + step * stride)
            unfinished = step.less(limit)
            if not unfinished.data.any():
                return total
            total = select(unfinished, total + x * 2.0, total)
            step = select(unfinished, step + 1.0, step)

    def source(self, function: str, place: Place, stride: float) -> str:
        unfinished, body = place.helper, f"{place.name}_body"
        # All results are positive, so the function never changes the predicate. The compiler cannot know this, and
        # keeps the function.
        functions = f"""\
def {unfinished}(state):
    step, limit, _, x = state
    result = {function}(x + step * {int(stride)})
    return (step < limit) & (result.ravel()[0] > 0)

def {body}(state):
    step, limit, total, x = state
    return step + 1, limit, total + x * 2, x

"""
        return functions + _while_loop(place.name, unfinished, body)


class Cond(Transform):
    """Both branches run the function, on different values."""

    name = "cond"
    promises = ("H4", "H5", "H7")
    radix = 3

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        odd = x.first().remainder(2)
        if not odd.levels:
            return function(world.in_program(), x if odd.data else x + 2 * stride)
        # A batched predicate turns the cond into a select of both branches, false first.
        world = replace(world, batched_predicate=True)
        when_false = function(world, x + 2 * stride)
        return select(odd, function(world, x), when_false)

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
def {place.helper}(x):
    return {function}(x + {2 * int(stride)})

def {place.name}(x):
    return jax.lax.cond({_ODD} > 0, {function}, {place.helper}, x)"""
