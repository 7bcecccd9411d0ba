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
    like = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in results.items()}
    compiled: Any = jax.jit(lambda x: case.call_back(lambda _: results, x, like))
    for _ in range(ROUNDS):
        found = compiled(case.operand)
        for name, each in results.items():
            case.value(f"a result {name}", lambda f=found[name]: f, np.array(each))  # type: ignore[misc]
    case.barrier()


@case("jit", "call pure_callback io_callback io_callback_ordered dlpack_callback", "H3 X2 X3 D1")
def large_strided_results(case: Case) -> None:
    """Results of 4 MiB that are not row-major, which another way of copying would take for what they are not."""
    square = np.arange(LARGE_SIDE**2, dtype=np.float32).reshape(LARGE_SIDE, LARGE_SIDE)
    like = jax.ShapeDtypeStruct(square.shape, square.dtype)
    for name, result in (
        ("transposed", square.T),
        ("backwards", square[::-1]),
        ("broadcast", square[:1] + 0 * square.T),
    ):
        run = jax.jit(lambda x, r=result: case.call_back(lambda _: r, x, like))
        if not np.array_equal(np.asarray(run(case.operand)), result):
            case.wrong("result", Stage.RESULT, f"a large result {name} has other elements")
    case.barrier()


@case("jit", "call pure_callback io_callback io_callback_ordered dlpack_callback", also="X2 X3")
@case("pjit", "call")
def row_for_a_column(case: Case) -> None:
    """A result of the right size and another shape is refused, alone and in a tree, and none is stretched to fit."""
    size = case.operand.size
    shapes = {
        "a row for a column": ((1, size), (size, 1)),
        "an axis more": ((1, size), (size,)),
        "a number": ((), (size,)),
        "one element for many": ((1,), (size,)),
    }
    for what, (returned, asked) in shapes.items():
        for tree in (False, True):

            def host(operand: Any, returned: tuple[int, ...] = returned, tree: bool = tree) -> Any:
                result = np.zeros(returned, np.float32)
                return (result, np.float32(0)) if tree else result

            like = jax.ShapeDtypeStruct(asked, np.float32)
            wanted = (like, jax.ShapeDtypeStruct((), np.float32)) if tree else like

            def computation(x: Any, host: Any = host, wanted: Any = wanted) -> Any:
                return jax.tree.leaves(case.call_back(host, x, wanted))[0].sum() + x

            error = error_of(lambda f=computation: case.compile(f)(case.operand))  # type: ignore[misc]
            case.drain()
            if error is None:
                witness = f"{what}{' in a tree' if tree else ''} was delivered as a result"
                case.wrong("swallowed error", Stage.RESULT, witness)
    case.barrier()
