"""Cases of results in the memory layouts and byte orders that NumPy's functions return, and of wrong shapes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.checks import error_of

ROUNDS = 2
LARGE_SIDE = 1025


@case("jit", "call pure_callback io_callback dlpack_callback", "H3 X2 X3 D1")
def strided_results_at_once(case: Case) -> None:
    """Results that are not row-major, beside one that is."""
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    results = {
        "plain": matrix,
        "transposed": np.ascontiguousarray(matrix.T).T,
        "backwards": np.ascontiguousarray(matrix[::-1, ::-1])[::-1, ::-1],
        "every other": np.repeat(matrix, 2, axis=1)[:, ::2],
        "broadcast": np.broadcast_to(matrix[0], (3, 4)),
    }
    program = jax.jit(lambda x: case.apply(lambda _: results, x, results))
    for _ in range(ROUNDS):
        case.gives(results, program, case.operand)


@case("jit", "call pure_callback io_callback io_callback_ordered dlpack_callback", "H3 X2 X3 D1")
def large_strided_results(case: Case) -> None:
    """Results of 4 MiB that are not row-major, which another way of copying would take for what they are not."""
    square = np.arange(LARGE_SIDE**2, dtype=np.float32).reshape(LARGE_SIDE, LARGE_SIDE)
    for name, result in (
        ("transposed", square.T),
        ("backwards", square[::-1]),
        ("broadcast", square[:1] + 0 * square.T),
    ):
        program = jax.jit(lambda x, r=result: case.apply(lambda _: r, x, square))
        right = np.array_equal(program(case.operand), result)
        case.check(right, "result", Stage.RESULT, f"a large result {name} has other elements")


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
                return jax.tree.leaves(case.apply(lambda _: result, x, like))[0].sum() + x

            error = error_of(case.compile(through), case.operand)
            case.drain()
            witness = f"{what}{' in a tree' if beside else ''} was delivered as a result"
            case.check(error is not None, "swallowed error", Stage.RESULT, witness)
