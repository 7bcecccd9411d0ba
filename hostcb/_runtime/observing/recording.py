"""What `hostcb.trace` records: each run of a user function, and each hand-over of a tap (H22).

`Host` reads the reference `on` where it hands a value over. It is None while no trace is on, so a program that was
compiled before a trace began is recorded as well. `watching` reports the runs.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..._native.library import library
from ..._spec.callback import HostCallback
from ..._spec.naming import device_name, shown
from ..._threads.running import running
from . import watching
from .trace_file import TraceFile
from .watching import Watched

# Runs and hand-overs, in the order in which they began.
_numbers = itertools.count()

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


class HandedOver(tuple[Any, ...]):
    """The arrays of a tapped value that was queued while a trace was on, and when."""

    number: int
    begin: int


class Recorder:
    """One trace: turns what happened into events of its file."""

    def __init__(self, path: str, values: bool) -> None:
        self.values = values
        # Made before the clock starts, so that no event is older than the trace.
        self.file = TraceFile(path)
        # The first half of each arrow, by the number of its hand-over. The second half writes both.
        self._halves: dict[int, str] = {}
        self._first = next(_numbers) + 1
        self._begin = time.monotonic_ns()
        # For programs that compare the trace with times of their own.
        self.file.add(f'"ph":"M","tid":0,"name":"clock","args":{{"monotonic_ns":{self._begin}}}')

    def _slice(self, track: int, begin: int, end: int) -> str:
        return f'"tid":{track},"ts":{self._ts(begin)},"dur":{(end - begin) / 1e3:.3f}'

    def _ts(self, moment: int) -> str:
        return f"{(moment - self._begin) / 1e3:.3f}"

    def _thread_track(self) -> int:
        return self.file.track(_thread.key, _thread.name, _BEHIND_DEVICES)

    def handed_over(self, about: About, device: Any, handed: HandedOver, end: int) -> None:
        if handed.begin < self._begin:
            return
        track = self._thread_track()
        self.file.add(
            f'"ph":"X",{self._slice(track, handed.begin, end)},"cat":"hand-over","name":{about.hand_over},'
            f'"args":{{{about.fields},"device":{json.dumps(device_name(device))},'
            f'"thread_id":{_thread.ident},"sequence":{handed.number - self._first}}}'
        )
        self._join(
            handed,
            f'"ph":"s","id":{handed.number},"tid":{track},"ts":{self._ts(handed.begin)},"cat":"hand-over","name":"tap"',
        )

    def ran(self, about: About, run: Run, end: int) -> None:
        if run.begin < self._begin:
            return
        device, lane = run.lane or (None, 0)
        if device is None:
            track = self._thread_track()
        else:
            name = device_name(device) + (f" ({lane + 1})" if lane else "")
            track = self.file.track((device, lane), name, min(100 * device.id + lane, _BEHIND_DEVICES - 1))
        more = f',"device":{json.dumps(device_name(device))}' if device is not None else ""
        if self.values and run.values:
            more += f',"values":{json.dumps(run.values)}'
        if run.error:
            more += f',"error":{json.dumps(run.error)}'
        failed = ",failed" if run.error else ""
        self.file.add(
            f'"ph":"X",{self._slice(track, run.begin, end)},"cat":"{about.kind}{failed}","name":{about.title},'
            f'"args":{{{about.fields}{more},"thread":{json.dumps(_thread.name)},"thread_id":{_thread.ident},'
            f'"sequence":{run.number - self._first}}}'
        )
        handed = run.handed
        if handed is not None and handed.begin >= self._begin:
            self._join(
                handed,
                f'"ph":"f","bp":"e","id":{handed.number},"tid":{track},"ts":{self._ts(run.begin)},'
                '"cat":"hand-over","name":"tap"',
            )

    def _join(self, handed: HandedOver, half: str) -> None:
        """Write an arrow when both of its ends are known: a tap may be queued still when the trace ends."""
        other = self._halves.setdefault(handed.number, half)
        if other is not half:
            self._halves.pop(handed.number, None)
            self.file.add(*sorted((other, half), key=lambda each: '"ph":"s"' not in each))


class About:
    """What is the same in all events of a callback in a program, as JSON."""

    def __init__(self, callback: HostCallback, program: str, operand_avals: Sequence[Any]) -> None:
        title = re.sub(r" \([^()]*:\d+\)$", "", callback.name)[:MOST_CHARACTERS]
        self.kind = callback.kind.name
        self.title, self.hand_over = json.dumps(title), json.dumps(f"hand over: {title}")
        fields: dict[str, Any] = {"callback": self.kind, "function": callback.name}
        if program:
            fields["program"] = program
        fields["operands"] = [f"{aval.dtype}{list(aval.shape)}" for aval in operand_avals]
        self.fields = json.dumps(fields, separators=(",", ":"))[1:-1]


class Run:
    """One run of a user function, from its begin."""

    def __init__(self, device: Any, arrays: Sequence[Any], with_values: bool) -> None:
        self.handed = arrays if isinstance(arrays, HandedOver) else None
        self.values = [shown(array) for array in arrays] if with_values else []
        self.error = ""
        self._token = object()
        self.lane = None if device is None else self._take_lane(device)
        self.number = next(_numbers)
        self.begin = time.monotonic_ns()

    def _take_lane(self, device: Any) -> tuple[Any, int]:
        """Take the device's first lane without a run of another thread: slices of one track must not overlap."""
        for number in itertools.count():
            lane = (device, number)
            thread, _ = _lanes.setdefault(lane, (_thread.key, self._token))
            if thread is _thread.key:
                break
        return lane

    def end(self) -> None:
        # Only the outermost run on a lane has set its entry.
        if self.lane is not None and _lanes.get(self.lane, (None, None))[1] is self._token:
            _lanes.pop(self.lane, None)


