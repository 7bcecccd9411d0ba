"""Cases of results in the memory layouts that NumPy's functions return, and of wrong shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.checks import error_of
from ..harness.registry import WITH_RESULTS

ROUNDS = 2


@case("pjit", WITH_RESULTS, "H3 H10 X2 X3")
@case("jit", f"{WITH_RESULTS} io_callback_ordered dlpack_callback", "H3 X2 X3 D1")
def strided_results(case: Case) -> None:
    """Results that are not row-major, beside one that is: their elements are where they belong."""
    sharding = case.split if case.layout == "pjit" else None
    types = ("int32", "float32", "complex64", "int4")
    for name in types[:3] if case.callback.function == "dlpack_callback" else types:
        matrix = (np.arange(12) % 8).reshape(3, 4).astype(np.dtype(jnp.dtype(name)))
        results = {
            "plain": matrix,
            "transposed": np.asfortranarray(matrix),
            "backwards": matrix[::-1, ::-1].copy()[::-1, ::-1],
            "every other": np.repeat(matrix, 2, axis=1)[:, ::2],
            "broadcast": np.broadcast_to(matrix[0], (3, 4)),
            "masked": np.ma.masked_array(matrix, mask=np.zeros(matrix.shape, bool)),
        }
        like = {form: np.array(each) for form, each in results.items()}
        program = jax.jit(lambda x, r=results, s=like: case.apply(lambda _: r, x, s), in_shardings=sharding)
        for _ in range(ROUNDS):
            case.gives(like, program, case.operand, what=name)


@case("jit", "call pure_callback io_callback io_callback_ordered dlpack_callback", also="X2 X3")
@case("pjit", "call")
def row_for_a_column(case: Case) -> None:
    """A result of the right size and another shape is refused, alone and in a tree, and none is stretched to fit."""
    size = case.operand.size
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "a row for a column": ((1, size), (size, 1)),
        "an axis more": ((1, size), (size,)),
        "a number": ((), (size,)),
        "one element for many": ((1,), (size,)),
    }
    for what, (returned, asked) in shapes.items():
        for beside in ((), (np.float32(0),)):
            result, like = ((np.zeros(shape, np.float32), *beside) for shape in (returned, asked))
            if not beside:
                (result,), (like,) = result, like

            def through(x: Any, result: Any = result, like: Any = like) -> Any:
                return jax.tree.leaves(case.apply(lambda _: result, x, like))[0]

            error = error_of(case.compile(through), case.operand)
            case.drain()
            witness = f"{what}{' in a tree' if beside else ''} was delivered as a result"
            case.check(error is not None, "swallowed error", Stage.RESULT, witness)
