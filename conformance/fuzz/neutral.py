"""Neutral marks in place of callbacks, of transformations and of collectives, and the trace of a program with them.

The oracle must not depend on what it judges. So it traces the program with primitives of its own, which have no rules
for batching, differentiation or lowering: nothing but control flow, `jit` and `checkpoint` is JAX's in its jaxpr.
"""

from __future__ import annotations

import functools
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


def _lanes_types(*operands: Any, jaxpr: Any, batched: Any, axis: int) -> list[Any]:
    return [one.update(shape=(WIDTH, *one.shape)) for one in jaxpr.out_avals]


def _derivative_types(where: Any, operand: Any, *others: Any, jaxpr: Any) -> list[Any]:
    return [*jaxpr.out_avals, operand]


def _forward_types(*operands: Any, jaxpr: Any) -> list[Any]:
    return [*jaxpr.out_avals, *jaxpr.out_avals]


def _custom_types(where: Any, operand: Any, **params: Any) -> list[Any]:
    return list(params["jaxpr"].out_avals)


callback_p = _primitive("mark_callback", _callback_types)
lanes_p = _primitive("mark_vmap", _lanes_types)
derivative_p = _primitive("mark_grad", _derivative_types)
forward_p = _primitive("mark_jvp", _forward_types)
custom_p = _primitive("mark_custom", _custom_types)
collective_p = _primitive("mark_collective", lambda operand, **params: [operand])


def _callback(kind: str) -> Callable[..., Any]:
    def mark(label: int, where: Any, tree: Any, vmap_method: str = "sequential") -> Any:
        return callback_p.bind(where, *jax.tree.leaves(tree), kind=kind, label=label, vmap_method=vmap_method)[0]

    return mark


class _Depth:
    """The number of vmaps around what is being traced."""

    def __init__(self) -> None:
        self.now = 0

    def traced(self, depth: int, function: Any, *operands: Any) -> Any:
        outside, self.now = self.now, depth
        try:
            return jax.make_jaxpr(function)(*operands)
        finally:
            self.now = outside

    def vmap(self, function: Any, axes: tuple[Any, ...]) -> Any:
        def mapped(*operands: Any) -> Any:
            batched, axis = tuple(one is not None for one in axes), self.now
            lanes = [one[0] if each else one for one, each in zip(operands, batched, strict=True)]
            jaxpr = self.traced(axis + 1, function, *lanes)
            return tuple(lanes_p.bind(*operands, jaxpr=jaxpr, batched=batched, axis=axis))

        return mapped


def _value_and_grad(function: Any, place: int) -> Any:
    assert place == 1
    return lambda *operands: tuple(derivative_p.bind(*operands, jaxpr=jax.make_jaxpr(function)(*operands)))


def _value_and_jvp(function: Any) -> Any:
    return lambda *operands: tuple(forward_p.bind(*operands, jaxpr=jax.make_jaxpr(function)(*operands[:-1])))


class _Custom:
    """A function with a rule of derivatives. Each is called at one place of the program, and by its own rule."""

    kind = ""

    def __init__(self, depth: _Depth, function: Any) -> None:
        self.depth = depth
        self.function = function
        self.rule: Any = None

    def __call__(self, where: Any, operand: Any) -> Any:
        self.place, self.type = self.depth.now, jax.typeof(operand)
        jaxpr = jax.make_jaxpr(self.function)(where, operand)
        return custom_p.bind(where, operand, jaxpr=jaxpr, custom=self)[0]

    @functools.cached_property
    def traced_rule(self) -> Any:
        """Traced when a derivative comes to it: the rule calls the function again, for the derivatives further out."""
        slope = jax.ShapeDtypeStruct(self.type.shape, self.type.dtype)
        return self.depth.traced(self.place, self.ruled, jax.ShapeDtypeStruct((), jnp.int32), slope, slope)

    def ruled(self, where: Any, operand: Any, slope: Any) -> Any:
        raise NotImplementedError


class CustomJvp(_Custom):
    kind = "custom_jvp"

    def defjvp(self, rule: Any) -> Any:
        self.rule = rule
        return rule

    def ruled(self, where: Any, operand: Any, slope: Any) -> Any:
        return self.rule((where, operand), (None, slope))


class CustomVjp(_Custom):
    kind = "custom_vjp"

    def defvjp(self, forward: Any, backward: Any) -> None:
        self.rule = backward

    def ruled(self, where: Any, operand: Any, slope: Any) -> Any:
        # The forward function of these programs is the function itself, and keeps its operands.
        return self.rule((where, operand), slope)[1]


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
    depth = _Depth()
    names: dict[str, Any] = {
        **COMMON,
        **{kind: _callback(kind) for kind in kinds},
        "vmap": depth.vmap,
        "value_and_grad": _value_and_grad,
        "value_and_jvp": _value_and_jvp,
        "custom_jvp": functools.partial(CustomJvp, depth),
        "custom_vjp": functools.partial(CustomVjp, depth),
        **{name: _collective(name) for name in ("psum", "all_gather", "ppermute")},
    }
    exec(compile(function_of(program), "<program>", "exec"), names)
    types = {"f": jnp.float32(0), "v": jnp.zeros(WIDTH, jnp.float32), "i": jnp.int32(0)}
    operands = [jnp.int32(0), *(types[one.name[0]] for one in program.inputs)]
    return jax.make_jaxpr(names["program"])(*operands)
