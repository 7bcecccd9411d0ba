"""Run case cells: run the function of a case and class its anomalies.

A case that may crash, hang or poison its process runs in a process of its own, where a crash or a hang is a result like
any other.
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
from .case import Case
from .checks import is_of_the_program
from .child_processes import ChildEndedError
from .registry import RegisteredCase
from .support import outcome_in_place_of_waiting, outcome_without_support

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
    """In place of a case, which needs a process of its own, try whether the platform has its callback at all.

    A pass says that it has.
    """
    return outcome_without_support(case, Case(implementation, case.layout, devices, case.callback)) or Outcome(
        Verdict.PASS
    )
