"""Fault cells of the runtime's own targets: what becomes of results that nobody has checked.

A library that sends its users' results there must check all that is not refused cleanly here.
"""

from __future__ import annotations

from typing import Any

from conformance.bench import Bench
from conformance.checkers import Anomaly
from conformance.runtime_targets import RESULTS
from conformance.verdicts import Stage
from conformance.victims import run_victim


def raw_result(kind: str, target: str, bench: Bench) -> list[Anomaly]:
    """A right result arrives, and a wrong one is an error: anything else is classed by what it does."""
    ended = run_victim(bench, "raw", target, kind)
    if ended.signal is not None:
        # Whether the value was delivered before, and which signal it was, differs from run to run.
        witness = f"a {kind} was taken, and {ended.signal} ended the process"
        return [Anomaly("memory corruption", Stage.RESULT, witness)]
    ended.check()
    (said,) = ended.said
    expected = _described(RESULTS[kind]) if kind in ("right_result", "legitimate_mark") else None
    if said[0] == "error":
        return [] if expected is None else [Anomaly("error", Stage.RESULT, f"a {kind} was refused: {said[1][-300:]}")]
    if expected is None:
        return [Anomaly("silent garbage", Stage.RESULT, f"a {kind} was delivered as {said[1]}")]
    if said[1] == expected:
        return []
    return [Anomaly("result", Stage.RESULT, f"a {kind} was delivered as {said[1]}, expected {expected}")]


def _described(array: Any) -> list[Any]:
    return [array.dtype.name, list(array.shape), array.ravel()[:8].tolist()]
