"""What each process saw of one program, as the processes send it, and the verdict on all of them together.

The clock of the events is the machine's, so the events of its processes have one order. Two machines have two clocks:
then the order of events of different processes is not known, and no check needs it.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model.worlds import ExpectedEvent
from .checkers import Anomaly, check_barrier, check_events, check_results, match
from .history import Event, History
from .literals import literal
from .verdicts import Stage, Verdict

Results = Sequence[Sequence[npt.NDArray[Any]]]
"""For each run of a program the parts of its result on the devices of a process, each the whole result."""


@dataclass(frozen=True)
class Wanted:
    """What must happen in one process."""

    events: Sequence[ExpectedEvent]
    results: Sequence[npt.NDArray[Any]]


@dataclass(frozen=True)
class Observation:
    """What one process saw of a program."""

    process: int
    history: History = History(())
    results: Results = ()
    verdict: Verdict | None = None
    """None if the program ran to its end; otherwise what ended it, such as an exception, with its anomalies."""
    anomalies: tuple[Anomaly, ...] = ()
    refused: bool = False
    """Whether the program was refused as it must be."""

    def as_json(self) -> dict[str, Any]:
        return {
            "process": self.process,
            "events": [_event_as_json(event) for event in self.history.events],
            "barrier": self.history.barrier_returned,
            "results": [[_array_as_json(part) for part in parts] for parts in self.results],
            "verdict": self.verdict.value if self.verdict else None,
            "anomalies": [[one.kind, one.stage.value, one.witness] for one in self.anomalies],
            "refused": self.refused,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Observation:
        process = int(data["process"])
        return Observation(
            process,
            History(tuple(_event(event, process) for event in data["events"]), data["barrier"]),
            [[_array(part) for part in parts] for parts in data["results"]],
            Verdict(data["verdict"]) if data["verdict"] else None,
            tuple(Anomaly(kind, Stage(stage), witness) for kind, stage, witness in data["anomalies"]),
            data["refused"],
        )


def merged(observations: Sequence[Observation]) -> History:
    """The events of all processes by the machine's clock, numbered anew. Each process's own keep their order."""
    timed = []
    for seen in observations:
        events = seen.history.events
        begins = itertools.accumulate((event.begin for event in events), max)
        timed += [(begin, seen.process, event) for begin, event in zip(begins, events, strict=True)]
    # The sort is stable, so it keeps the order of equal times in a process.
    timed.sort(key=lambda one: one[:2])
    return History(
        tuple(replace(event, sequence=place, process=process) for place, (_, process, event) in enumerate(timed))
    )


def judge_together(
    wanted: Sequence[Wanted], observations: Sequence[Observation], device_name: str, ordered: bool
) -> tuple[Verdict, list[Anomaly]]:
    """The verdict on a program that ran in several processes; `wanted` is by process."""
    if ended := [seen for seen in observations if seen.verdict]:
        anomalies = [
            replace(one, witness=f"process {seen.process}: {one.witness}") for seen in ended for one in seen.anomalies
        ]
        verdicts = {seen.verdict for seen in ended}
        return (Verdict.UNSUPPORTED if verdicts == {Verdict.UNSUPPORTED} else Verdict.FAIL), anomalies
    if refusing := [seen.process for seen in observations if seen.refused]:
        if len(refusing) == len(observations):
            return Verdict.PASS, []
        others = " and ".join(f"process {seen.process}" for seen in observations if not seen.refused)
        return Verdict.FAIL, [Anomaly("not refused", Stage.TRACE, f"the program ran in {others}, and must be refused")]
    history = merged(observations)
    matching = match([event for one in wanted for event in one.events], history.events)
    anomalies = check_events(matching, history, device_name, ordered)
    for seen in observations:
        # Each process has a barrier of its own, for its own callbacks.
        early = check_barrier(seen.history)
        anomalies += [replace(one, witness=f"process {seen.process}: {one.witness}") for one in early]
    for seen, one in zip(observations, wanted, strict=True):
        anomalies += _check_results(one, seen)
    return (Verdict.FAIL if anomalies else Verdict.PASS), anomalies


def _check_results(wanted: Wanted, seen: Observation) -> list[Anomaly]:
    where = f" in process {seen.process}"
    wrong = check_results(wanted.results, [parts[0] for parts in seen.results], where)
    if wrong:
        return wrong
    further = [parts[part] for parts in seen.results for part in range(1, len(parts))]
    expected = [result for result, parts in zip(wanted.results, seen.results, strict=True) for _ in parts[1:]]
    for value, result in zip(further, expected, strict=True):
        if check_results([result], [value]):
            witness = f"the devices{where} have different results: {value.tolist()}, expected {result.tolist()} on all"
            return [Anomaly("result", Stage.RESULT, witness)]
    return []


def _event_as_json(event: Event) -> dict[str, Any]:
    kept = [_array_as_json(leaf) for leaf in event.kept]
    leaves = [_array_as_json(leaf) for leaf in event.leaves]
    return {
        "site": event.site,
        "leaves": leaves,
        "kept": None if kept == leaves else kept,
        "transforms": repr(event.transforms),
        "device": event.device,
        "thread": event.thread,
        "begin": event.begin,
        "end": event.end,
    }


def _event(data: dict[str, Any], process: int) -> Event:
    leaves = tuple(_array(leaf) for leaf in data["leaves"])
    kept = leaves if data["kept"] is None else tuple(_array(leaf) for leaf in data["kept"])
    try:
        transforms = literal(data["transforms"])
    except (ValueError, SyntaxError):
        # What only a broken callback receives; its text differs from all that is expected.
        transforms = data["transforms"]
    return Event(
        0, data["site"], leaves, kept, transforms, data["device"], data["thread"], data["begin"], data["end"], process
    )


def _array_as_json(array: npt.NDArray[Any]) -> list[Any]:
    array = np.asarray(array)
    name = array.dtype.str if array.dtype.kind == "U" else array.dtype.name
    return [name, list(array.shape), base64.b64encode(array.tobytes()).decode()]


def _array(data: list[Any]) -> npt.NDArray[Any]:
    name, shape, content = data
    return np.ndarray(shape, np.dtype(name), buffer=base64.b64decode(content))
