"""X2, H15: no failure under JAX's fast dispatch is lost, whatever stands around the handler and the dispatch."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from support.helpers import DEADLINE

import hostcb as hcb
from hostcb._lowering import views

pytestmark = pytest.mark.contract("X2")

SCALAR = jax.ShapeDtypeStruct((), np.float32)
KINDS = ["pure", "buffer", "dlpack"]
BAD = 13.0


def checked(x: Any) -> Any:
    if float(x) == BAD:
        raise ValueError(f"failed on {float(x)}")
    return x


def step(kind: str, function: Callable[[Any], Any] = checked) -> Callable[[Any], Any]:
    """A callback without effects that applies `function`."""

    def fill(_: Any, out: Any, value: Any) -> None:
        np.asarray(out)[...] = function(np.asarray(value))

    return {
        "pure": lambda x: hcb.pure_callback(function, SCALAR, x),
        "buffer": hcb.buffer_callback(fill, SCALAR),
        "dlpack": hcb.dlpack_callback(lambda value: function(np.from_dlpack(value)), SCALAR),
    }[kind]


def warm(kind: str = "pure", function: Callable[[Any], Any] = checked) -> Any:
    """A program of one such callback that JAX's fast dispatch runs from now on."""
    program = jax.jit(step(kind, function))
    for value in (1.0, 2.0):
        assert float(program(value)) == value
    return program


def one_by_one(run: Callable[[float], Any], *values: float) -> list[Any]:
    ends: list[Any] = []
    for value in values:
        try:
            ends.append(float(run(value)))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            ends.append(root_cause(error))
    return ends


def outcomes(run: Callable[[float], Any], *values: float) -> list[Any]:
    """What `run` returns for each value, or the cause of the error with which it ends. All from one line."""
    ends = one_by_one(run, *values)
    if any(isinstance(end, str) for end in ends):
        with pytest.raises(hcb.CallbackException):
            hcb.barrier_wait()
    return ends


def root_cause(error: BaseException) -> str:
    while isinstance(error, jax.errors.JaxRuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return str(error)


VALUES, ENDS = (BAD, 3.0, BAD, BAD, 4.0, 5.0), ["failed on 13.0", 3.0, "failed on 13.0", "failed on 13.0", 4.0, 5.0]


def one_function(handler: Any) -> Any:
    def wrapped(*arguments: Any) -> Any:
        return handler(*arguments)

    return wrapped


def three_functions(handler: Any) -> Any:
    return one_function(one_function(one_function(handler)))


def partial(handler: Any) -> Any:
    return functools.partial(handler)


def partial_of_a_function(handler: Any) -> Any:
    return functools.partial(one_function(handler))


def an_object(handler: Any) -> Any:
    class Wrapped:
        def __call__(self, *arguments: Any) -> Any:
            return handler(*arguments)

    return Wrapped()


def under_debug_nans(handler: Any) -> Any:
    def wrapped(*arguments: Any) -> Any:
        with jax.debug_nans(True):
            return handler(*arguments)

    return wrapped


WRAPPERS = [one_function, three_functions, partial, partial_of_a_function, an_object, under_debug_nans]


def wrapping(maker: Callable[..., Any], wrap: Callable[[Any], Any]) -> Callable[..., Any]:
    """`maker`, with what it makes, or is given as a handler, wrapped."""
    if maker is views.custom_call:
        return lambda context, target, handler, *others, **named: maker(
            context, target, wrap(handler), *others, **named
        )
    return lambda *arguments: wrap(maker(*arguments))


@pytest.fixture(params=["made", "given", "unseen"])
def plant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], None]:
    """Wrap all handlers: where they are made, where JAX is given them, or so that it cannot be seen."""

    def plant(wrap: Callable[[Any], Any]) -> None:
        if request.param == "unseen":
            monkeypatch.setattr("hostcb._lowering.rule.is_handler", lambda _: True)
        names = ["custom_call"] if request.param == "given" else ["_filling", "_in_any_order"]
        for name in names:
            monkeypatch.setattr(views, name, wrapping(getattr(views, name), wrap))

    return plant


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda wrap: wrap.__name__)
def test_a_wrapped_handler(kind: str, wrap: Callable[[Any], Any], plant: Any) -> None:
    plant(wrap)
    assert outcomes(warm(kind), *VALUES) == ENDS


