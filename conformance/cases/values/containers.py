"""Results in a user's containers, which read their leaves where they are made and where they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import PLANTED, error_of, fail


class _Positive:
    """It checks its leaf, apart from `object()` and `None`, which JAX asks every container to take."""

    def __init__(self, leaf: Any) -> None:
        if type(leaf) is not object and leaf is not None:
            shape = leaf.shape
            if isinstance(leaf, np.ndarray) and not np.all(leaf > 0):
                raise ArithmeticError(f"an array of shape {shape} is not positive")
        self.leaf = leaf

    def __repr__(self) -> str:
        return f"_Positive(shape={self.leaf.shape})"


class _Secret:
    """Static data that cannot be shown."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Secret)

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise LookupError("a secret is not shown")


class _Hidden(_Positive):
    """The same, with static data that cannot be shown."""


jax.tree_util.register_pytree_node(_Positive, lambda one: ((one.leaf,), None), lambda _, leaves: _Positive(*leaves))
jax.tree_util.register_pytree_node(_Hidden, lambda one: ((one.leaf,), _Secret()), lambda _, leaves: _Hidden(*leaves))


def _result_of(case: Case, like: Any, host: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A program that returns the leaves of the callback's result, which is in the containers of `like`."""
    return case.compile(lambda x: jax.tree.leaves(case.apply(host, x, like)))


def _shape(case: Case) -> Any:
    return jax.ShapeDtypeStruct(case.callback_shape, np.float32)


@case("pjit", "call pure_callback io_callback", "H3 H15 X2 X3", functions="barrier_wait", isolated=True)
@case("jit", "call pure_callback io_callback io_callback_ordered", "H3 H15 X2 X3")
def containers_that_read_leaves(case: Case) -> None:
    """A failure is reported, whatever the container of the result reads of its leaf, and the process lives."""
    for container in (_Positive, _Hidden):
        hosts: dict[str, Callable[[Any], Any]] = {
            PLANTED: fail,
            "12": lambda operand, of=container: of(np.ones(12, np.float32)),  # type: ignore[misc]
            "not positive": lambda operand, of=container: of(-np.ones(1, np.float32)),  # type: ignore[misc]
        }
        right = lambda operand, of=container: of(operand + np.float32(1))
        now: list[Any] = [right]
        program = _result_of(case, container(_shape(case)), lambda operand, now=now: now[0](operand))  # type: ignore[misc]
        for text, now[0] in hosts.items():
            error = error_of(lambda: program(case.operand)[0])  # noqa: B023 - called at once
            barrier = case.drain()
            # The error of a container that was to show a leaf without a shape is none of the user's.
            right_error = text in str(error or barrier) and "AttributeError" not in str(error or barrier)
            witness = f"expected an error with {text!r} alone, actual {error or barrier}"
            case.check(right_error, "wrong report", Stage.DISPATCH, witness)
        now[0] = right
        case.gives([np.asarray(case.operand + np.float32(1))], program, case.operand)
