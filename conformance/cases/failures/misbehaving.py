"""A host function that misbehaves while it is armed, and the checks of a failure that is raised and then over.

If the contract leaves it open, the implementation chooses whether the program or the next barrier raises the failure.
One of them must raise it, with its text. After that, the failure must have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ...implementations.host_functions import Sited
from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ...spec.jax_versions import JaxRuntimeError
from ..harness.case import Case
from ..harness.hosts import PLANTED, error_of, fail


class Misbehaving(Sited):
    """It misbehaves while it is armed, and otherwise adds one."""

    site = "misbehaving"

    def __init__(self, misbehaves: Callable[[Any], Any] = fail, armed: bool = False) -> None:
        self.misbehaves, self.armed = misbehaves, armed

    def __call__(self, operand: Any, *_: Any) -> Any:
        return self.misbehaves(operand) if self.armed else np.asarray(operand + np.float32(1))


def ends(case: Case, run: Callable[[], Any], *patterns: str) -> None:
    """`run` raises JAX's error, whose text matches each of the patterns."""
    error = error_of(run)
    if error is None:
        case.wrong("swallowed error", Stage.RESULT, "the program delivered a result in place of a failure")
    elif not isinstance(error, JaxRuntimeError):
        case.wrong("wrong error", Stage.DISPATCH, f"expected JaxRuntimeError, actual {summary(error)}")
    else:
        for pattern in patterns:
            witness = f"the error does not name {pattern!r}: {summary(error)}"
            case.check(bool(re.search(pattern, str(error))), "poor error", Stage.DISPATCH, witness)


def surfaces(case: Case, run: Callable[[], Any], text: str = PLANTED) -> None:
    """`run` or the next barrier raises an error with this text."""
    error = error_of(run) or case.drain()
    if error is None:
        case.wrong("swallowed error", Stage.BARRIER, "a callback raised, and neither the program nor the barrier did")
    elif text not in _whole_text(error):
        case.wrong("poor error", Stage.BARRIER, f"the error does not say what was raised: {summary(error)}")


def _whole_text(error: BaseException) -> str:
    """The text of an exception and of all exceptions in its group."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return " ".join((str(error), *map(_whole_text, inner)))


def is_over(case: Case, program: Callable[[Any], Any]) -> None:
    """Neither this program nor another one raises the failure, and after one more barrier no barrier does."""
    runs_as_before(case, program)
    # This barrier may still report the failure. No barrier comes earlier: it would keep a late error from the programs.
    case.drain()
    case.barrier()


def runs_as_before(case: Case, program: Callable[[Any], Any]) -> None:
    """After a failure this program and another one give their results."""
    another = case.compile(lambda x: case.apply(lambda operand, *_: operand * np.float32(2), x))
    doubled = case.operand * np.float32(2) if case.callback.returns_new_value else case.operand
    for expected, run in ((case.expected, program), (doubled, another), (case.expected, program)):
        case.gives(expected, run, case.operand)
