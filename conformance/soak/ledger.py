"""Checks each callback when it comes, and forgets it.

It knows the runs of programs that are not over, and for each the exact history that is still to come.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .codes import NUMBERS, RESULT_MARK, parts_of
from .keeping import Keeping
from .kinds import KINDS
from .runs import NOT_YET, PlantedError, Run

MOST_OUTSTANDING = 4096
"""The runs that the ledger may have at a time. More would mean that it forgets nothing."""

MOST_ANOMALIES = 20

_PLANTED = re.compile(r"planted in run (\d+) on slot (\d+) at step (\d+)\.")


@dataclass(frozen=True)
class Anomaly:
    kind: str
    witness: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.witness}"


class Tally:
    """What one thread has forgotten. Each change is one statement without a call, so no signal comes in its middle."""

    def __init__(self) -> None:
        self.runs = 0
        self.by_kind: defaultdict[str, int] = defaultdict(int)


class Ledger:
    def __init__(self) -> None:
        self.outstanding: dict[int, Run] = {}
        self.anomalies: list[Anomaly] = []
        self.failed = threading.Event()
        """Set with the first anomaly."""
        # By thread. A lock would be no good: a signal handler that comes under it may wait for a program whose callback
        # waits for the lock.
        self._tallies: dict[int, Tally] = {}
        self.failures = 0
        """Failures that were planted, and that a barrier has reported."""
        self._unreported: dict[tuple[int, int, int], str] = {}
        self._numbers = itertools.count(1)
        self._ticks = itertools.count(1)
        self._lanes: dict[tuple[str, int], deque[Run]] = {}
        self._on_device: dict[int, dict[int, Run]] = {}
        self._retired: deque[tuple[int, str]] = deque(maxlen=256)
        self._keeping = Keeping(self.note)

    @property
    def by_kind(self) -> Counter[str]:
        """Callbacks of all runs that are over."""
        counts: Counter[str] = Counter()
        for tally in list(self._tallies.values()):
            counts.update(dict(tally.by_kind))
        return counts

    @property
    def events(self) -> int:
        return sum(self.by_kind.values())

    @property
    def runs(self) -> int:
        return sum(tally.runs for tally in list(self._tallies.values()))

    # What the threads say ---------------------------------------------------------------------------

    def tick(self) -> int:
        """A number greater than all earlier ones."""
        return next(self._ticks)

    def new_number(self) -> int:
        return next(self._numbers) % NUMBERS

    def begin(self, run: Run) -> None:
        """The run's dispatch begins."""
        if len(self.outstanding) >= MOST_OUTSTANDING:
            self.note("the ledger grows", f"{MOST_OUTSTANDING} runs are not over; the oldest is {self._oldest()}")
        if not run.inside and run.shape.ordered:
            for slot, device in enumerate(run.devices):
                if run.lengths[slot]:
                    self._lanes.setdefault((run.lane, device), deque()).append(run)
                    self._on_device.setdefault(device, {})[run.number] = run
        run.begun = self.tick()
        self.outstanding[run.number] = run

    def returned(self, run: Run) -> None:
        """The run's dispatch has returned, or raised."""
        run.returned = self.tick()

    def fetched(self, run: Run, results: Iterable[int]) -> None:
        """The run's results are here, one for each device."""
        found = list(results)
        wanted = [run.shape.result(run.number, slot) for slot in range(len(run.devices))]
        if found != wanted:
            self.note("wrong result", f"{run}: the results are {found}, expected {wanted}")
        if run.unanswered:
            self.note("lost", f"{run}: its result is here, and these never came: {'; '.join(run.unanswered)}")
        run.fetched = True

    def raised(self, run: Run, error: BaseException, in_thread: bool) -> None:
        """The run ended with an error, as planted; `in_thread` if its callback ran in the dispatching thread."""
        assert run.fails_at is not None
        run.fetched = True
        keys = [tuple(map(int, key)) for key in _PLANTED.findall(str(error))]
        if (run.number, *run.fails_at) not in keys:
            self.note("wrong error", f"{run} failed at {run.fails_at}, and ended with {_short(error)}")
        elif in_thread and not isinstance(error.__cause__, PlantedError):
            self.note("wrong error", f"{run}: the cause of {_short(error)} is {error.__cause__!r}")

    def settle(self, before: int, words: str, lane: str | None = None) -> None:
        """After a barrier: all runs whose dispatch returned before this tick must be complete, and are forgotten."""
        for run in list(self.outstanding.values()):
            if run.returned < before and (lane is None or run.lane == lane):
                if run.awaited:
                    self.note("lost", f"after {words}, {run} still waits for {'; '.join(run.awaited)}")
                if not run.unanswered:
                    self._forget(run)

    def settle_one(self, run: Run, words: str) -> None:
        """One run must be complete."""
        if missing := [*run.awaited, *run.unanswered]:
            self.note("lost", f"{words}, {run} still waits for {'; '.join(missing)}")
        self._forget(run)

    def reported(self, texts: Iterable[str]) -> None:
        """A barrier has reported failures of callbacks."""
        for text in texts:
            found = _PLANTED.search(text)
            key = (int(found[1]), int(found[2]), int(found[3])) if found else None
            if key is None or self._unreported.pop(key, None) is None:
                # The end of a traceback names the error.
                shown = text if len(text) < 1200 else f"{text[:600]} … {text[-600:]}"
                self.note(
                    "wrong failure", f"a barrier reported what did not fail, or what was reported before: {shown}"
                )
            else:
                self.failures += 1

    def check_reported(self) -> None:
        """When nothing runs and a barrier has returned, every failure has been reported."""
        for key, what in list(self._unreported.items()):
            if self._unreported.pop(key, None) is not None:
                self.note("failure not reported", f"no barrier reported {what}")

    def check_empty(self) -> None:
        """When nothing runs, the ledger has nothing left."""
        for run in list(self.outstanding.values()):
            self.note("lost", f"at the end of a round, {run} is not over: {'; '.join([*run.awaited, *run.unanswered])}")
        self.outstanding.clear()
        self._keeping.check_all()

    # What the callbacks say -------------------------------------------------------------------------

    def saw(self, site: int, program: Any, code: int, data: Any, device: int | None) -> Any:
        """A callback came; returns its result, or does what the run has planned for this step."""
        number, slot, position = parts_of(code)
        run = self.outstanding.get(number)
        step = run.shape.steps.get(position) if run and slot < len(run.devices) else None
        if run is None or step is None:
            return self._foreign(number, slot, position, run)
        if site >= 0 and (step.site != site or run.shape.spec is not program):
            self.note("wrong function", f"{run}: step {position} ran the function of place {site} of {program}")
        if data is not None:
            self._keeping.check(data, code, run.shape.spec.dtype, run.shape.spec.size, run)
        if device is not None and device != run.devices[slot]:
            self.note("wrong device", f"{run}: step {position} came from {device}, expected {run.devices[slot]}")
        kind = KINDS[step.kind]
        if kind.ordered:
            self._saw_ordered(run, slot, position)
        elif kind.once:
            # One operation, so that of two equal callbacks at a time one finds nothing.
            try:
                run.once[slot].remove(position)
            except KeyError:
                self.note("doubled", f"{run}: device {run.devices[slot]} ran unordered step {position} again")
        else:
            run.needed[slot].discard(position)
        if run.effects and (effect := run.effects.get((slot, position))):
            effect()
            if run.fails_at == (slot, position):
                raise AssertionError("a planted failure did not raise")
        return np.int32(code ^ RESULT_MARK) if kind.returns else None

    def _saw_ordered(self, run: Run, slot: int, position: int) -> None:
        cursor, ordered = run.cursors[slot], run.shape.ordered
        if cursor >= run.lengths[slot] or ordered[cursor] != position:
            self._out_of_order(run, slot, position)
            return
        if cursor == 0 and not run.inside:
            self._first_of(run, slot)
        run.cursors[slot] = cursor + 1
        if cursor + 1 == run.lengths[slot] and not run.inside:
            self._last_of(run, slot)

    def _first_of(self, run: Run, slot: int) -> None:
        """The first ordered callback of a run on a device comes after those of all runs that returned before."""
        device = run.devices[slot]
        lane = self._lanes[run.lane, device]
        if lane[0] is not run:
            self.note("order of programs", f"device {device} began {run} before the end of {lane[0]}")
        for other in list(self._on_device[device].values()):
            if other.returned < run.begun and other is not run:
                self.note(
                    "order of programs", f"device {device} began {run} before the end of {other}, which had returned"
                )

    def _last_of(self, run: Run, slot: int) -> None:
        device = run.devices[slot]
        self._on_device[device].pop(run.number, None)
        lane = self._lanes[run.lane, device]
        if lane and lane[0] is run:
            lane.popleft()
        elif run in lane:
            lane.remove(run)

    def plan_failure(self, key: tuple[int, int, int], what: str) -> Callable[[], None]:
        """What a callback does that is to fail."""

        def fail() -> None:
            self._unreported[key] = what
            raise PlantedError(*key)

        return fail

    # Evidence ---------------------------------------------------------------------------------------

    def note(self, kind: str, witness: str) -> None:
        if len(self.anomalies) < MOST_ANOMALIES:
            self.anomalies.append(Anomaly(kind, witness))
        self.failed.set()

    def _out_of_order(self, run: Run, slot: int, position: int) -> None:
        cursor, ordered = run.cursors[slot], run.shape.ordered
        wanted = f"step {ordered[cursor]}" if cursor < run.lengths[slot] else "nothing more"
        kind = "doubled" if position in ordered[:cursor] else "order"
        self.note(kind, f"{run}: device {run.devices[slot]} ran step {position}, expected {wanted}")

    def _foreign(self, number: int, slot: int, position: int, run: Run | None) -> None:
        if run is not None:
            self.note("wrong operand", f"{run} has no step {position} on slot {slot}")
            return
        past = next((words for retired, words in reversed(list(self._retired)) if retired == number), "")
        about = f"which was over: {past}" if past else "which is not known"
        self.note("no program", f"a callback came at step {position} on slot {slot} of run {number}, {about}")

    def _forget(self, run: Run) -> None:
        if self.outstanding.pop(run.number, None) is None:
            # Another thread's barrier was first.
            return
        self._retired.append((run.number, str(run.lane)))
        counts = run.events
        tally = self._tallies.setdefault(threading.get_ident(), Tally())
        tally.runs += 1
        for kind, count in counts.items():
            tally.by_kind[kind] += count

    def _oldest(self) -> Run:
        return next(iter(list(self.outstanding.values())))

    def waiting(self, most: int = 12) -> list[str]:
        """The runs that are not over, in words."""
        runs = list(self.outstanding.values())
        words = []
        for run in runs[:most]:
            stage = "" if run.returned != NOT_YET else ", in its dispatch"
            words.append(f"{run}{stage}: {'; '.join([*run.awaited, *run.unanswered]) or 'complete'}")
        return words + ([f"and {len(runs) - most} more"] if len(runs) > most else [])


def _short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) < 600 else f"{text[:300]} … {text[-300:]}"
