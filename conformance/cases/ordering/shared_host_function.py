"""One host function in several callbacks of a program: no callback takes the operand or the result of another one."""

from __future__ import annotations

import numpy as np

from ..harness.case import Case, case
from ..harness.registry import ONE_OF_EACH

ROW = np.array([1, 2, 3], np.float32)

# Of one size in bytes, so that one could stand for another.
OPERANDS = [ROW, ROW.astype(np.int32), ROW.astype(np.uint32), ROW[None], ROW[:, None]]
RESULTS = [ROW.astype(dtype) for dtype in ("float32", "int32", "uint8", "float32")]


@case("jit pmap", f"{ONE_OF_EACH} io_callback_ordered debug_callback_ordered", "H18")
def same_function_of_other_types(case: Case) -> None:
    """Operands of several types and shapes."""
    host = case.host()
    for results in case.runs(lambda xs: [case.apply(host, x) for x in xs], OPERANDS):
        case.gave(results, OPERANDS)
        case.saw(host, OPERANDS)


@case("jit", "call io_callback_ordered", "H18")
def same_function_of_other_results(case: Case) -> None:
    """One operand, and a result of another type at each place."""
    host = case.host(returns=RESULTS)
    for results in case.runs(lambda x: [case.apply(host, x, like) for like in RESULTS], ROW):
        case.gave(results, RESULTS)
        case.saw(host, [ROW] * len(RESULTS))
