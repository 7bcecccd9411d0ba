"""Reports about what host functions return, and about formats of `debug.print`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.registry import WITH_RESULTS
from .loops_and_branches import TRIPS

SCALAR = jax.ShapeDtypeStruct((), np.float32)


@case("jit", "pure_callback io_callback")
def python_number(case: Case) -> None:
    """#20433: a Python number as a float32 result is converted or refused, and never becomes garbage."""
    compiled = jax.jit(lambda x: case.apply(lambda _: 42.0, x, SCALAR))
    try:
        case.gave(compiled(case.operand), np.float32(42))
    except Exception:
        # The barrier reports a refusal once more, and then it is over.
        case.drain()


@case("jit pjit", f"{WITH_RESULTS} dlpack_callback")
def reuses_its_result(case: Case) -> None:
    """As #37830: a function returns the same array each time, with new values; earlier results do not change."""
    mine = np.zeros(case.callback_shape, np.float32)

    def host(operand: Any) -> Any:
        mine[...] = add_one(operand)
        return mine

    compiled = case.program(host)
    operands = [case.operand + np.float32(10 * number) for number in range(TRIPS)]
    results = [jax.block_until_ready(compiled(operand)) for operand in operands]
    for operand, result in zip(operands, results, strict=True):
        case.gives(operand + np.float32(1), np.asarray, result)


@case("jit", WITH_RESULTS)
def wide_results(case: Case) -> None:
    """#12186: results of 64 bits without x64 are refused before anything runs, in words that name the setting."""
    wide = jax.ShapeDtypeStruct((), np.int64)
    host = case.host()
    error = case.raises(lambda: case.apply(host, np.int32(1), wide), kind="unchecked")
    case.check(not host.count, "unchecked", Stage.TRACE, "int64[] was refused after the call")
    case.check(error is None or "x64" in str(error), "message", Stage.TRACE, f"the refusal does not name x64: {error}")


@case("jit", "debug_print", "X4")
def text_in_format(case: Case) -> None:
    """#23600: a print mixes text and traced values."""
    with case.prints("2.0 text"):
        jax.jit(lambda x: case.implementation.print_as("{a} {b}", a=x, b="text"))(np.float32(2))


@case("jit", "debug_print", "X4")
def malformed_format(case: Case) -> None:
    """#11725: a format that does not match its arguments is refused before anything runs."""
    compiled = jax.jit(lambda x: case.implementation.print_as("{a} {b}", a=x))
    case.raises(lambda: compiled.lower(np.float32(2)), kind="unchecked")
