"""A function that takes a NumPy array for one of JAX's reads of `jax_arrays` in the error (H32)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.first_lines import barrier

import hostcb as hcb
from hostcb import debug

pytestmark = pytest.mark.contract("H32")

ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "at": lambda x: x.at[0].set(1),
    "block_until_ready": lambda x: x.block_until_ready(),
    "devices": lambda x: x.devices(),
    "sharding": lambda x: x.sharding,
    "addressable_data": lambda x: x.addressable_data(0),
}
USES: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda f: hcb.id_tap(lambda x, _: f(x), jnp.ones(2)),
    "call": lambda f: hcb.call(f, jnp.ones(2)),
    "pure_callback": lambda f: hcb.pure_callback(f, jnp.ones(2), jnp.ones(2)),
    "io_callback": lambda f: hcb.io_callback(f, None, jnp.ones(2)),
    "debug.callback": lambda f: debug.callback(f, jnp.ones(2)),
}


def text_of(kind: str, function: Callable[[Any], Any]) -> str:
    try:
        jax.block_until_ready(USES[kind](function))
    except jax.errors.JaxRuntimeError as error:
        barrier()
        return str(error)
    return str(barrier())


@pytest.mark.parametrize("attribute", ATTRIBUTES)
@pytest.mark.parametrize("kind", USES)
def test_attributes_of_jax_arrays_have_advice(kind: str, attribute: str) -> None:
    text = text_of(kind, ATTRIBUTES[attribute])
    assert f"object has no attribute '{attribute}'" in text.splitlines()[0]
    assert f".{attribute} is of jax.Array: wrap the callback in hostcb.jax_arrays(…)" in text
    assert ("hostcb_jax_arrays" in text) == (kind not in ("id_tap", "call"))


@pytest.mark.parametrize("number", [lambda x: x[0], lambda x: x.sum()], ids=["an element", "a sum"])
def test_numbers_of_arrays_have_it_too(number: Callable[[Any], Any]) -> None:
    assert ".at is of jax.Array: " in text_of("io_callback", lambda x: number(x).at)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.nowhere, lambda x: "text".at, lambda x: [x].sharding, lambda x: getattr(object(), "at")],
    ids=["other name", "text", "list", "object"],
)
def test_other_attributes_have_no_advice(function: Callable[[Any], Any]) -> None:
    assert "jax_arrays" not in text_of("io_callback", function)


def test_an_exception_with_attributes_of_its_own_is_a_failure_like_any_other() -> None:
    class Odd(AttributeError):
        __notes__ = 3

        @property
        def obj(self) -> Any:
            raise RuntimeError("not this")

    for error in (Odd("planted"), AttributeError("planted", name=3, obj=np.ones(2))):
        hcb.id_tap(lambda *_, error=error: (_ for _ in ()).throw(error), jnp.ones(2))
        failed = barrier()
        assert failed.failures[0].exception is error and "planted" in failed.failures[0].headline


def test_an_exception_that_is_raised_again_has_the_advice_once() -> None:
    kept: list[AttributeError] = []

    def again(x: Any, _: Any) -> None:
        try:
            raise kept[0] if kept else x.at
        except AttributeError as error:
            kept.append(error)
            raise

    for _ in range(3):
        hcb.id_tap(again, jnp.ones(2))
    assert len(barrier().failures) == 3
    assert len(kept[0].__notes__) == 1
