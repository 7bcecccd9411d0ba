"""Run the programs of a cell in this process and judge them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import jax
import numpy as np

from conformance.callbacks import Refusal, Runs
from conformance.cells import ProgramCell, TableCell
from conformance.checkers import Anomaly, judge
from conformance.configurations import CONTEXTS, PLACEMENTS
from conformance.history import History, Recorder
from conformance.implementations import Implementation
from conformance.model import RefusalError
from conformance.programs import INPUTS
from conformance.stages import backend_says_unsupported, stage_of
from conformance.support_table import GUARANTEED, RETURNS, TableEntry
from conformance.transforms import Setting
from conformance.verdicts import Outcome, Stage, Verdict

LATEST_SECONDS = 0.5
"""How long after the barrier a callback that is missing may still come, to be called late."""


def run_cell(
    cell: ProgramCell,
    implementation: Implementation,
    recorder: Recorder,
    devices: Sequence[jax.Device],
) -> Outcome:
    started = time.perf_counter()
    verdict, anomalies, history = _run(cell, implementation, recorder, devices)
    return _outcome(verdict, anomalies, history, time.perf_counter() - started)


def run_table_cell(
    cell: TableCell,
    implementation: Implementation,
    recorder: Recorder,
    devices: Sequence[jax.Device],
) -> Outcome:
    """Run the programs of an entry until one of them does not bear it out."""
    started = time.perf_counter()
    for program in cell.programs:
        verdict, anomalies, history = _run(program, implementation, recorder, devices)
        if not anomalies:
            anomalies = _check_entry(cell.entry, program, history)
            verdict = _verdict(anomalies)
        if anomalies:
            first = replace(anomalies[0], witness=f"in {program.program.name}: {anomalies[0].witness}")
            return _outcome(verdict, [first, *anomalies[1:]], history, time.perf_counter() - started)
    return Outcome(Verdict.PASS, seconds=time.perf_counter() - started)


def _check_entry(entry: TableEntry, cell: ProgramCell, history: History) -> list[Anomaly]:
    """Whether what a correct program did is what the table says."""
    if entry.column == RETURNS:
        shown = cell.callback.returns_new_value
    elif entry.column == GUARANTEED:
        ran = any(event.site == "unused" for event in history.events)
        # What is not guaranteed may run all the same, unless it is known that nobody needs it.
        shown = ran and (entry.supported or cell.callback.runs is Runs.IF_NEEDED)
    else:
        shown = not _is_refused(cell)
    if shown == entry.supported:
        return []
    answer = "yes" if entry.supported else "no"
    return [Anomaly("table", Stage.TRACE, f"the table says {answer}, the program shows the opposite")]


def _is_refused(cell: ProgramCell) -> bool:
    try:
        _ = cell.prediction
    except RefusalError:
        return True
    return False


def _outcome(verdict: Verdict, anomalies: Sequence[Anomaly], history: History, seconds: float) -> Outcome:
    if not anomalies:
        return Outcome(verdict, None, "", seconds)
    first = anomalies[0]
    more = f" (and {len(anomalies) - 1} more)" if len(anomalies) > 1 else ""
    events = [event.as_json() for event in history.events]
    return Outcome(verdict, first.stage, f"{first}{more}", seconds, events, anomaly=first.kind)


def _run(
    cell: ProgramCell,
    implementation: Implementation,
    recorder: Recorder,
    devices: Sequence[jax.Device],
) -> tuple[Verdict, list[Anomaly], History]:
    try:
        prediction = cell.prediction
        refusal = None
    except RefusalError as refused:
        prediction, refusal = None, refused.refusals

    recorder.start()
    try:
        with _in_force(cell, devices, recorder) as chosen:
            probe = implementation.probe(cell.callback, recorder, chosen, cell.data)
            function = cell.program.jax_function(Setting(probe, chosen, PLACEMENTS[cell.placement].grid))
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
        what = " and ".join(refusal or {})
        witness = f"the program ran, and {what} of {cell.callback.name} must be refused"
        return Verdict.FAIL, [Anomaly("not refused", Stage.TRACE, witness)], history

    def judged(history: History) -> list[Anomaly]:
        platform, ordered = cell.topology.platform, cell.callback.ordered
        return judge(prediction.events, prediction.results, history, values, platform, ordered)

    anomalies = judged(history)
    if any(anomaly.kind == "lost" for anomaly in anomalies):
        # What comes after the barrier is late, and not lost.
        time.sleep(LATEST_SECONDS)
        history = recorder.history()
        anomalies = judged(history)
    return _verdict(anomalies), anomalies, history


@contextmanager
def _in_force(cell: ProgramCell, devices: Sequence[jax.Device], recorder: Recorder) -> Iterator[Sequence[jax.Device]]:
    """Choose the cell's devices and put its configuration in force."""
    chosen = PLACEMENTS[cell.placement].choose(devices)
    recorder.device_indices = {device.id: index for index, device in enumerate(chosen)}
    configuration = CONTEXTS.get(cell.configuration, nullcontext)
    # The first device is the default in any case, and a setting of its own would be one thing more.
    place = nullcontext() if chosen[0] == devices[0] else jax.default_device(chosen[0])
    with place, configuration():
        yield chosen


def _verdict(anomalies: Sequence[Anomaly]) -> Verdict:
    return Verdict.FAIL if anomalies else Verdict.PASS


def _judge_error(error: Exception, stage: Stage) -> tuple[Verdict, list[Anomaly]]:
    if backend_says_unsupported(error, stage):
        return Verdict.UNSUPPORTED, [Anomaly("unsupported", stage, summary(error))]
    return Verdict.FAIL, [Anomaly("error", stage, summary(error))]


def _check_refusal(refused: Mapping[str, Refusal], error: Exception) -> list[Anomaly]:
    """The right error, with words that lead on.

    Where several transforms are refused, which of them meets the callback first is JAX's affair.
    """
    what = " and ".join(refused)
    of_right_type = [refusal for refusal in refused.values() if isinstance(error, refusal.errors)]
    if not of_right_type:
        names = sorted({kind.__name__ for refusal in refused.values() for kind in refusal.errors})
        witness = f"{what} must be refused with {' or '.join(names)}, came {summary(error)}"
        return [Anomaly("wrong refusal", stage_of(error), witness)]
    words = [word for refusal in of_right_type for word in refusal.words]
    if not any(word in str(error) for word in words):
        witness = f"refusing {what} must speak of {' or '.join(words)}: {summary(error)}"
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
    lines = [line.strip() for line in str(error).splitlines()]
    if any(line.endswith("Traceback (most recent call last):") for line in lines[:4]):
        # The callback's own exception is worth more than where its traceback begins.
        lines = [lines[0], *[line for line in lines if re.match(r"[\w.]+: ", line)][-1:]]
    return f"{type(error).__name__}: {' '.join(lines[:4])[:400]}"
