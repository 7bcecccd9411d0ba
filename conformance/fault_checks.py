"""Checks that fault cells share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.bench import Bench
from conformance.checkers import Anomaly
from conformance.execution import summary
from conformance.verdicts import Stage

PLANTED = "planted failure"
ERROR_MARK = np.zeros(12345, np.int8)
"""What a failed call hands over in place of its result, and what no callback should get away with."""


def error_of(run: Callable[[], Any]) -> Exception | None:
    try:
        np.asarray(run())
    except Exception as error:
        return error
    return None


def check_quiet_barrier(bench: Bench, when: str) -> list[Anomaly]:
    try:
        bench.implementation.barrier()
    except Exception as error:
        return [Anomaly("stale error", Stage.BARRIER, f"the barrier raised {when}: {summary(error)}")]
    return []


def check_value(label: str, run: Callable[[], Any], wanted: Any) -> list[Anomaly]:
    try:
        value = np.asarray(run())
    except Exception as error:
        return [Anomaly("stale error", Stage.DISPATCH, f"{label} failed: {summary(error)}")]
    if value.dtype != wanted.dtype or not np.array_equal(value, wanted):
        witness = f"{label} gave {value.tolist()}, expected {wanted.tolist()}"
        return [Anomaly("result", Stage.RESULT, witness)]
    return []
