"""Run one program cell in this process and judge it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax
import numpy as np

from conformance.cells import ProgramCell
from conformance.checkers import Anomaly, judge
from conformance.history import History, Recorder
from conformance.implementations import Implementation
from conformance.model import RefusalError
from conformance.programs import INPUTS
from conformance.stages import backend_says_unsupported, stage_of
from conformance.transforms import Setting
from conformance.verdicts import Outcome, Stage, Verdict

WAYS_OUT = {
    "differentiation": ("custom_jvp", "custom_vjp"),
    "vmap": ("vmap_method", "id_tap", "custom_vmap"),
}
"""What the message of a refusal must point to, one of these, by the transform that is refused."""


def run_cell(
    cell: ProgramCell,
    implementation: Implementation,
    recorder: Recorder,
    devices: Sequence[jax.Device],
) -> Outcome:
    started = time.perf_counter()
    verdict, anomalies, history = _run(cell, implementation, recorder, devices)
    seconds = time.perf_counter() - started
    if not anomalies:
        return Outcome(verdict, None, "", seconds)
    first = anomalies[0]
    more = f" (and {len(anomalies) - 1} more)" if len(anomalies) > 1 else ""
    events = [event.as_json() for event in history.events]
    return Outcome(verdict, first.stage, f"{first}{more}", seconds, events)


def _run(
    cell: ProgramCell,
    implementation: Implementation,
    recorder: Recorder,
    devices: Sequence[jax.Device],
) -> tuple[Verdict, list[Anomaly], History]:
    try:
        prediction = cell.program.prediction(cell.callback, cell.topology.device_count)
        refusal = None
    except RefusalError as refused:
        prediction, refusal = None, refused.transforms

    recorder.start()
    probe = implementation.probe(cell.callback, recorder, devices)
    try:
        function = cell.program.jax_function(Setting(probe, devices))
        results = [function(jax.numpy.float32(number)) for number in INPUTS]
        values = [np.asarray(result) for result in results]
    except Exception as error:
        _barrier_after_failure(implementation)
        if refusal is not None:
            anomalies = _check_refusal(refusal, error)
            return _verdict(anomalies), anomalies, recorder.history()
        return *_judge_error(error, stage_of(error)), recorder.history()

    try:
        implementation.barrier()
    except Exception as error:
        return *_judge_error(error, Stage.BARRIER), recorder.history()
    recorder.mark_barrier()

    history = recorder.history()
    if prediction is None:
        what = " and ".join(refusal or ())
        witness = f"the program ran, and {what} of {cell.callback.name} must be refused"
        return Verdict.FAIL, [Anomaly("not refused", Stage.TRACE, witness)], history
    anomalies = judge(prediction.events, prediction.results, history, values, cell.topology.platform)
    return _verdict(anomalies), anomalies, history


def _verdict(anomalies: Sequence[Anomaly]) -> Verdict:
    return Verdict.FAIL if anomalies else Verdict.PASS


def _judge_error(error: Exception, stage: Stage) -> tuple[Verdict, list[Anomaly]]:
    if backend_says_unsupported(error, stage):
        return Verdict.UNSUPPORTED, [Anomaly("unsupported", stage, summary(error))]
    return Verdict.FAIL, [Anomaly("error", stage, summary(error))]


def _check_refusal(refused: Sequence[str], error: Exception) -> list[Anomaly]:
    """The right error, which names a way out for a transform that is refused.

    Where several are, which of them meets the callback first is JAX's affair.
    """
    what = " and ".join(refused)
    if not isinstance(error, NotImplementedError):
        witness = f"{what} must be refused with NotImplementedError, came {summary(error)}"
        return [Anomaly("wrong refusal", stage_of(error), witness)]
    ways_out = [way_out for transform in refused for way_out in WAYS_OUT[transform]]
    if not any(way_out in str(error) for way_out in ways_out):
        witness = f"refusing {what} must point to {' or '.join(ways_out)}: {summary(error)}"
        return [Anomaly("refusal without a way out", Stage.TRACE, witness)]
    return []


def _barrier_after_failure(implementation: Implementation) -> None:
    # The failure itself is being judged already; this only keeps it out of the next cell.
    try:
        implementation.barrier()
    except Exception as error:
        del error


def summary(error: BaseException) -> str:
    """An exception as one line of a report."""
    first_lines = " ".join(line.strip() for line in str(error).splitlines()[:4])
    return f"{type(error).__name__}: {first_lines[:400]}"
