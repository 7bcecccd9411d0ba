"""H4, H27: under `jax_debug_nans` and `jax_debug_infs` JAX's error names the callback that returned the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from support.pairwise import in_turns

import hostcb as hcb

pytestmark = pytest.mark.contract("H4", "H27")

SHAPE = jax.ShapeDtypeStruct((3,), np.float32)
X = np.ones(3, np.float32)


def returning(value: float) -> Callable[..., Any]:
    return lambda *_: np.full(3, value, np.float32)


def filling(value: float) -> Callable[..., None]:
    def fill(context: Any, out: Any, *_: Any) -> None:
        np.asarray(out)[...] = value

    return fill


KINDS: dict[str, Callable[[float, Any], Any]] = {
    "call": lambda value, x: hcb.call(returning(value), x, result_shape=SHAPE),
    "pure_callback": lambda value, x: hcb.pure_callback(returning(value), SHAPE, x),
    "io_callback": lambda value, x: hcb.io_callback(returning(value), SHAPE, x, ordered=True),
    "buffer_callback": lambda value, x: hcb.buffer_callback(filling(value), SHAPE)(x),
    "dlpack_callback": lambda value, x: hcb.dlpack_callback(returning(value), SHAPE)(x),
}
JAXS: dict[str, Callable[[float, Any], Any]] = {
    "pure_callback": lambda value, x: jax.pure_callback(returning(value), SHAPE, x),
    "io_callback": lambda value, x: io_callback(returning(value), SHAPE, x, ordered=True),
    "buffer_callback": lambda value, x: buffer_callback(filling(value), SHAPE)(x),
}


def outside_jit(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(jax.device_put(x, jax.devices()[0]))


def in_two_jits(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.jit(lambda x: 2 * jax.jit(function)(x))


STAGES = [jax.jit, in_two_jits, lambda function: function, outside_jit]
OPTIONS = pytest.mark.parametrize(("option", "word"), [(jax.debug_nans, "nan"), (jax.debug_infs, "inf")])


def check(program: Callable[[Any], Any], kind: str, option: Any, word: str) -> None:
    with option(True):
        for _ in range(2):
            with pytest.raises(FloatingPointError) as caught:
                jax.block_until_ready(program(X))
            assert str(caught.value).splitlines()[0] == f"invalid value ({word}) encountered in {kind}"
    jax.block_until_ready(program(X))


@OPTIONS
@in_turns(("kind", "stage"), KINDS, STAGES, times=3)
def test_the_error_names_the_callback(kind: str, stage: Any, option: Any, word: str) -> None:
    check(stage(lambda x: KINDS[kind](float(word), x)), kind, option, word)


@OPTIONS
@in_turns(("kind", "stage"), JAXS, STAGES, times=3)
def test_it_has_the_name_of_jaxs(kind: str, stage: Any, option: Any, word: str) -> None:
    with hcb.installed():
        check(stage(lambda x: JAXS[kind](float(word), x)), kind, option, word)


@pytest.mark.contract("H1", "H3", "X3", "X4")
@pytest.mark.parametrize("value", [float("nan"), np.float32("nan")], ids=["number", "array"])
@pytest.mark.parametrize("kind", ["tap", "call", "io", "debug"])
def test_a_nan_may_be_an_operand(kind: str, value: Any) -> None:
    seen: list[bool] = []

    def function(arg: Any, transforms: Any = None) -> Any:
        seen.append(bool(np.isnan(arg)))
        return np.float32(1)

    callback = {
        "tap": lambda: hcb.id_tap(function, value, result=np.float32(1)),
        "call": lambda: hcb.call(function, value, result_shape=np.float32(1)),
        "io": lambda: hcb.io_callback(function, np.float32(1), value),
        "debug": lambda: hcb.debug.callback(function, value),
    }[kind]
    with jax.debug_nans(True):
        for run in (callback, jax.jit(lambda: (callback(), np.float32(1))[1])):
            jax.block_until_ready(run())
            hcb.barrier_wait()
    assert seen == [True, True]


@pytest.mark.contract("H15", "X2")
@pytest.mark.parametrize("kind", ["call", "pure_callback"])
def test_it_works_after_calls_that_failed(kind: str) -> None:
    def function(arg: Any) -> Any:
        if arg < 0:
            raise OSError
        return arg

    call = {
        "call": lambda x: hcb.call(function, x, result_shape=x),
        "pure_callback": lambda x: hcb.pure_callback(function, x, x),
    }[kind]
    program, logarithm = jax.jit(call), jax.jit(lambda x: jnp.log(x) * 2)
    for number in (1, 2, -1, 1, -1, 1):
        if number < 0:
            with pytest.raises(jax.errors.JaxRuntimeError):
                jax.block_until_ready(program(np.float32(number)))
        else:
            assert program(np.float32(number)) == number
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    with jax.debug_nans(True):
        assert logarithm(np.float32(1)) == 0
        with pytest.raises(FloatingPointError):
            logarithm(np.float32(-1))
