"""What `hostcb.trace` records: each run of a user function, and each hand-over of a tap (H22)."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from typing import Any, Literal

from ..._spec.naming import device_name, shown
from ..._threads.running import running
from . import observers
from .observers import HandedOver, Observed, Observer, Run
from .trace_file import TraceFile

# Longer texts of exceptions are cut.
MOST_CHARACTERS = 400

# The tracks of threads come after those of devices, whose ids are large in the second process and those after it.
_BEHIND_DEVICES = 2_000_000_000


class _Thread(threading.local):
    """The current thread: its name on its track, and the object that stands for it in keys."""

    def __init__(self) -> None:
        # For a thread of the runtime, `threading.current_thread` would make a dummy object.
        own = running.thread_is_pythons
        self.name = threading.current_thread().name if own else f"runtime thread {threading.get_native_id()}"
        self.ident = threading.get_ident()
        self.key = object()


_thread = _Thread()


class Recorder(Observer):
    """One trace: turns what happened into events of its file."""

    of_hand_overs = True

    def __init__(self, path: str, values: bool) -> None:
        self._values = values
        # Made before the clock starts, so that no event is older than the trace.
        self.file = TraceFile(path)
        # The first half of each arrow, by the number of its hand-over. The second half writes both.
        self._halves: dict[int, str] = {}
        # The tracks of devices on which a function runs: its thread, and the outermost run.
        self._lanes: dict[tuple[Any, int], tuple[object, Run]] = {}
        self._first = next(observers._numbers) + 1
        self._begin = time.monotonic_ns()
        # For programs that compare the trace with times of their own.
        clock = {"ph": "M", "tid": 0, "name": "clock", "args": {"monotonic_ns": self._begin}}
        self.file.add(self.file.text(clock))

    def enqueued(self, host: Observed, device: Any, handed: HandedOver) -> None:
        if handed.begin < self._begin:
            return
        end = time.monotonic_ns()
        track = self._thread_track()
        args = {"device": device_name(device), "thread_id": _thread.ident}
        self._slice(track, handed.number, handed.begin, end, host, "queue", f"queue: {_title(host)}", args)
        self._join(handed, "s", track, handed.begin)

    def started(self, run: Run) -> tuple[Any, int, list[str]]:
        lane = None if run.device is None else self._take_lane(run)
        # Not the run's own begin: the slice before it on this lane may have ended after that.
        begin = time.monotonic_ns()
        return lane, begin, [shown(array) for array in run.arrays] if self._values else []

    def ended(self, run: Run, state: tuple[Any, int, list[str]], failure: BaseException | None) -> None:
        end = time.monotonic_ns()
        lane, begin, values = state
        # Only the outermost run on a lane has set its entry.
        if self._lanes.get(lane, (None, None))[1] is run:
            self._lanes.pop(lane, None)
        args: dict[str, Any] = {}
        if lane is None:
            track = self._thread_track()
        else:
            device, number = lane
            args["device"] = device_name(device)
            name = args["device"] + (f" ({number + 1})" if number else "")
            track = self.file.track(lane, name, min(100 * device.id + number, _BEHIND_DEVICES - 1))
        if values:
            args["values"] = values
        if failure is not None:
            args["error"] = _brief(failure)
        args |= {"thread": _thread.name, "thread_id": _thread.ident}
        category = run.host.callback.kind.name + (",failed" if failure is not None else "")
        self._slice(track, run.number, begin, end, run.host, category, _title(run.host), args)
        handed = run.arrays
        if isinstance(handed, HandedOver) and handed.begin >= self._begin:
            self._join(handed, "f", track, begin)

    def _take_lane(self, run: Run) -> tuple[Any, int]:
        """Take the device's first lane without a run of another thread: slices of one track must not overlap."""
        for number in itertools.count():
            lane = (run.device, number)
            thread, _ = self._lanes.setdefault(lane, (_thread.key, run))
            if thread is _thread.key:
                break
        return lane

    def _thread_track(self) -> int:
        return self.file.track(_thread.key, _thread.name, _BEHIND_DEVICES)

    def _ts(self, moment: int) -> float:
        """Return a moment in microseconds since the begin of the trace."""
        return (moment - self._begin) / 1e3

    def _slice(
        self,
        track: int,
        number: int,
        begin: int,
        end: int,
        host: Observed,
        category: str,
        name: str,
        args: dict[str, Any],
    ) -> None:
        args = {**_about(host), **args, "sequence": number - self._first}
        where = {"ph": "X", "tid": track, "ts": self._ts(begin), "dur": (end - begin) / 1e3}
        self.file.add(self.file.text({**where, "cat": category, "name": name, "args": args}))

    def _join(self, handed: HandedOver, end: Literal["s", "f"], track: int, moment: int) -> None:
        """Write an arrow when both of its ends are known: a tap may be queued still when the trace ends."""
        where = f'"pid":{self.file.process},"tid":{track},"ts":{self._ts(moment)}'
        text = f'{{{where},"ph":"{end}","bp":"e","id":{handed.number},"cat":"queue","name":"tap"}}'
        other = self._halves.setdefault(handed.number, text)
        if other is not text:
            self._halves.pop(handed.number, None)
            self.file.add(*sorted((other, text), key=lambda each: '"ph":"f"' in each))


def _about(host: Observed) -> dict[str, Any]:
    """Return what is the same in all slices of a callback in a program."""
    if host.about is None:
        program = {"program": host.program.name} if host.program.name else {}
        operands = [f"{aval.dtype}{list(aval.shape)}" for aval in host.operand_avals]
        host.about = {
            "callback": host.callback.kind.name,
            "function": host.callback.name,
            **program,
            "operands": operands,
        }
    return host.about


def _title(host: Observed) -> str:
    return re.sub(r" \([^()]*:\d+\)$", "", host.callback.name)[:MOST_CHARACTERS]


def _brief(exception: BaseException) -> str:
    try:
        text = str(exception)
    except Exception as broken:
        text = f"its text raises {type(broken).__name__}"
    return f"{type(exception).__qualname__}: {text}"[:MOST_CHARACTERS]


# The traces that are on with their files, and who has a file: a trace that is on or begins.
_traces: dict[Recorder, str] = {}
_taken: dict[str, object] = {}


def begin(path: str, values: bool) -> Recorder:
    """Start a trace.

    Raises:
        OSError: the file cannot be written.
        ValueError: another trace writes this file.
    """
    file, mine = os.path.realpath(path), object()
    # Two threads may ask for one file at the same time.
    if _taken.setdefault(file, mine) is not mine:
        raise ValueError(
            f"hostcb.trace: {shown(path)} is the file of a trace that is on. Give each trace its own file."
        )
    try:
        recorder = Recorder(path, values)
        _traces[recorder] = file
        observers.observe(recorder)
    except BaseException:
        _taken.pop(file, None)
        raise
    return recorder


def end(recorder: Recorder) -> None:
    """End a trace, and complete its file."""
    file = _traces.pop(recorder, None)
    observers.leave(recorder)
    try:
        recorder.file.close()
    finally:
        if file is not None:
            _taken.pop(file, None)


def reset_after_fork() -> None:
    """In a forked child: the traces are the parent's."""
    for recorder in list(_traces):
        recorder.file.reset_after_fork()
    observers.leave(*_traces)
    _traces.clear()
    _taken.clear()
