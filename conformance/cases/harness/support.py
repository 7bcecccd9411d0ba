"""Whether the platform has a callback in a layout at all: a case that fails without it shows nothing of its own."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ...oracle.stages import refusal_of, stage_of, summary
from ...oracle.verdicts import Outcome, Verdict
from .case import Case
from .hosts import add_one
from .registry import RegisteredCase
from .runtime_targets import TARGETS

LONG_SECONDS = 2.0

_long: dict[str, str] = {}
"""The kinds of cases that wait long for a callback that cannot come, each with the callback that has shown it."""


def outcome_without_support(case: RegisteredCase, one: Case, started: float | None = None) -> Outcome | None:
    """The outcome of a case if the platform refuses the smallest program with its callback; otherwise None.

    The program is compiled, and does not run. `started` is the time at which the case began.
    """
    if case.callback in TARGETS:
        return None
    try:
        one.compile(lambda x: _applied(one, x)).lower(one.operand).compile()
    except Exception as error:
        stage = stage_of(error)
        if cause := refusal_of(error, stage):
            if started and time.perf_counter() - started > LONG_SECONDS:
                _long[case.kind] = case.callback
            words = f"unsupported: {summary(error)}; that is what {case.callback} alone does here under {case.layout}"
            return Outcome(Verdict.UNSUPPORTED, stage, words, anomaly="unsupported", cause=cause)
    return None


def outcome_in_place_of_waiting(case: RegisteredCase, one: Case) -> Outcome | None:
    """The outcome of a case of a kind that is known to wait long in vain, if its callback is refused as well."""
    if case.kind not in _long or not (outcome := outcome_without_support(case, one)):
        return None
    words = f"; not run, since it only waits without its callback, as it did for {_long[case.kind]}"
    return replace(outcome, reason=outcome.reason + words)


def _applied(one: Case, x: Any) -> Any:
    for callback in one.callback.parts or (one.callback,):
        x = one.apply(add_one, x, by=callback)
    return x
