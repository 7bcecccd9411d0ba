"""Fault cells of wrong arguments of in-place callbacks: each is refused while the program is traced, with words."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.registry import planted
from .refusals import ONE, Refused, nothing, refusals
from .traces import library


def _with_ref(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        ref = jax.new_ref(jnp.zeros(3))
        return function(ref)

    return program


def _in_a_tree(function: Callable[..., Any], ref: Any) -> Any:
    return function(1.0, {"a": [ref]})


def _by_name(function: Callable[..., Any], ref: Any) -> Any:
    return function(1.0, state=ref)


def _as_int4(function: Callable[..., Any], x: Any) -> Any:
    return function(x.astype(jnp.int4))


def _derived(function: Callable[..., Any], x: Any) -> Any:
    return jax.grad(lambda y: function(y).sum())(x)


def _by_another_method(function: Callable[..., Any], x: Any) -> Any:
    return function(nothing, ONE, vmap_method="vectorized")(x)


def _aliased(bench: Bench, wanted: Any, aliases: Any, operands: int = 1) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        return library(bench).buffer_callback(nothing, wanted, input_output_aliases=aliases)(*[x] * operands)

    return program


@planted("jit", "dlpack_callback", "B2 B3")
def wrong_arguments_of_buffers(bench: Bench, callback: Callback) -> list[Anomaly]:
    """B2, B3: mutable arrays, types of less than a byte, and aliases that do not fit."""
    cases: dict[str, tuple[Callable[[Any], Any], Refused]] = {}
    for name in ("buffer_callback", "dlpack_callback"):
        function = getattr(library(bench), name)(nothing, ONE)
        cases |= {
            f"a mutable array of {name}": (_with_ref(function), (TypeError, "[...]")),
            f"a mutable array in a tree of {name}": (
                _with_ref(functools.partial(_in_a_tree, function)),
                (TypeError, ""),
            ),
            f"a mutable array by name of {name}": (
                _with_ref(functools.partial(_by_name, function)),
                (TypeError, "[...]"),
            ),
            f"an int4 of {name}": (functools.partial(_as_int4, function), (TypeError, "int4")),
            f"the derivative of {name}": (functools.partial(_derived, function), (ValueError, "custom_jvp")),
            f"an unknown vmap_method of {name}": (
                functools.partial(_by_another_method, getattr(library(bench), name)),
                (ValueError, "vmap_method"),
            ),
        }
    for what, aliases, word in (
        ("an operand that is not there", {1: 0}, "1"),
        ("a result that is not there", {0: 1}, "1"),
        ("a negative operand", {-1: 0}, "-1"),
    ):
        cases[f"an alias of {what}"] = (_aliased(bench, ONE, aliases), (ValueError, word))
    for what, shape, dtype in (("shape", (4,), np.float32), ("type", (3,), np.int32)):
        wanted = jax.ShapeDtypeStruct(shape, dtype)
        cases[f"an alias of another {what}"] = (_aliased(bench, wanted, {0: 0}), (ValueError, "input_output_aliases"))
    of_other_types: dict[str, Any] = {
        "a list": [(0, 0)],
        "a text for an operand": {"x": 0},
        "half an operand": {0.5: 0},
    }
    for what, aliases in of_other_types.items():
        cases[f"aliases by {what}"] = (_aliased(bench, ONE, aliases), (TypeError, "input_output_aliases"))
    aliased = library(bench).buffer_callback(nothing, ONE, input_output_aliases={0: 0})
    without_value = np.zeros(3, jax.dtypes.float0)
    cases["an alias of an operand without a value"] = (lambda x: aliased(without_value), (ValueError, "float0"))
    words = jax.ShapeDtypeStruct((2,), np.uint32)
    of_key = library(bench).buffer_callback(nothing, words, input_output_aliases={0: 0})
    cases["an alias of a typed key and of its words"] = (lambda x: of_key(jax.random.key(0)), (ValueError, "key"))
    both = _aliased(bench, (ONE, ONE), {0: 0, 1: 1, 2: 0}, 3)
    cases["two operands of one result, with another between them"] = (both, (ValueError, "input_output_aliases"))
    for first in (0, 1):
        twice = _aliased(bench, ONE, {first: 0, first + 1: 0}, 3)
        cases[f"the operands {first} and {first + 1} of one result"] = (twice, (ValueError, "input_output_aliases"))
    return refusals(bench, cases)
