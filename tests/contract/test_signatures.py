"""A function that cannot take what `id_tap` or `call` passes is refused while tracing, on the line that calls back."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from support.first_lines import barrier, files_of
from support.helpers import STAGES

import hostcb as hcb
from hostcb._spec.signatures import is_plain_function

pytestmark = pytest.mark.contract("H32")

F32 = jax.ShapeDtypeStruct((), np.float32)
ONE = np.float32(1)

CALLED = "id_tap calls tap_func(arg, transforms), and tap_func(arg, transforms, device=…) if tap_with_device=True."


class Saver:
    def __call__(self, arg: Any) -> None:
        raise NotImplementedError


@STAGES
@pytest.mark.parametrize(
    ("function", "with_device", "takes"),
    [
        (lambda arg: None, False, "(arg): too many positional arguments."),
        (lambda arg, transforms: None, True, "(arg, transforms): got an unexpected keyword argument 'device'."),
        (lambda arg, transforms, device: None, False, "missing a required argument: 'device'."),
        (lambda arg, transforms, *, name: None, False, "missing a required "),
        (Saver(), False, "(arg): too many positional arguments."),
        (Saver().__call__, False, "(arg): too many positional arguments."),
        (functools.partial(lambda name, arg: None, "loss"), False, "(arg): too many positional arguments."),
    ],
    ids=["two", "device", "no device", "keyword", "object", "method", "partial"],
)
def test_a_tap_function_with_other_parameters_is_refused_on_the_line_that_taps(
    function: Any, with_device: bool, takes: str, stage: Any
) -> None:
    with pytest.raises(TypeError) as caught:
        stage(lambda x: hcb.id_tap(function, x, tap_with_device=with_device))(ONE)
    text = str(caught.value)
    assert text.startswith("id_tap: ") and " takes (" in text and takes in text and text.endswith(CALLED)
    assert files_of(caught.value)[-1] == __file__ and caught.value.__suppress_context__
    hcb.barrier_wait()


@STAGES
def test_a_function_of_a_call_with_other_parameters_is_refused_on_the_line_that_calls(stage: Any) -> None:
    with pytest.raises(TypeError) as caught:
        stage(lambda x: hcb.call(lambda arg, transforms: arg, x, result_shape=F32))(ONE)
    assert str(caught.value).endswith(
        " takes (arg, transforms): missing a required argument: 'transforms'. call calls callback_func(arg), with the "
        "whole of arg as one argument, and callback_func(arg, device=…) if call_with_device=True. For a function of "
        "several arguments write lambda arg: f(*arg)."
    )


def both(one: Any, other: Any) -> Any:
    return one + other


@STAGES
def test_several_operands_go_into_one_tuple(stage: Any) -> None:
    """Python's own error names the function and counts; docs/errors.md says what to write."""
    with pytest.raises(TypeError, match=r"^call\(\) takes 2 positional arguments but 4 were given"):
        stage(lambda x: hcb.call(both, x, x, F32))(ONE)  # type: ignore[call-overload]
    assert stage(lambda x: hcb.call(lambda arg: both(*arg), (x, x), result_shape=F32))(ONE) == 2


@functools.wraps(lambda arg: None)
def wrapper(*args: Any, **options: Any) -> None:
    """Takes other arguments than what it wraps."""


class Odd:
    """Its signature cannot be read."""

    __signature__ = "none"

    def __call__(self, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    "function",
    [
        lambda arg, transforms=(): None,
        lambda *arg: None,
        lambda arg, transforms, name="x": None,
        lambda arg, transforms, *, name="x": None,
        functools.partial(lambda name, arg, transforms: None, "loss"),
        functools.lru_cache(lambda *arguments: None),
        wrapper,
        Odd(),
        {}.get,
        print,
    ],
    ids=["default", "any", "more", "keyword", "partial", "cache", "wrapper", "odd", "method in C", "print"],
)
def test_a_tap_function_that_can_be_called_is_not_refused(function: Any, capsys: Any) -> None:
    hcb.id_tap(function, (1, 2) if function is print else ())
    hcb.barrier_wait()


def test_a_type_error_of_the_tap_itself_is_not_about_its_parameters() -> None:
    hcb.id_tap(lambda arg, transforms: len(3), ONE)  # type: ignore[arg-type]
    assert "id_tap calls" not in str(barrier())


def test_outside_jit_a_function_is_plain_if_it_surely_takes_the_arguments() -> None:
    def keywords(arg: Any, transforms: Any, **others: Any) -> None: ...

    def named(arg: Any, transforms: Any, *, name: Any = None) -> None: ...

    def later(arg: Any, transforms: Any) -> Any:
        yield

    async def coroutine(arg: Any, transforms: Any) -> None: ...

    plain = [lambda v, t: 0, lambda *_: 0, lambda v, *t: 0, lambda v, t=None: 0, lambda v, t, u=None: 0, keywords]
    others = [
        lambda: 0,
        lambda v: 0,
        lambda v, t, u: 0,
        lambda v, t, u, *_: 0,
        named,
        later,
        coroutine,
        print,
        object(),
    ]
    assert all(is_plain_function(each, 2) for each in plain)
    assert not any(is_plain_function(each, 2) for each in others)
