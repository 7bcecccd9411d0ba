"""The last line of an error is what to write in place of a usual slip (H32)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import STAGES
from test_advice import SCALAR, VECTOR, X, double, host, pure

import hostcb as hcb

I32, I8, TWO = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((3,), np.int8), np.ones((2, 2), np.float32)

HINTS: dict[str, tuple[Any, Any, str | None]] = {
    "list": ([1.0, 2, 3], VECTOR, "Wrap what the callback returns in an array: np.asarray(value, np.float32)."),
    "tuple": ((True, False, True), jax.ShapeDtypeStruct((3,), bool), "np.asarray(value, bool)."),
    "integers": ([1, 2, 3], jax.ShapeDtypeStruct((3,), jnp.bfloat16), "np.asarray(value, jnp.bfloat16)."),
    "scalar": (2, VECTOR, "For an array of equal elements return np.full((3,), value, np.float32)."),
    "number": (2, SCALAR, "Wrap what the callback returns in an array: np.asarray(value, np.float32)."),
    "integer array": (np.arange(3), VECTOR, "Return it in the promised dtype: value.astype(np.float32)."),
    "narrower": (np.zeros(3, np.float16), VECTOR, "Return it in the promised dtype: value.astype(np.float32)."),
    "shape": (TWO, (2, 2), "for an array use jax.ShapeDtypeStruct((2, 2), np.float32)."),
    "listed shape": (TWO[0], [2], "for an array use jax.ShapeDtypeStruct((2,), np.float32)."),
    "whole number": (np.float32(1.5), 0, "for a float write 0.0."),
    # What it would lose is no slip, and what is another error gets no advice.
    "fraction": (1.5, I32, None),
    "list of another length": ([1.0, 2], VECTOR, None),
    "array of another shape": (TWO, VECTOR, None),
    "too large": (np.asarray(2**40), I32, "Set jax_enable_x64"),
    "too large for 64 bits, too": (np.asarray(2**63), I32, None),
    "wider": (np.arange(3), I8, None),
    "two integers": ((1.0, 2.0), (I32, I32), None),
    "another number of axes": (TWO, (2,), None),
    "words": ("words", SCALAR, None),
}


@pytest.mark.contract("H32")
def test_the_error_of_a_function_that_uses_a_traced_value_asks_for_an_operand() -> None:
    @jax.jit
    def scaled(x: Any) -> Any:
        factor = 2 * x
        return hcb.call(lambda value: value * factor, x, result_shape=VECTOR)

    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jax.block_until_ready(scaled(X))
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    assert str(error.value).splitlines()[-1].endswith("pass that value to it as an operand.")


@pytest.mark.contract("H32")
@STAGES
@pytest.mark.parametrize("slip", HINTS)
def test_a_usual_slip_ends_the_error_with_what_to_write(slip: str, stage: Any) -> None:
    returned, shape, hint = HINTS[slip]
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(stage(lambda x: hcb.call(lambda x: returned, x, result_shape=shape))(X))
    with pytest.raises(hcb.CallbackException) as reported:
        hcb.barrier_wait()
    for error in (caught.value, reported.value):
        text = str(error).partition("\nThe computation of this callback")[0]
        if hint is None:
            assert not any(word in text for word in ("np.", "ShapeDtypeStruct", "astype", "enable_x64")), text
        else:
            assert text.endswith(hint) or (hint.startswith("Set ") and hint in text), text


@pytest.mark.contract("H32")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"result_shape": [3]}, "[int32[]]: result_shape describes integers and no shape"),
        ({"result_shape": X.shape}, "(int32[],): result_shape describes integers and no shape"),
        ({}, "None: no result_shape was given"),
        ({"result_shape": SCALAR}, "float32[]"),
    ],
)
def test_the_first_line_says_if_result_shape_is_the_slip(options: Any, why: str) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(hcb.call(double, X, **options))
    assert str(caught.value).splitlines()[0].endswith(f"returned float32[3] in place of {why}")
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("H32")
def test_an_operand_that_is_an_array_of_texts_shows_nothing_of_jaxs_code() -> None:
    class Own:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise OSError("the user's own")

    for leaf, has_cause in ((np.array(["text"]), False), (np.array([None]), False), (Own(), True)):
        which = "must be an array or a scalar, got .*" + (
            "" if has_cause else "of the dtype .*, which no device can hold"
        )
        with pytest.raises(TypeError, match=which) as caught:
            jax.jit(lambda x, leaf=leaf: hcb.call(double, (leaf, x), result_shape=X))(X)
        error = caught.value
        assert (error.__cause__ is not None) is has_cause, leaf
        assert error.__cause__ is not None or error.__suppress_context__, leaf


@pytest.mark.contract("H8", "X2")
@pytest.mark.parametrize("callback", [pure, host])
def test_what_vmap_needs_says_what_each_method_does(callback: Any) -> None:
    with pytest.raises(NotImplementedError) as caught:
        jax.vmap(callback)(X)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split("'")[1] for line in lines] == ["sequential", "expand_dims", "broadcast_all"]
