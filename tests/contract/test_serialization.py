"""H18: what leaves the process cannot have a host callback, and an error says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from jax.experimental import serialize_executable

import hostcb as hcb

pytestmark = pytest.mark.contract("H18")

X = np.arange(3.0, dtype=np.float32)
SHAPE = jax.ShapeDtypeStruct(X.shape, X.dtype)


def add_one(value: Any) -> Any:
    return value + np.float32(1)


def fill(context: Any, out: Any, value: Any) -> None:
    np.asarray(out)[...] = add_one(np.asarray(value))


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda x: hcb.id_tap(lambda value, transforms: None, x),
    "call": lambda x: hcb.call(add_one, x, result_shape=SHAPE),
    "pure_callback": lambda x: hcb.pure_callback(add_one, SHAPE, x),
    "ordered io_callback": lambda x: hcb.io_callback(add_one, SHAPE, x, ordered=True),
    "buffer_callback": lambda x: hcb.buffer_callback(fill, SHAPE)(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_executable_is_not_serialized(name: str) -> None:
    compiled = jax.jit(PROGRAMS[name]).lower(X).compile()
    with pytest.raises(TypeError, match=r"hostcb: .* serialized") as caught:
        serialize_executable.serialize(compiled)
    assert name.split()[-1] in str(caught.value)


def test_the_refusal_names_the_callbacks_in_the_programs_order() -> None:
    names = ["id_tap", "call", "pure_callback"]

    def program(x: Any) -> Any:
        for name in names:
            x = PROGRAMS[name](x)
        return x

    with pytest.raises(TypeError, match=r"id_tap.*, call.*, pure_callback"):
        serialize_executable.serialize(jax.jit(program).lower(X).compile())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_function_is_not_exported(name: str) -> None:
    with pytest.raises(NotImplementedError, match="callback"):
        export.export(jax.jit(PROGRAMS[name]))(X)
