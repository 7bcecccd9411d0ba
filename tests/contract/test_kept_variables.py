"""H13: what failures keep until a barrier is bounded, also in a program that catches its errors and has no barrier."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import hostcb as hcb
from hostcb._errors.failures import KEPT_FRAMES, failure_log
from hostcb._errors.forgetting import forget_locals

pytestmark = pytest.mark.contract("H13")

X = np.arange(8, dtype=np.float32)


class Big:
    """Stands for a large array."""


def raises(value: Any) -> Any:
    mine = Big()
    raises.made.append(weakref.ref(mine))  # type: ignore[attr-defined]
    fails()


def fails() -> None:
    raise ValueError("the reason")


def group(value: Any) -> Any:
    """The function that has the variable is not on the traceback of the group itself."""
    found = []
    for _ in range(2):
        try:
            raises(value)
        except ValueError as error:
            found.append(error)
    raise ExceptionGroup("both", found)


def made_elsewhere(value: Any) -> Exception:
    mine = Big()
    raises.made.append(weakref.ref(mine))  # type: ignore[attr-defined]
    return raised_elsewhere()


def raised_elsewhere() -> Exception:
    try:
        fails()
    except ValueError as error:
        return error
    raise AssertionError


def from_a_cause(value: Any) -> Any:
    raise ValueError("the last") from made_elsewhere(value)


def in_a_context(value: Any) -> Any:
    error = ValueError("the last")
    error.__context__ = made_elsewhere(value)
    raise error


@pytest.fixture(autouse=True)
def reported() -> Iterator[None]:
    raises.made = []  # type: ignore[attr-defined]
    yield
    failure_log.forget()


def alive(references: list[weakref.ref[Big]]) -> list[bool]:
    gc.collect()
    return [reference() is not None for reference in references]


def caught(program: Callable[[Any], Any]) -> weakref.ref[Big]:
    mine = Big()
    try:
        jax.block_until_ready(program(X))
    except (jax.errors.JaxRuntimeError, ValueError):
        return weakref.ref(mine)
    raise AssertionError("the call did not fail")


KINDS = {
    "call": lambda x: hcb.call(raises, x, result_shape=x),
    "pure": lambda x: hcb.pure_callback(raises, x, x),
    "io": lambda x: hcb.io_callback(raises, x, x, ordered=True),
}


@pytest.mark.parametrize("staged", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_of_the_callers_of_failed_callbacks_only_the_last_keeps_its_variables(kind: str, staged: Any) -> None:
    program = staged(lambda x: KINDS[kind](x))
    kept = [caught(program) for _ in range(4)]
    assert alive(kept)[:-1] == [False] * 3
    # Those of the functions themselves are kept for a debugger, as the error of the barrier has them.
    assert alive(raises.made) == [True] * 4  # type: ignore[attr-defined]
    with pytest.raises(hcb.CallbackException) as raised:
        hcb.barrier_wait()
    frames = [failure.exception.__traceback__.tb_frame for failure in raised.value.failures]
    assert all(isinstance(frame.f_locals["mine"], Big) for frame in frames)
    del raised, frames
    assert alive(raises.made) == [False] * 4, "reported failures keep nothing"  # type: ignore[attr-defined]


@pytest.mark.parametrize("function", [from_a_cause, in_a_context])
def test_what_called_the_maker_of_a_cause_keeps_no_variables_but_the_last(function: Any) -> None:
    program = jax.jit(lambda x: hcb.call(function, x, result_shape=x))
    for _ in range(4):
        caught(program)
    assert alive(raises.made)[:-1] == [False] * 3  # type: ignore[attr-defined]


def test_a_generator_between_does_not_keep_its_callers_variables() -> None:
    compiled = jax.jit(lambda x: hcb.call(raises, x, result_shape=x))

    def stepping(x: Any) -> Iterator[Any]:
        yield compiled(x)

    kept = [caught(lambda x: next(stepping(x))) for _ in range(4)]
    assert alive(kept)[:-1] == [False] * 3
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.parametrize("function", [raises, group])
def test_only_the_last_failed_functions_keep_theirs(function: Any) -> None:
    program = jax.jit(lambda x: hcb.call(function, x, result_shape=x))
    for _ in range(KEPT_FRAMES + 2):
        caught(program)
    each = 1 if function is raises else 2
    assert alive(raises.made) == [False] * 2 * each + [True] * KEPT_FRAMES * each  # type: ignore[attr-defined]


def test_a_generator_and_a_function_that_runs_go_on() -> None:
    def steps() -> Iterator[Any]:
        mine = Big()
        while True:
            try:
                fails()
            except ValueError as error:
                yield mine, error

    here, generator = Big(), steps()
    first, error = next(generator)
    forget_locals(error)
    second, _ = next(generator)
    assert first is second and isinstance(here, Big)


def test_a_deep_traceback_takes_a_time_that_grows_with_its_depth() -> None:
    """Not with the square of it: so many frames are looked at."""

    def deep(number: int) -> None:
        if number:
            deep(number - 1)
        raise ValueError

    def steps(depth: int) -> int:
        try:
            deep(depth)
        except ValueError as caught:
            error = caught
        count = 0

        def called(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += 1

        sys.setprofile(called)
        try:
            forget_locals(error)
        finally:
            sys.setprofile(None)
        return count

    assert steps(400) < 3 * steps(200)


def test_arrays_over_buffers_in_a_group_of_exceptions_are_gone_after_the_failure() -> None:
    arrays: list[weakref.ref[Any]] = []

    def read(buffer: Any) -> None:
        array = np.asarray(buffer)
        arrays.append(weakref.ref(array))
        raise KeyError

    def host(context: Any, out: Any, *parts: Any) -> None:
        errors = []
        for part in parts:
            try:
                read(part)
            except KeyError as error:
                errors.append(error)
        raise ExceptionGroup("both", errors)

    function = hcb.buffer_callback(host, jax.ShapeDtypeStruct(X.shape, X.dtype))
    program = jax.jit(lambda x: function(x, x + 1))
    for _ in range(3):
        caught(program)
    assert alive(arrays) == [False] * 6
