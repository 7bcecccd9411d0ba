"""H15, X2: a class of the user for results sees the results of a call, and nothing of a call that failed."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import pytest

import hostcb as hcb
from hostcb._compat.fast_dispatch import _is_plain

NUMBER = jax.ShapeDtypeStruct((), np.float32)


class Positive:
    def __init__(self, value: Any) -> None:
        if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not float(value) > 0:
            raise ArithmeticError(f"{value} is not positive")
        self.value = value


jax.tree_util.register_pytree_node(
    Positive, lambda positive: ((positive.value,), None), lambda _, values: Positive(*values)
)

KINDS: dict[str, Callable[..., Any]] = {
    "call": lambda host, x: hcb.call(host, x, result_shape=NUMBER),
    "pure_callback": lambda host, x: hcb.pure_callback(host, NUMBER, x),
    "io_callback": lambda host, x: hcb.io_callback(host, NUMBER, x),
}


@pytest.mark.contract("H15", "X2", "X3")
@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_checks_its_values_sees_none_of_a_failed_call(kind: str) -> None:
    fails = False

    def host(operand: Any) -> Any:
        if fails:
            raise ValueError("planted")
        return operand

    program = jax.jit(lambda x: Positive(KINDS[kind](host, x)))
    for fails in (False, False, True, True, False, True, False):
        if fails:
            with pytest.raises(jax.errors.JaxRuntimeError, match="planted"):
                program(np.float32(2))
        else:
            assert float(program(np.float32(2)).value) == 2
    with pytest.raises(hcb.CallbackException, match="planted"):
        hcb.barrier_wait()


class Pair(NamedTuple):
    one: Any
    other: Any


class Checked(Pair):
    def __new__(cls, one: Any, other: Any) -> Self:
        assert one is not other
        return super().__new__(cls, one, other)


@pytest.mark.contract("H15")
@pytest.mark.parametrize(
    ("node", "plain"),
    [
        *((each, True) for each in (tuple, list, dict, type(None), collections.OrderedDict, Pair)),
        (collections.namedtuple("Other", "a b"), True),  # noqa: PYI024 - also without types
        (Positive, False),
        (Checked, False),
    ],
)
def test_which_nodes_run_no_code_of_the_user(node: type, plain: bool) -> None:
    assert _is_plain(node) == plain