# The tracks on which a function runs: its thread, and the token of the outermost run.
_lanes: dict[tuple[Any, int], tuple[object, object]] = {}


class Recording:
    """The traces that are on. Changes are single operations on a dictionary, as everywhere in the runtime."""

    def __init__(self) -> None:
        # Each with its file.
        self.recorders: dict[Recorder, str] = {}

    def hand_over(self, about: About, device: Any, arrays: Sequence[Any], put: Callable[[HandedOver], None]) -> None:
        """Queue a tapped value with `put`."""
        handed = HandedOver(arrays)
        handed.number, handed.begin = next(_numbers), time.monotonic_ns()
        try:
            put(handed)
        finally:
            end = time.monotonic_ns()
            for recorder in list(self.recorders):
                recorder.handed_over(about, device, handed, end)

    def around(
        self, host: Watched, device: Any, arrays: Sequence[Any], invoke: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `invoke` for one call, which is recorded; `arrays` are the operands that may be shown."""

        def recorded(*arguments: Any) -> Any:
            run = Run(device, arrays, any(recorder.values for recorder in list(self.recorders)))
            try:
                return invoke(*arguments)
            except BaseException as exception:
                run.error = _brief(exception)
                raise
            finally:
                end = time.monotonic_ns()
                run.end()
                for recorder in list(self.recorders):
                    recorder.ran(host.about, run, end)

        return recorded


def _brief(exception: BaseException) -> str:
    try:
        text = str(exception)
    except Exception as broken:
        text = f"its text raises {type(broken).__name__}"
    return f"{type(exception).__qualname__}: {text}"[:MOST_CHARACTERS]


_recording = Recording()

# The files of the traces that are on.
_taken: dict[str, object] = {}

# None while no trace is on.
on: Recording | None = None


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
        _recording.recorders[recorder] = file
        _switch()
    except BaseException:
        _taken.pop(file, None)
        raise
    return recorder


def end(recorder: Recorder) -> None:
    """End a trace, and complete its file."""
    file = _recording.recorders.pop(recorder, None)
    _switch()
    try:
        recorder.file.close()
    finally:
        if file is not None:
            _taken.pop(file, None)


def reset_after_fork() -> None:
    """In a forked child: the traces are the parent's."""
    for recorder in list(_recording.recorders):
        recorder.file.reset_after_fork()
    _recording.recorders.clear()
    _taken.clear()
    _lanes.clear()
    _switch()


def _switch() -> None:
    """Set `on`; another thread may begin or end a trace at the same time, so it looks again."""
    global on
    while True:
        on = _recording if _recording.recorders else None
        # Python notes when a value is handed over.
        told = on is not None
        library.all_through_python(told)
        (watching.watch if told else watching.leave)(_recording)
        if bool(_recording.recorders) is (on is not None) is told:
            return
