"""Run case cells: run the function of a case and class its anomalies.

A case that may crash, hang or poison its process runs in a process of its own, where a crash or a hang is a result like
any other. A case that fails where the platform has no such callback at all shows nothing of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from ...implementations import Implementation
from ...oracle.checkers import Anomaly
from ...oracle.stages import refusal_of, stage_of, summary
from ...oracle.verdicts import Outcome, Verdict
from .case import Case, NotApplicableError
from .child_processes import ChildEndedError
from .hosts import add_one, is_of_the_program
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


SHOWN = 10
"""A witness has at most so many anomalies."""


def run_case(case: RegisteredCase, implementation: Implementation, devices: Sequence[jax.Device]) -> Outcome:
    one = Case(implementation, case.layout, devices, case.callback)
    started = time.perf_counter()
    if waiting := outcome_in_place_of_waiting(case, one):
        return waiting
    try:
        case.run(one)
        if one.ends_quietly:
            one.barrier()
        anomalies = one.anomalies
    except NotApplicableError as error:
        reason = str(error)
        return Outcome(Verdict.UNSUPPORTED, reason=reason, anomaly="not applicable", cause=reason)
    except ChildEndedError as error:
        lacking = outcome_without_support(case, one, started)
        return replace(lacking or error.outcome, seconds=time.perf_counter() - started)
    except Exception as error:
        if not case.isolated:
            # What the barrier has to report is not the next cell's.
            one.drain()
        if not is_of_the_program(error, implementation):
            raise
        anomalies = [Anomaly("error", stage_of(error), f"the program failed: {summary(error)}")]
    seconds = time.perf_counter() - started
    if not anomalies:
        return Outcome(Verdict.PASS, seconds=seconds)
    if lacking := outcome_without_support(case, one, started):
        return replace(lacking, seconds=time.perf_counter() - started)
    more = [f"(and {len(anomalies) - SHOWN} more)"] * (len(anomalies) > SHOWN)
    witness = "; ".join([*map(str, anomalies[:SHOWN]), *more])
    return Outcome(Verdict.FAIL, anomalies[0].stage, witness, seconds, anomaly=anomalies[0].kind)


def try_callback_of(case: RegisteredCase, implementation: Implementation, devices: Sequence[jax.Device]) -> Outcome:
    """In place of a case, which needs a process of its own: it passes if the platform has the callback at all."""
    one = Case(implementation, case.layout, devices, case.callback)
    return outcome_without_support(case, one) or Outcome(Verdict.PASS)
