"""The file of a trace: a JSON array of events in Chrome's trace event format, written while the program runs (H22).

Any thread adds events, also from a signal handler or a finalizer in the middle of another `add`. So there is no lock: a
thread that finds a full chunk takes its events, one atomic operation each, and writes them with one `os.write`. For
Perfetto an array without its end is a trace, too, so a killed process leaves a file that can be read.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections import deque
from typing import Any

# So many events are written at once. This bounds the memory of a trace's events, and what a killed process loses.
CHUNK = 256

# Closing waits so many seconds for threads that are just writing.
LAST_WRITES = 5.0


# An event is text as soon as it is made. Events that wait as objects would let the garbage collector run in handlers in
# the middle of a dispatch, which crashed with jaxlib 0.10.2. `json.dumps` would make an encoder for each event.
_encode = json.JSONEncoder(separators=(",", ":")).encode


class TraceFile:
    """Writes events in chunks. After an error of the file it drops events, since a callback must not fail of it."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self.path = path
        # The first error of the file, which the end of the trace raises.
        self.error: OSError | None = None
        self._descriptor: int | None = os.open(path, flags, 0o666)
        self._events: deque[str] = deque()
        # A lock for each thread that writes, which holds it until it has written. Only `close` waits for these locks.
        self._writing: dict[threading.Lock, None] = {}
        self._ended = False
        # This grows with each new device or thread, also if the thread has ended since.
        self._tracks: dict[Any, int] = {}
        self._track_numbers = itertools.count(1)
        self.process = os.getpid()
        self._write("[\n" + self.text({"ph": "M", "name": "process_name", "args": {"name": "host callbacks"}}))

    def text(self, event: dict[str, Any]) -> str:
        return _encode({"pid": self.process, **event})

    def add(self, *events: str) -> None:
        """Add events, as `text` returns them: all of them, or none if the trace ends meanwhile."""
        self._events.append(",\n".join(events))
        if len(self._events) >= CHUNK:
            self.flush()

    def track(self, place: Any, name: str, position: int) -> int:
        """Return the number of a track; its first use names it."""
        found = self._tracks.get(place)
        if found is None:
            mine = next(self._track_numbers)
            found = self._tracks.setdefault(place, mine)
            if found == mine:
                for key, value in (("name", name), ("sort_index", position)):
                    self.add(self.text({"ph": "M", "tid": mine, "name": f"thread_{key}", "args": {key: value}}))
        return found

    def flush(self) -> None:
        """Write the events that wait now. An interrupt, such as Ctrl-C, may lose them, but no other ones."""
        written = threading.Lock()
        written.acquire()
        try:
            self._writing[written] = None
            # Looked up after this thread is known to write: `close` waits for those that do not see the end.
            if self._ended:
                return
            taken: list[str] = []
            with contextlib.suppress(IndexError):
                for _ in range(len(self._events)):
                    taken.append(self._events.popleft())
            if taken:
                self._write("".join(f",\n{each}" for each in taken))
        finally:
            written.release()
            self._writing.pop(written, None)

    def _write(self, text: str) -> None:
        data = text.encode()
        try:
            while data and self._descriptor is not None and self.error is None:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Write what is left, and the end of the array; later events are dropped."""
        self.flush()
        self._ended = True
        deadline = time.monotonic() + LAST_WRITES
        # This thread holds none of these locks, unless it is in a signal handler that interrupted its own `flush`.
        writing = list(self._writing)
        all_written = all(each.acquire(timeout=max(0.0, deadline - time.monotonic())) for each in writing)
        self._write("\n]\n")
        descriptor, self._descriptor = self._descriptor, None
        # If a thread still writes, its descriptor must not become another file's.
        if descriptor is not None and all_written:
            try:
                os.close(descriptor)
            except OSError as error:
                self.error = self.error or error

    def reset_after_fork(self) -> None:
        """In a forked child: the file is the parent's."""
        descriptor, self._descriptor = self._descriptor, None
        self._events.clear()
        # The threads that hold these locks exist only in the parent, so `close` would wait for them in vain.
        self._writing.clear()
        if descriptor is not None:
            # An error must not keep the child from forgetting the rest of its parent's callbacks.
            with contextlib.suppress(OSError):
                os.close(descriptor)
