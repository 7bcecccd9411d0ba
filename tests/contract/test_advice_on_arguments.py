"""H32: advice on functions that do not take what the program passes, or return nothing; each is followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import hostcb as hcb

pytestmark = pytest.mark.contract("H32")

X = np.arange(3, dtype=np.float32)
LIKE = jax.ShapeDtypeStruct((3,), np.float32)

NO_OPTION = "{} has no option 'orderd', so it passes orderd to the function."
NO_OPERANDS = "The function gets no operands: the argument after it describes the result, and the operands follow."
OF_CALL = "pure_callback has no option result_shape: the second argument describes the result."
NO_RETURN = "Does the function lack a `return`? Where it returns nothing, describe the result by {}."


def forgets(x: Any) -> Any:
    np.sin(x)


def raises_inside(x: Any, orderd: bool) -> Any:
    return np.sin(x, ordered=orderd)


@pytest.mark.parametrize(
    ("wrong", "advice", "right"),
    [
        (
            lambda: hcb.io_callback(np.sin, LIKE, X, orderd=True),
            NO_OPTION.format("io_callback"),
            lambda: hcb.io_callback(np.sin, LIKE, X, ordered=True),
        ),
        (lambda: hcb.pure_callback(np.sin, X), NO_OPERANDS, lambda: hcb.pure_callback(np.sin, LIKE, X)),
        (
            lambda: hcb.pure_callback(np.sin, X, result_shape=X),
            OF_CALL,
            lambda: hcb.pure_callback(np.sin, LIKE, X),
        ),
        (lambda: hcb.pure_callback(forgets, LIKE, X), NO_RETURN.format("None"), lambda: np.sin(X)),
        (
            lambda: hcb.call(forgets, X, result_shape=LIKE),
            NO_RETURN.format("result_shape=None"),
            lambda: hcb.call(np.sin, X, result_shape=LIKE),
        ),
    ],
    ids=["misspelled option", "no operands", "the option of call", "no return", "no return of a call"],
)
def test_the_last_line_says_what_to_do(wrong: Callable[[], Any], advice: str, right: Callable[[], Any]) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(wrong)())
    assert str(caught.value).strip().splitlines()[-1] == advice
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    np.testing.assert_array_equal(jax.jit(right)(), np.sin(X))


def test_a_policy_in_the_one_call_form_is_told_where_it_goes() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(lambda x: (hcb.debug.callback(forgets, x, on_error="log"), x + 1))(X))
        hcb.barrier_wait()
    advice = 'on_error goes into the first of two calls: debug.callback(on_error="log")(function, ...).'
    assert str(caught.value).strip().splitlines()[-1] == advice
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


def test_a_function_that_is_wrong_inside_gets_no_advice_about_the_callback() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(lambda x: hcb.pure_callback(raises_inside, LIKE, x, orderd=True))(X))
    assert "has no option" not in str(caught.value)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("H13")
def test_a_number_is_no_name_of_a_barrier() -> None:
    number: Any = 1
    with pytest.raises(TypeError, match=r"logging_name must be a string, got 1; a limit in seconds is timeout=…"):
        hcb.barrier_wait(number)
