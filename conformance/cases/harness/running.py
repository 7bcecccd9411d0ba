"""Run fault cells: plant a misbehaving callback and check its effects.

Each scenario returns anomalies. A scenario that may crash, hang or poison its process runs in a process of its own,
where a crash or a hang is a result like any other.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax

from ...implementations import Implementation
from ...oracle.checkers import Anomaly
from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Outcome, Verdict
from ...spec.jax_versions import JaxRuntimeError
from .bench import Bench
from .child_processes import VictimEndedError
from .registry import Fault
from .support import outcome_in_place_of_waiting, outcome_without_support


def run_fault(fault: Fault, implementation: Implementation, devices: Sequence[jax.Device]) -> Outcome:
    bench = Bench(implementation, fault.layout, devices)
    started = time.perf_counter()
    if waiting := outcome_in_place_of_waiting(fault, bench):
        return waiting
    try:
        anomalies = fault.plant(bench)
    except VictimEndedError as error:
        lacking = outcome_without_support(fault, bench, started)
        return replace(lacking or error.outcome, seconds=time.perf_counter() - started)
    except Exception as error:
        if not _is_of_the_program(error, implementation):
            raise
        anomalies = [Anomaly("error", stage_of(error), f"the program failed: {summary(error)}")]
    seconds = time.perf_counter() - started
    if not anomalies:
        return Outcome(Verdict.PASS, seconds=seconds)
    if lacking := outcome_without_support(fault, bench, started):
        return replace(lacking, seconds=time.perf_counter() - started)
    witness = "; ".join(str(anomaly) for anomaly in anomalies)
    return Outcome(Verdict.FAIL, anomalies[0].stage, witness, seconds, anomaly=anomalies[0].kind)


def try_callback_of(fault: Fault, implementation: Implementation, devices: Sequence[jax.Device]) -> Outcome:
    """In place of a fault, which needs a process of its own, try whether the platform has its callback at all.

    A pass says that it has.
    """
    return outcome_without_support(fault, Bench(implementation, fault.layout, devices)) or Outcome(Verdict.PASS)


_SUITE = Path(__file__).parents[2]
_IMPLEMENTATIONS = (_SUITE / "implementations", _SUITE / "mutants")


def _is_of_the_program(error: Exception, implementation: Implementation) -> bool:
    """Whether an exception comes from the implementation, and not from an error in the suite."""
    if isinstance(error, JaxRuntimeError | implementation.callback_exception):
        return True
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if any(raised_in.is_relative_to(folder) for folder in _IMPLEMENTATIONS):
        return True
    return not raised_in.is_relative_to(_SUITE)
