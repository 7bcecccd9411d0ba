"""A function is called whatever its truth value is, and each for itself whatever its equality is (H18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import STAGES

import hostcb as hcb

X = jnp.float32(2)
SCALAR = jax.ShapeDtypeStruct((), np.float32)


class Recorder(list[float]):
    """A callable list. It is false while it is empty, and a function all the same."""

    def __call__(self, *args: Any) -> Any:
        self.append(float(np.asarray(args[0])))
        return np.asarray(args[0])


class Fills(Recorder):
    def __call__(self, context: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] = super().__call__(x)


class RecordsLent(Recorder):
    def __call__(self, x: Any) -> Any:
        return super().__call__(np.asarray(x))


FALSE: dict[str, tuple[type[Recorder], Callable[[Any, Any], Any]]] = {
    "tap": (Recorder, lambda function, x: hcb.id_tap(function, x)),
    "call": (Recorder, lambda function, x: hcb.call(function, x, result_shape=SCALAR)),
    "pure": (Recorder, lambda function, x: hcb.pure_callback(function, SCALAR, x)),
    "io": (Recorder, lambda function, x: hcb.io_callback(function, SCALAR, x)),
    "io ordered": (Recorder, lambda function, x: hcb.io_callback(function, SCALAR, x, ordered=True)),
    "debug": (Recorder, lambda function, x: hcb.debug.callback(function, x) or x),
    "debug ordered": (Recorder, lambda function, x: hcb.debug.callback(function, x, ordered=True) or x),
    "buffer": (Fills, lambda function, x: hcb.buffer_callback(function, SCALAR)(x)),
    "dlpack": (RecordsLent, lambda function, x: hcb.dlpack_callback(function, SCALAR)(x)),
}


@pytest.mark.contract("H1", "H3", "X2", "X3", "X4", "B1", "D1")
@STAGES
@pytest.mark.parametrize("kind", FALSE)
def test_a_function_that_is_false_is_called(kind: str, stage: Any) -> None:
    make, through = FALSE[kind]
    function = make()
    assert not function
    assert float(stage(lambda x: through(function, x))(X)) == 2
    hcb.barrier_wait()
    assert [*function] == [2.0]


class Adds:
    """It adds its number, and can neither be hashed nor compared with another one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        raise NotImplementedError("planted: hash")

    def __eq__(self, other: object) -> bool:
        raise NotImplementedError("planted: eq")

    def __call__(self, *args: Any, **_: Any) -> Any:
        return np.asarray(args[0]) + np.float32(self.number)


class AddsLikeArray(Adds):
    """All have one hash, and are compared as arrays are."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])


@pytest.mark.contract("H3", "H18", "X2", "X3", "D1")
@STAGES
@pytest.mark.parametrize("kind", ["call", "pure", "io", "dlpack"])
def test_functions_with_an_equality_of_their_own_are_called_each_for_itself(kind: str, stage: Any) -> None:
    functions = [make(number) for make in (Adds, AddsLikeArray) for number in (1, 2)]
    results = stage(lambda x: [FALSE[kind][1](function, x) for function in functions])(X)
    assert [float(each) for each in results] == [3, 4, 3, 4]
