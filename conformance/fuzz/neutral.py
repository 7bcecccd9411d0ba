"""Neutral marks in place of callbacks, of transformations and of collectives, and the trace of a program with them.

The oracle must not depend on what it judges. So it traces the program with primitives of its own, which have no rules
for batching, differentiation or lowering: nothing but control flow, `jit` and `checkpoint` is JAX's in its jaxpr.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import effects
from jax.extend.core import Primitive

from .description import WIDTH, Program
from .source import function_of


class MarkEffect(effects.Effect):
    """Keeps marks whose results are not used in the trace."""


effects.control_flow_allowed_effects.add_type(MarkEffect)
effects.remat_allowed_effects.add_type(MarkEffect)
_EFFECT = MarkEffect()


def _primitive(name: str, types: Callable[..., Any]) -> Primitive:
    made = Primitive(name)
    made.multiple_results = True
    made.def_effectful_abstract_eval(lambda *operands, **params: (types(*operands, **params), {_EFFECT}))
    return made


def _callback_types(_: Any, first: Any, *others: Any, **params: Any) -> list[Any]:
    return [first]


def _lanes_types(*operands: Any, jaxpr: Any, batched: Any) -> list[Any]:
    return [one.update(shape=(WIDTH, *one.shape)) for one in jaxpr.out_avals]


def _derivative_types(where: Any, operand: Any, *others: Any, jaxpr: Any) -> list[Any]:
    return [*jaxpr.out_avals, operand]


def _custom_types(where: Any, operand: Any, **params: Any) -> list[Any]:
    return list(params["jaxpr"].out_avals)


callback_p = _primitive("mark_callback", _callback_types)
lanes_p = _primitive("mark_vmap", _lanes_types)
derivative_p = _primitive("mark_grad", _derivative_types)
custom_p = _primitive("mark_custom", _custom_types)
collective_p = _primitive("mark_collective", lambda operand, **params: [operand])


def _callback(kind: str) -> Callable[..., Any]:
    def mark(label: int, where: Any, tree: Any, vmap_method: str = "sequential") -> Any:
        return callback_p.bind(where, *jax.tree.leaves(tree), kind=kind, label=label, vmap_method=vmap_method)[0]

    return mark


def _vmap(function: Any, axes: tuple[Any, ...]) -> Any:
    def mapped(*operands: Any) -> Any:
        batched = tuple(axis is not None for axis in axes)
        lanes = [one[0] if each else one for one, each in zip(operands, batched, strict=True)]
        jaxpr = jax.make_jaxpr(function)(*lanes)
        return tuple(lanes_p.bind(*operands, jaxpr=jaxpr, batched=batched))

    return mapped


def _value_and_grad(function: Any, place: int) -> Any:
    assert place == 1
    return lambda *operands: tuple(derivative_p.bind(*operands, jaxpr=jax.make_jaxpr(function)(*operands)))


class _Custom:
    def __init__(self, function: Any) -> None:
        self.function = function
        self.rule: Any = None
        self.in_rule = False

    def __call__(self, where: Any, operand: Any) -> Any:
        if self.in_rule:
            # What a rule calls is not differentiated.
            return self.function(where, operand)
        jaxpr = jax.make_jaxpr(self.function)(where, operand)
        return custom_p.bind(
            where, operand, jaxpr=jaxpr, rule=self.traced_rule(where, operand), kind=type(self).__name__
        )[0]

    def traced_rule(self, where: Any, operand: Any) -> Any:
        self.in_rule = True
        try:
            return self.ruled(where, operand)
        finally:
            self.in_rule = False

    def ruled(self, where: Any, operand: Any) -> Any:
        raise NotImplementedError


class CustomJvp(_Custom):
    def defjvp(self, rule: Any) -> Any:
        self.rule = rule
        return rule

    def ruled(self, where: Any, operand: Any) -> Any:
        return jax.make_jaxpr(lambda w, x, t: self.rule((w, x), (None, t)))(where, operand, operand)


class CustomVjp(_Custom):
    def defvjp(self, forward: Any, backward: Any) -> None:
        self.rule = backward

    def ruled(self, where: Any, operand: Any) -> Any:
        # The forward function of these programs is the function itself, and keeps its operands.
        return jax.make_jaxpr(lambda w, x, slope: self.rule((w, x), slope)[1])(where, operand, operand)


def _collective(operation: str) -> Callable[[Any], Any]:
    return lambda operand: collective_p.bind(operand, operation=operation)[0]


COMMON = {
    "lax": lax,
    "jnp": jnp,
    "int32": jnp.int32,
    "float32": jnp.float32,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
}
"""The names of a program's text that are JAX's in every form of it."""


def traced(program: Program, kinds: tuple[str, ...]) -> Any:
    """The closed jaxpr of a program's function with marks."""
    names: dict[str, Any] = {
        **COMMON,
        **{kind: _callback(kind) for kind in kinds},
        "vmap": _vmap,
        "value_and_grad": _value_and_grad,
        "custom_jvp": CustomJvp,
        "custom_vjp": CustomVjp,
        **{name: _collective(name) for name in ("psum", "all_gather", "ppermute")},
    }
    exec(compile(function_of(program), "<program>", "exec"), names)
    types = {"f": jnp.float32(0), "v": jnp.zeros(WIDTH, jnp.float32), "i": jnp.int32(0)}
    operands = [jnp.int32(0), *(types[one.name[0]] for one in program.inputs)]
    return jax.make_jaxpr(names["program"])(*operands)
