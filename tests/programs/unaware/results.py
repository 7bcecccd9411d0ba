"""What a function returns: other containers, other types, and what does not match."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from .running import attempt

X = jnp.arange(2.0)
PAIR = jax.ShapeDtypeStruct((2,), jnp.float32)
NUMBER = jax.ShapeDtypeStruct((), jnp.float32)
WHOLE = jax.ShapeDtypeStruct((), jnp.int32)


class Point(NamedTuple):
    x: Any
    y: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a", "b"], meta_fields=["tag"])
@dataclasses.dataclass
class Data:
    a: Any
    b: Any
    tag: str = "tag"


class OfAnotherLibrary:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.ones(2)


def twice(expected: Any, x: Any = X) -> Callable[[Callable[..., Any]], Callable[[], None]]:
    """A program that calls the function outside jit and in it, by each of JAX's callbacks with a result."""

    def of(function: Callable[..., Any]) -> Callable[[], None]:
        def program() -> None:
            ordered = functools.partial(io_callback, ordered=True)
            for call in (jax.pure_callback, io_callback, ordered):
                attempt(lambda x, call=call: call(function, expected, x), x)
                attempt(jax.jit(lambda x, call=call: call(function, expected, x)), x)

        return program

    return of


PROGRAMS = {
    "list_for_tuple": twice((PAIR, PAIR))(lambda x: [x, x + 1]),
    "list_of_one": twice(PAIR)(lambda x: [x]),
    "nested_for_flat": twice((PAIR, PAIR))(lambda x: [[x], [x + 1]]),
    "dict_for_tuple": twice((PAIR, PAIR))(lambda x: {"b": x, "a": x + 1}),
    "tuple_for_dict": twice({"b": PAIR, "a": PAIR})(lambda x: (x, x + 1)),
    "other_keys": twice({"b": PAIR, "a": PAIR})(lambda x: {"q": x, "z": x + 1}),
    "other_order": twice({"a": PAIR, "b": PAIR})(lambda x: {"b": x, "a": x + 1}),
    "ordered_dict": twice({"a": PAIR, "b": PAIR})(lambda x: collections.OrderedDict(b=x, a=x + 1)),
    "for_ordered_dict": twice(collections.OrderedDict(b=PAIR, a=PAIR))(lambda x: {"b": x, "a": x + 1}),
    "named_tuple": twice((PAIR, PAIR))(lambda x: Point(x, x + 1)),
    "for_named_tuple": twice(Point(PAIR, PAIR))(lambda x: (x, x + 1)),
    "dataclass": twice(Data(PAIR, PAIR))(lambda x: Data(x, x + 1, "other")),
    "for_dataclass": twice(Data(PAIR, PAIR))(lambda x: {"a": x, "b": x + 1}),
    "none_between": twice((PAIR, PAIR))(lambda x: (x, None, x + 1)),
    "none_expected": twice((PAIR, None, PAIR))(lambda x: (x, x + 1)),
    "nothing": twice(None)(lambda x: []),
    "nothing_for_empty": twice(())(lambda x: None),
    "value_for_none": twice(None)(lambda x: x),
    "value_for_empty": twice([])(lambda x: x),
    "none_for_value": twice(PAIR)(lambda x: None),
    "too_few": twice((PAIR, PAIR))(lambda x: x),
    "too_many": twice(PAIR)(lambda x: (x, x)),
    "wrong_shape": twice(PAIR)(lambda x: x[0]),
    "wrong_dtype": twice(PAIR)(lambda x: np.asarray(x, np.int32)),
    "half_precision": twice(PAIR)(lambda x: np.asarray(x, np.float16)),
    "double_precision": twice(PAIR)(lambda x: np.asarray(x, np.float64)),
    "list_of_numbers": twice(PAIR)(lambda x: [1.0, 2.0]),
    "numbers": twice((NUMBER, WHOLE))(lambda x: [1.5, 2]),
    "int_for_float": twice(NUMBER)(lambda x: 3),
    "bool_for_int": twice(WHOLE)(lambda x: True),
    "int_overflow": twice(WHOLE)(lambda x: 2**40 + 5),
    "huge_int": twice(WHOLE)(lambda x: 2**70),
    "int64_overflow": twice(jax.ShapeDtypeStruct((2,), jnp.int32))(lambda x: np.array([2**40, -(2**33) - 5])),
    "uint64_overflow": twice(jax.ShapeDtypeStruct((), jnp.uint32))(lambda x: np.uint64(2**40 + 3)),
    "int_for_int8": twice(jax.ShapeDtypeStruct((), jnp.int8))(lambda x: 3),
    "matrix": twice(jax.ShapeDtypeStruct((1, 2), jnp.float32))(lambda x: np.matrix([[1, 2]], np.float32)),
    "masked": twice(PAIR)(lambda x: np.ma.array(np.ones(2, np.float32), mask=[0, 1])),
    "strided": twice(PAIR)(lambda x: np.arange(6, dtype=np.float32)[::3]),
    "of_another_library": twice(PAIR)(lambda x: OfAnotherLibrary()),
    "text": twice(PAIR)(lambda x: "abc"),
    "objects": twice(PAIR)(lambda x: np.array([1, None], object)),
    "unknown_object": twice(PAIR)(lambda x: object()),
    "generator": twice(PAIR)(lambda x: (each for each in [x])),
    "of_jax": twice(PAIR)(jnp.sin),
    "bfloat16": twice(jax.ShapeDtypeStruct((2,), jnp.bfloat16), X.astype(jnp.bfloat16))(lambda x: x * 2),
    "int4": twice(jax.ShapeDtypeStruct((2,), jnp.int4), X.astype(jnp.int4))(lambda x: x),
    "no_elements": twice(jax.ShapeDtypeStruct((0, 3), jnp.float32))(lambda x: np.zeros((3, 0), np.float32)),
    "64_bits": twice(jax.ShapeDtypeStruct((2,), jnp.float64))(lambda x: x),
}
