"""Runs a program in this process and judges it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ..implementations import Implementation
from ..model.programs import INPUTS, Prediction
from ..model.transforms import Setting
from ..model.worlds import RefusalError
from ..oracle.checkers import Anomaly, judge
from ..oracle.history import History, Recorder
from ..oracle.observations import Observation
from ..oracle.stages import refusal_of, stage_of, summary
from ..oracle.verdicts import Outcome, Stage, Verdict
from ..planning.cells import ProgramCell
from ..spec.callbacks import Refusal
from ..spec.configurations import CONTEXTS, PLACEMENTS
from .processes import LATEST_SECONDS

REFUSED = "refused"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a program, and what it rests on."""

    verdict: Verdict = Verdict.PASS
    anomalies: Sequence[Anomaly] = ()
    history: History = History(())
    shown: str = ""
    """Of a good program: `lowered`, `compiled` or `refused`."""

    @property
    def is_refused(self) -> bool:
        return self.shown == REFUSED

    def outcome(self, seconds: float) -> Outcome:
        if not self.anomalies:
            return Outcome(self.verdict, None, "", seconds)
        first = self.anomalies[0]
        more = f" (and {len(self.anomalies) - 1} more)" if len(self.anomalies) > 1 else ""
        words, events = f"{first}{more}", [event.as_json() for event in self.history.events]
        outcome = Outcome(self.verdict, first.stage, words, seconds, events, anomaly=first.kind)
        return replace(outcome, evidence=first.evidence, cause=first.cause)


def run_program(
    cell: ProgramCell, implementation: Implementation, recorder: Recorder, devices: Sequence[jax.Device]
) -> Judgement:
    seen, prediction = observed(cell, implementation, recorder, devices)
    history = seen.history
    if seen.refused:
        return Judgement(history=history, shown=REFUSED)
    if seen.verdict or prediction is None:
        return Judgement(seen.verdict or Verdict.FAIL, [*seen.anomalies], history)
    values = [parts[0] for parts in seen.results]

    def judged(history: History) -> list[Anomaly]:
        platform, ordered = cell.topology.platform, cell.callback.ordered
        return judge(prediction.events, prediction.results, history, values, platform, ordered)

    anomalies = judged(history)
    if any(anomaly.kind == "lost" for anomaly in anomalies):
        # A callback that runs after the barrier is late, and not lost.
        time.sleep(LATEST_SECONDS)
        history = recorder.history()
        anomalies = judged(history)
    return Judgement(Verdict.FAIL if anomalies else Verdict.PASS, anomalies, history)


def observed(
    cell: ProgramCell, implementation: Implementation, recorder: Recorder, devices: Sequence[jax.Device]
) -> tuple[Observation, Prediction | None]:
    """Run a cell's program in this process, which may be one of several; None for a program that must be refused."""
    process = jax.process_index()
    try:
        prediction = cell.prediction_in(process)
        refusal = None
    except RefusalError as refused:
        prediction, refusal = None, refused.refusals

    def ended(verdict: Verdict, anomalies: Sequence[Anomaly]) -> tuple[Observation, Prediction | None]:
        return Observation(process, recorder.history(), (), verdict, tuple(anomalies)), prediction

    recorder.start()
    try:
        with _in_force(cell, devices, recorder) as chosen:
            probe = implementation.probe(cell.callback, recorder, chosen, cell.data)
            function = cell.program.jax_function(
                Setting(probe, chosen, PLACEMENTS[cell.placement].grid, cell.taps_tangents)
            )
            results = [function(jax.numpy.float32(number)) for number in INPUTS]
            values = [_parts(result) for result in results]
    except Exception as error:
        # The failure is judged here; the barrier only keeps it out of the next cell.
        with suppress(Exception):
            implementation.barrier()
        if refusal is None:
            return ended(*judge_error(error, stage_of(error)))
        if anomalies := check_refusal(refusal, error):
            if refusal_of(error, stage_of(error)):
                # The platform has refused the callback before the callback could refuse the program.
                return ended(*judge_error(error, stage_of(error)))
            return ended(Verdict.FAIL, anomalies)
        return Observation(process, recorder.history(), refused=True), prediction

    try:
        implementation.barrier()
    except Exception as error:
        return ended(*judge_error(error, Stage.BARRIER))
    recorder.mark_barrier()
    if prediction is None:
        what = " and ".join(refusal or {})
        witness = f"the program ran, and {what} of {cell.callback.name} must be refused"
        return ended(Verdict.FAIL, [Anomaly("not refused", Stage.TRACE, witness)])
    return Observation(process, recorder.history(), values), prediction


def _parts(result: jax.Array) -> list[np.ndarray[Any, Any]]:
    """The whole result; if other processes have a part of it, once from each device of this process.

    It waits for all devices, also where the first one has the whole result: callbacks of the others that run later
    would be in the history of the next cell.
    """
    jax.block_until_ready(result)
    if not isinstance(result, jax.Array) or result.is_fully_addressable or not result.is_fully_replicated:
        return [np.asarray(result)]
    return [np.asarray(shard.data) for shard in result.addressable_shards]


@contextmanager
def _in_force(cell: ProgramCell, devices: Sequence[jax.Device], recorder: Recorder) -> Iterator[Sequence[jax.Device]]:
    """Choose the cell's devices and switch on its configuration."""
    chosen = PLACEMENTS[cell.placement].choose(devices)
    recorder.device_indices = {device.id: index for index, device in enumerate(chosen)}
    configuration = CONTEXTS.get(cell.configuration, nullcontext)
    # The first device is the default without a setting, and each setting makes the cell less plain.
    place = nullcontext() if chosen[0] == devices[0] else jax.default_device(chosen[0])
    with place, configuration():
        yield chosen


def judge_error(error: Exception, stage: Stage) -> tuple[Verdict, list[Anomaly]]:
    if cause := refusal_of(error, stage):
        return Verdict.UNSUPPORTED, [Anomaly("unsupported", stage, summary(error), cause=cause)]
    return Verdict.FAIL, [Anomaly("error", stage, summary(error))]


def check_refusal(refused: Mapping[str, Refusal], error: Exception) -> list[Anomaly]:
    """The error has the right type, and its text names a remedy.

    If the callback refuses several transforms, JAX decides which of them reaches it first.
    """
    what = " and ".join(refused)
    of_right_type = [refusal for refusal in refused.values() if isinstance(error, refusal.errors)]
    if not of_right_type:
        names = sorted({kind.__name__ for refusal in refused.values() for kind in refusal.errors})
        witness = f"{what} must be refused with {' or '.join(names)}, got {summary(error)}"
        return [Anomaly("wrong refusal", stage_of(error), witness)]
    words = [word for refusal in of_right_type for word in refusal.words]
    if not any(word in str(error) for word in words):
        witness = f"refusing {what} must name {' or '.join(words)}: {summary(error)}"
        return [Anomaly("refusal without a way out", Stage.TRACE, witness)]
    return []