@pytest.mark.parametrize("wrapped", [(True, True), (True, False), (False, True)], ids=str)
def test_no_wrapped_callback_sees_what_a_failed_one_left(
    wrapped: tuple[bool, bool], plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo, seen = [*wrapped], []
    plant(lambda handler: one_function(handler) if todo.pop(0) else handler)

    def second(y: Any) -> Any:
        seen.append(float(y))
        return y

    chained = jax.jit(lambda x: step("pure", second)(step("pure")(x)))
    assert outcomes(chained, 1.0, *VALUES) == [1.0, *ENDS]
    assert seen == [1.0, 3.0, 4.0, 5.0]


def deep(run: Callable[[], Any], depth: int) -> Any:
    return run() if not depth else deep(run, depth - 1)


def generated(run: Callable[[float], Any], value: float) -> Iterator[Any]:
    yield run(value)


SURROUNDINGS: dict[str, Callable[[Callable[[float], Any], float], Any]] = {
    "generator": lambda run, value: next(generated(run, value)),
    "map": lambda run, value: next(map(run, [value])),
    "reduce": lambda run, value: functools.reduce(lambda _, each: run(each), [value, value]),
    "partial": lambda run, value: functools.partial(run)(value),
    "key": lambda run, value: run(max([value], key=run)),
    "depth_1": lambda run, value: deep(lambda: run(value), 1),
    "depth_200": lambda run, value: deep(lambda: run(value), 200),
    "compiled": lambda run, value: run.lower(value).compile()(value),
    "jit": lambda run, value: jax.jit(run)(value),
    "exec": lambda run, value: eval("run(value)", {"run": run, "value": value}),
    "other_thread": lambda run, value: in_thread(lambda: run(value)),
}


def in_thread(run: Callable[[], Any]) -> Any:
    ends: list[Any] = []

    def end() -> None:
        try:
            ends.append(run())
        except jax.errors.JaxRuntimeError as error:
            ends.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join(DEADLINE)
    if isinstance(ends[0], BaseException):
        raise ends[0]
    return ends[0]


@pytest.mark.parametrize("tool", [None, "settrace", "setprofile", "debug_nans"])
@pytest.mark.parametrize("surrounding", SURROUNDINGS)
def test_whoever_dispatches_and_whoever_watches(surrounding: str, tool: str | None) -> None:
    program = warm()
    run = functools.partial(SURROUNDINGS[surrounding], program)

    def watch(*_: Any) -> Any:
        return watch

    def set_all(function: Any) -> None:
        for module in (sys, threading):
            getattr(module, str(tool))(function)

    if tool is None:
        assert outcomes(run, *VALUES) == ENDS
    elif tool == "debug_nans":
        with jax.debug_nans(True):
            assert outcomes(run, *VALUES) == ENDS
    else:
        before = getattr(sys, tool.replace("set", "get"))()
        set_all(watch)
        try:
            ends = outcomes(run, *VALUES)
        finally:
            set_all(None)
            getattr(sys, tool)(before)
        assert ends == ENDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner_kind", KINDS)
def test_a_callback_that_runs_a_program_whose_callback_fails(kind: str, inner_kind: str) -> None:
    inner = warm(inner_kind)
    assert outcomes(warm(kind, lambda x: np.asarray(inner(x))), *VALUES) == ENDS
    assert outcomes(inner, *VALUES) == ENDS


def test_each_of_three_nested_programs_fails_with_its_own_error() -> None:
    innermost = warm()
    middle = warm(function=lambda x: np.asarray(innermost(x)))
    outer = warm(function=lambda x: np.asarray(middle(x)))
    for program in (outer, middle, innermost, outer):
        assert outcomes(program, *VALUES) == ENDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_runs_itself(kind: str) -> None:
    """The outer dispatch in Python, since it is the first of what was compiled ahead of time, the inner one in C++."""
    ends: list[Any] = []
    outer: list[weakref.ref[Any]] = []

    def function(x: Any) -> Any:
        if float(x) != 1:
            return checked(x)
        outer.append(weakref.ref(x))
        ends.append(one_by_one(program, *VALUES))
        return x

    program = jax.jit(step(kind, function))
    for value in (2.0, 3.0):
        assert float(program(value)) == value
    assert float(program.lower(1.0).compile()(1.0)) == 1.0
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    assert ends == [ENDS]
    # No record of the inner failures keeps the frames that they came through.
    gc.collect()
    assert outer[0]() is None
