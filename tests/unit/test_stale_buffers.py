"""Arrays over a runtime's buffers that live on: whose later buffers are mistaken for theirs, and what is said of it.

See `hostcb._lowering.rule._CpuDevices`: while an array of `np.asarray(buffer)` lives, JAX takes a later buffer that is
made at the same place of the stack for the old one. So callbacks are made at many depths of the stack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import hostcb as hcb
from hostcb._lowering.rule import _CpuDevices
from hostcb._lowering.views import _device_of

DEPTH = 12
SCALAR = jax.ShapeDtypeStruct((), np.float32)


def deeper(through_map: int, through_reduce: int, run: Callable[[], Any]) -> Any:
    """Run a function below so many frames of C functions, of two sizes."""
    if through_map:
        return next(map(lambda _: deeper(through_map - 1, through_reduce, run), [None]))  # noqa: C417 - its frame is the point
    if through_reduce:
        return functools.reduce(lambda *_: deeper(0, through_reduce - 1, run), [None, None])
    return run()


def at_all_depths(run: Callable[[], Any]) -> None:
    for through_map in range(DEPTH):
        for through_reduce in range(DEPTH):
            deeper(through_map, through_reduce, run)


def check_that_nobody_is_misled() -> None:
    def add(ctx: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] = np.asarray(x) + 1

    program = jax.jit(lambda x: hcb.buffer_callback(add, SCALAR)(x))
    copied = jax.jit(lambda x: hcb.pure_callback(lambda a: np.asarray(a + 1), SCALAR, x))
    values: list[float] = []
    at_all_depths(lambda: values.extend([float(program(3.0)), float(copied(3.0))]))
    assert {*values} == {4.0}, f"later callbacks gave {sorted({*values})}"


@pytest.mark.contract("D1")
def test_arrays_that_dlpack_callback_gave_may_be_kept() -> None:
    kept: list[np.ndarray] = []

    def keep(x: Any) -> Any:
        kept.append(np.asarray(x))
        return np.zeros((), np.float32)

    program = jax.jit(lambda x: hcb.dlpack_callback(keep, SCALAR)(x))
    at_all_depths(lambda: float(program(1.0)))
    assert len(kept) == DEPTH**2
    check_that_nobody_is_misled()


@pytest.mark.contract("B1")
@pytest.mark.parametrize("jitted", [True, False], ids=["jit", "eager"])
def test_failures_that_are_kept_mislead_nobody(jitted: bool) -> None:
    kept: list[Exception] = []

    def fail(ctx: Any, out: Any, x: Any) -> None:
        array = np.asarray(x)
        raise ValueError("planted", array.shape)

    call = hcb.buffer_callback(fail, SCALAR)
    program = jax.jit(lambda x: call(x)) if jitted else call

    def run() -> None:
        try:
            float(program(np.float32(1)))
        except Exception as error:
            kept.append(error)

    at_all_depths(run)
    assert len(kept) == DEPTH**2
    check_that_nobody_is_misled()
    with pytest.raises(hcb.CallbackException, match="planted"):
        hcb.barrier_wait()


class NotItsOwn:
    """A buffer as JAX hands it out for another one: what it says of itself is garbage."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 1_234_567)


def test_a_number_of_no_device_is_explained() -> None:
    devices = _CpuDevices()
    with pytest.raises(RuntimeError, match=r"np\.asarray\(buffer\)\.copy\(\)"):
        devices[1_234_567]
    assert devices[0] == jax.devices()[0]


def test_the_error_of_a_callback_that_was_misled_says_why() -> None:
    error = RuntimeError("Buffer.__array__ is only supported on CPU.")
    assert _device_of([NotItsOwn()], _CpuDevices(), error) is None
    (note,) = error.__notes__
    assert "a buffer that is not its own" in note
    assert "np.asarray(buffer).copy()" in note
