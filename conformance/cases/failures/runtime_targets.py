"""Cases of the runtime's own targets, which get unchecked results.

A library that sends its users' results there must check for each wrong result that these cells show as not refused.
"""

from __future__ import annotations

import functools
from typing import Any

from ...oracle.verdicts import Stage
from ..harness.case import Case
from ..harness.child_processes import Ended
from ..harness.registry import SLOWEST, RegisteredCase, enter
from ..harness.runtime_targets import RESULTS


def raw_result(case: Case, kind: str) -> None:
    """A right result arrives, and a wrong one is an error; any other outcome is an anomaly of its own kind."""
    judge_end(case, kind, case.child("raw", kind))


def judge_end(case: Case, kind: str, ended: Ended) -> None:
    """Note what is wrong with the end of a child whose handler returned a result of this kind."""
    expected = _described(RESULTS[kind]) if kind in ("right_result", "legitimate_mark") else None
    if expected is None and ended.status != 0 and ended.stage is not Stage.TRACE:
        # Which signal a corrupted heap causes, whether it hangs instead, and whether the value was delivered before,
        # differ from run to run.
        how = f"{ended.how} ended the process" if ended.status is not None else "the process hung"
        case.wrong("memory corruption", Stage.RESULT, f"a {kind} was taken, and {how}")
        return
    ended.check()
    ((outcome, said),) = ended.said
    if outcome == "error":
        case.check(expected is None, "error", Stage.RESULT, f"a {kind} was refused: {said[-300:]}")
    elif expected is None:
        case.wrong("silent garbage", Stage.RESULT, f"a {kind} was delivered as {said}")
    else:
        case.same("result", Stage.RESULT, said, expected, f"a {kind}")


def _described(array: Any) -> list[Any]:
    return [array.dtype.name, list(array.shape), array.ravel()[:8].tolist()]


_KINDS = {
    "ffi_target": (
        *("right_result", "short_result", "long_result", "longest_result", "error_mark", "legitimate_mark"),
        *("wrong_dtype", "more_dimensions", "no_result"),
    ),
    # The handler of this target writes into the results' memory, so fewer wrong results are possible.
    "buffer_target": ("short_result", "long_result", "error_mark", "wrong_dtype", "no_result"),
}

for _target, _kinds in _KINDS.items():
    for _kind in _kinds:
        _run = functools.partial(raw_result, kind=_kind)
        enter(RegisteredCase(_kind, "jit", _target, ("H15",), _run, deadline=SLOWEST))
