"""What the callbacks of a soak record: the oracle judges it when nothing runs, and then it is forgotten.

Nothing here has a lock: a signal handler that comes under it could wait for a program whose callback waits for it.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..model.worlds import ExpectedEvent, Need
from ..oracle.checkers import Anomaly, check_barrier, check_ownership, judge
from ..oracle.history import Event, History
from ..oracle.verdicts import Stage
from ..spec.callbacks import Runs
from .specs import NUMBERS, RESULT_MARK, SMALL, ProgramSpec, Shape, Step, base_code, parts_of

NOT_YET = 1 << 62
"""A time after all others."""
ONE_IN = 8
"""Of so many arrays one is kept, to see that it does not change."""
MOST_KEPT = 24


class PlantedError(Exception):
    """What a callback of the soak raises on purpose."""

    def __init__(self, number: int, slot: int, step: int) -> None:
        super().__init__(f"planted in run {number} on slot {slot} at step {step}.")
        self.key = number, slot, step


@dataclass(eq=False)
class Run:
    """One run of a program, with what its callbacks have recorded."""

    number: int
    thread: str
    """Runs of one thread are in the order of their dispatch on each device."""
    shape: Shape
    devices: tuple[int, ...]
    inside: bool = False
    """Whether it begins in a callback or in a handler of signals, where nothing is queued: its order is its own."""
    fails_at: tuple[int, int] | None = None
    """Slot and step at which its computation ends with an error."""
    effects: Mapping[tuple[int, int], Callable[[], Any]] = field(default_factory=dict)
    begun: int = field(default_factory=time.monotonic_ns)
    returned: int = NOT_YET
    """The times before and after its dispatch, in monotonic nanoseconds."""
    complete: int = NOT_YET
    """When a barrier returned that waits for its callbacks."""
    events: list[Event] = field(default_factory=list)
    """Several threads append to it."""

    def step_of(self, event: Event) -> Step:
        return self.shape.steps[parts_of(int(event.leaves[0]))[2]]

    def actual(self, *, ordered: bool) -> Iterator[Event]:
        return (event for event in self.events if self.step_of(event).callback.ordered is ordered)

    def expected(self, *, ordered: bool) -> Iterator[ExpectedEvent]:
        """On each device; none after the step that ends the computation."""
        for slot, device in enumerate(self.devices):
            code = base_code(self.number, slot)
            for place, step in enumerate(self.shape.steps):
                if step.callback.ordered is ordered:
                    need = Need.ONCE if step.callback.runs is Runs.ONCE else Need.AT_LEAST_ONCE
                    yield ExpectedEvent(step.site, device, (np.asarray(code + place, np.int32),), need=need)
                if self.fails_at == (slot, place):
                    break

    def __str__(self) -> str:
        return f"run {self.number} of {self.thread} ({self.shape.spec}; {self.shape.trips} rounds)"


class Record:
    """The runs since nothing ran last, and the anomalies of all."""

    def __init__(self) -> None:
        self.anomalies: list[Anomaly] = []
        self.events = self.runs = self.failures = 0
        self._runs: dict[int, Run] = {}
        self._unreported: dict[tuple[int, int, int], str] = {}
        self._numbers, self._sequence, self._arrays, self._counted = (itertools.count(first) for first in (1, 0, 1, 1))
        self._kept: deque[Event] = deque()

    def waiting(self) -> list[str]:
        """A text of the runs for which no barrier has waited yet."""
        return [
            f"{run}: {len(run.events)} of {len(run.shape.steps) * len(run.devices)} callbacks"
            for run in list(self._runs.values())
            if run.complete == NOT_YET
        ]

    def note(self, kind: str, witness: str) -> None:
        self.anomalies.append(Anomaly(kind, Stage.CALLBACK, witness))

    def begin(self, thread: str, shape: Shape, devices: tuple[int, ...], **more: Any) -> Run:
        """The dispatch of a run begins."""
        number = self.runs = next(self._numbers)
        run = Run(number % NUMBERS, thread, shape, devices, **more)
        self._runs[run.number] = run
        return run

    def fetched(self, run: Run, results: Iterable[int]) -> None:
        """The run's results are here, one for each device."""
        actual = list(results)
        expected = [run.shape.result(run.number, slot) for slot in range(len(run.devices))]
        if run.fails_at is not None:
            self.note("no error", f"{run} was to fail at {run.fails_at}, and has a result")
        elif actual != expected:
            self.note("result", f"{run}: the results are {actual}, expected {expected}")

    def raised(self, run: Run, error: BaseException, in_thread: bool) -> None:
        """The run ended with an error; `in_thread` if its callbacks run in the dispatching thread."""
        if run.fails_at is None:
            self.note("error", f"{run} ended with {_short(repr(error))}")
        elif str(PlantedError(run.number, *run.fails_at)) not in str(error):
            self.note("wrong error", f"{run} failed at {run.fails_at}, and ended with {_short(repr(error))}")
        elif in_thread and not isinstance(error.__cause__, PlantedError):
            self.note("wrong error", f"{run}: the cause of {_short(repr(error))} is {error.__cause__!r}")

    def barrier(self, began: int, thread: str | None = None) -> None:
        """A barrier that began then has returned: it has waited for all runs whose dispatch had returned before."""
        now = time.monotonic_ns()
        for run in list(self._runs.values()):
            if run.returned < began and thread in (None, run.thread):
                run.complete = min(run.complete, now)

    def plan_failure(self, key: tuple[int, int, int], what: str) -> Callable[[], None]:
        """What a callback does that is to fail."""

        def fail() -> None:
            self._unreported[key] = what
            raise PlantedError(*key)

        return fail

    def reported(self, errors: Iterable[BaseException]) -> None:
        """A barrier has reported that callbacks raised these."""
        for error in errors:
            if isinstance(error, PlantedError) and self._unreported.pop(error.key, None) is not None:
                self.failures += 1
            else:
                what = "what did not fail, or what was reported before"
                self.note("wrong failure", f"a barrier reported {what}: {_short(repr(error))}")

    def saw(self, site: str, spec: ProgramSpec | None, code: int, data: Any = None, device: int | None = None) -> Any:
        """A callback runs; returns its result, or does what the run has planned for this step."""
        number, slot, place = parts_of(code)
        run = self._runs.get(number)
        if run is None or slot >= len(run.devices) or place >= len(run.shape.steps):
            words = "which is over, or never was" if run is None else f"which has no such step: {run}"
            self.note("unexpected", f"a callback ran step {place} on slot {slot} of run {number}, {words}")
            return None
        if spec is not None and spec is not run.shape.spec:
            site = f"{site} of {spec}"
        leaves = (np.asarray(code, np.int32), *(() if data is None else self._wrong(data, code, run.shape.spec)))
        sequence, begin = next(self._sequence), time.monotonic_ns()
        if not run.inside:
            # Handlers of signals go on while all else hangs.
            self.events = next(self._counted)
        try:
            if effect := run.effects.get((slot, place)):
                effect()
        finally:
            event = Event(sequence, site, leaves, device=device, begin=begin, end=time.monotonic_ns())
            run.events.append(event)
        return np.int32(code ^ RESULT_MARK) if run.shape.steps[place].callback.returns_new_value else None

    def _wrong(self, data: Any, code: int, spec: ProgramSpec) -> tuple[Any, ...]:
        """What is wrong with the array beside a code. A few that are right are kept for a while."""
        value = np.asarray(code & (1 if spec.dtype == "bool" else SMALL)).astype(data.dtype)
        if data.dtype.name != spec.dtype or data.size != spec.size or not (data == value).all():
            return (np.array(data[:4]),)
        if not next(self._arrays) % ONE_IN:
            self._kept.append(Event(0, str(spec), (data.copy(),), kept=(data,)))
            if len(self._kept) > MOST_KEPT:
                self.anomalies += check_ownership(History((self._kept.popleft(),)))
        return ()

    def judge(self) -> None:
        """Nothing runs, and a barrier has returned: judge all runs, and forget them."""
        runs, self._runs = list(self._runs.values()), {}
        for what in self._unreported.values():
            self.note("failure not reported", f"no barrier reported {what}")
        self._unreported.clear()
        in_order: defaultdict[Any, list[Run]] = defaultdict(list)
        for run in runs:
            in_order[run.number if run.inside else run.thread].append(run)
        for some in in_order.values():
            self._judge(some, ordered=True)
        self._judge(runs, ordered=False)
        for run in runs:
            awaited = tuple(event for event in run.events if run.step_of(event).callback.runs is Runs.ONCE)
            if run.complete != NOT_YET:
                self.anomalies += check_barrier(History(awaited, run.complete))
        self._check_order_of_programs([run for run in runs if not run.inside])
        self.anomalies += check_ownership(History(tuple(self._kept)))
        self._kept.clear()

    def _judge(self, runs: list[Run], ordered: bool) -> None:
        expected = [event for run in runs for event in run.expected(ordered=ordered)]
        actual = [event for run in runs for event in run.actual(ordered=ordered)]
        actual.sort(key=lambda event: event.sequence)
        found = judge(expected, [], History(tuple(actual)), [], "device", ordered)
        if found:
            whose = runs[0] if len(runs) == 1 else f"{len(runs)} runs, the first of them {runs[0]}"
            self.note(found[0].kind, f"{whose}: {found[0].witness}")
            self.anomalies += found[1:]

    def _check_order_of_programs(self, runs: list[Run]) -> None:
        """On each device a program begins after the end of all whose dispatch had returned before."""
        spans: defaultdict[int, list[tuple[int, int, Run]]] = defaultdict(list)
        for run in runs:
            sequences: defaultdict[int, list[int]] = defaultdict(list)
            for event in run.actual(ordered=True):
                sequences[parts_of(int(event.leaves[0]))[1]].append(event.sequence)
            for slot, found in sequences.items():
                spans[run.devices[slot]].append((min(found), max(found), run))
        for device, of_device in spans.items():
            for (_, end, earlier), (begin, _, later) in itertools.permutations(of_device, 2):
                if earlier.returned < later.begun and end > begin:
                    self.note("order of programs", f"device {device} began {later} before the end of {earlier}")


def _short(text: str) -> str:
    """The end of a traceback names the error."""
    return text if len(text) < 1200 else f"{text[:600]} … {text[-600:]}"
