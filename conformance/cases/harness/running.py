"""Run case cells: run the function of a case and class its anomalies.

Each function returns anomalies. A case that may crash, hang or poison its process runs in a process of its own,
where a crash or a hang is a result like any other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import jax

from ...implementations import Implementation
from ...oracle.checkers import Anomaly
from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Outcome, Verdict
from .bench import Bench
from .checks import is_of_the_program
from .child_processes import ChildEndedError
from .registry import RegisteredCase
from .support import outcome_in_place_of_waiting, outcome_without_support


def run_case(case: RegisteredCase, implementation: Implementation, devices: Sequence[jax.Device]) -> Outcome:
    bench = Bench(implementation, case.layout, devices)
    started = time.perf_counter()
    if waiting := outcome_in_place_of_waiting(case, bench):
        return waiting
    try:
        anomalies = case.run(bench)
    except ChildEndedError as error:
        lacking = outcome_without_support(case, bench, started)
        return replace(lacking or error.outcome, seconds=time.perf_counter() - started)
    except Exception as error:
        if not is_of_the_program(error, implementation):
            raise
        anomalies = [Anomaly("error", stage_of(error), f"the program failed: {summary(error)}")]
    seconds = time.perf_counter() - started
    if not anomalies:
        return Outcome(Verdict.PASS, seconds=seconds)
    if lacking := outcome_without_support(case, bench, started):
        return replace(lacking, seconds=time.perf_counter() - started)
    witness = "; ".join(str(anomaly) for anomaly in anomalies)
    return Outcome(Verdict.FAIL, anomalies[0].stage, witness, seconds, anomaly=anomalies[0].kind)


def try_callback_of(case: RegisteredCase, implementation: Implementation, devices: Sequence[jax.Device]) -> Outcome:
    """In place of a case, which needs a process of its own, try whether the platform has its callback at all.

    A pass says that it has.
    """
    return outcome_without_support(case, Bench(implementation, case.layout, devices)) or Outcome(Verdict.PASS)
