"""Whether the platform has a callback in a layout at all: a case that fails without it shows nothing of its own."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ...oracle.stages import refusal_of, stage_of, summary
from ...oracle.verdicts import Outcome, Verdict
from ...spec.callbacks import Callback
from ...spec.external_callbacks import callback_named
from .bench import Bench
from .registry import RegisteredCase
from .runtime_targets import TARGETS

LONG_SECONDS = 2.0

_long: dict[str, str] = {}
"""The kinds of cases that wait long for a callback that cannot come, each with the callback that has shown it."""


def outcome_without_support(case: RegisteredCase, bench: Bench, started: float | None = None) -> Outcome | None:
    """The outcome of a case if the platform refuses the smallest program with its callback; otherwise None.

    The program is compiled, and does not run. `started` is the time at which the case began.
    """
    if case.callback in TARGETS:
        return None
    callback = callback_named(case.callback)
    try:
        compiled: Any = bench.compile(lambda x: _applied(bench, callback, x))
        compiled.lower(bench.operand).compile()
    except Exception as error:
        stage = stage_of(error)
        if cause := refusal_of(error, stage):
            if started and time.perf_counter() - started > LONG_SECONDS:
                _long[case.kind] = callback.name
            words = f"unsupported: {summary(error)}; that is what {callback.name} alone does here under {case.layout}"
            return Outcome(Verdict.UNSUPPORTED, stage, words, anomaly="unsupported", cause=cause)
    return None


def outcome_in_place_of_waiting(case: RegisteredCase, bench: Bench) -> Outcome | None:
    """The outcome of a case of a kind that is known to wait long in vain, if its callback is refused as well."""
    if case.kind not in _long or not (outcome := outcome_without_support(case, bench)):
        return None
    words = f"; not run, since it only waits without its callback, as it did for {_long[case.kind]}"
    return replace(outcome, reason=outcome.reason + words)


def _applied(bench: Bench, callback: Callback, x: Any) -> Any:
    for one in callback.parts or (callback,):
        if one.function == "debug.print":
            bench.implementation.print_as("{x}", x=x)
        elif one.function == "id_print":
            x = bench.implementation.print_labelled(x)
        else:
            wanted = jax.ShapeDtypeStruct(x.shape, np.float32)
            x = bench.apply(one, lambda operand: np.asarray(operand) + np.float32(1), x, wanted)
    return x
