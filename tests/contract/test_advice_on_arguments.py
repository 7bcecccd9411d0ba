"""H32: advice on functions that do not take what the program passes, or return nothing; each is followed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostcb as hcb

pytestmark = pytest.mark.contract("H32")

X = np.arange(3, dtype=np.float32)
LIKE = jax.ShapeDtypeStruct((3,), np.float32)

NO_OPTION = "{} has no option 'orderd'; did you mean ordered? It passes orderd to the function."
NO_OPERANDS = "The function gets no operands: the argument after it describes the result, and the operands follow."
OF_CALL = "pure_callback has no option '{}': the second argument describes the result."
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
            lambda: hcb.io_callback(math.sqrt, LIKE, X[0], orderd=True),
            NO_OPTION.format("io_callback"),
            lambda: hcb.io_callback(np.sin, LIKE, X, ordered=True),
        ),
        (
            lambda: hcb.pure_callback(np.sin, LIKE, X, ordered=True),
            "pure_callback has no option 'ordered'. It passes ordered to the function.",
            lambda: np.sin(X),
        ),
        (
            lambda: hcb.pure_callback(np.sin, X, result_shape=X),
            OF_CALL.format("result_shape"),
            lambda: hcb.pure_callback(np.sin, LIKE, X),
        ),
        (
            lambda: hcb.pure_callback(np.sin, X, result_shapes=X),
            OF_CALL.format("result_shapes"),
            lambda: hcb.pure_callback(np.sin, LIKE, X),
        ),
        (lambda: hcb.pure_callback(forgets, LIKE, X), NO_RETURN.format("None"), lambda: np.sin(X)),
        (
            lambda: hcb.call(forgets, X, result_shape=LIKE),
            NO_RETURN.format("result_shape=None"),
            lambda: hcb.call(np.sin, X, result_shape=LIKE),
        ),
    ],
    ids=[
        "misspelled option",
        "no operands",
        "function in C",
        "option of another kind",
        "the option of call",
        "shapes",
        "no return",
        "no return of a call",
    ],
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


@pytest.mark.parametrize(
    ("returned", "promised", "advice"),
    [
        ((1, 3), (8, 3), "perhaps (1, 3) in place of (8, 3)."),
        ((8, 3), (1, 3), "perhaps (1, 3) in place of (8, 3)."),
        ((1, 3), (5, 3), None),
        ((3,), (8, 3), None),
    ],
)
def test_in_shard_map_a_shape_of_the_whole_array_is_noticed(
    returned: tuple[int, ...], promised: tuple[int, ...], advice: str | None
) -> None:
    @jax.jit
    @jax.shard_map(mesh=Mesh(np.array(jax.devices()), "d"), in_specs=P("d"), out_specs=P("d"))
    def program(x: Any) -> Any:
        like = jax.ShapeDtypeStruct(promised, np.float32)
        return x[0] + hcb.io_callback(lambda x: np.ones(returned, np.float32), like, x)

    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(program(np.ones((8, 3), np.float32)))
    last = str(caught.value).strip().splitlines()[-1]
    said = f"In shard_map and pmap shapes are those of one device's part: {advice}"
    assert last == said if advice else "one device" not in last
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
