"""Taps that raise, and callbacks that raise outside jit."""

from __future__ import annotations

import jax.numpy as jnp

from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.checks import error_of
from ..harness.hosts import PLANTED, add_one, fail
from ..harness.registry import EVERY_LAYOUT


@case(EVERY_LAYOUT, "id_tap")
@case("jit", "id_print")
def tap_raises(case: Case) -> None:
    """A tap, or the stream of a print, raises: its program goes on, the barrier reports it, and later ones run."""
    later = case.host()
    program = case.compile(lambda x: case.apply(later, case.apply(fail, x) * 2.0))
    case.gives(case.operand * 2, program, case.operand)
    case.barrier_reports()
    case.saw_parts(later, case.operand * 2)


@case("jit", "call pure_callback io_callback io_callback_ordered", "H15 X2 X3")
def raises_outside_jit(case: Case) -> None:
    """Outside jit the error of a function comes at the call, with its words, and the next call is as usual."""
    operand = jnp.asarray(case.operand)
    host = case.host(add_one)
    for _ in range(2):
        error = error_of(case.apply, fail, operand)
        # The barrier reports it as well, or does not: a computation has ended with it.
        case.drain()
        right = isinstance(error, RuntimeError) and PLANTED in str(error)
        actual = summary(error) if error else "a result"
        case.check(right, "swallowed error", Stage.DISPATCH, f"a callback that raised outside jit ended with {actual}")
        case.gives(case.operand + 1, case.apply, host, operand)
