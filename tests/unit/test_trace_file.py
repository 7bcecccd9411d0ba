"""H22: the end of a trace's file comes after all writes of other threads, and nothing comes after it."""

from __future__ import annotations

import functools
import json
import os
import threading
from pathlib import Path

import pytest
from support import helpers

from hostcb._runtime import host
from hostcb._runtime.observing import trace_file
from hostcb._runtime.observing.trace_file import TraceFile

pytestmark = pytest.mark.contract("H22")


class SlowWriter:
    """A thread that has taken the events of a file, and waits before it writes them."""

    def __init__(self, file: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes, self.may_write = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=file.flush)
        write = os.write

        def slow(descriptor: int, data: bytes) -> int:
            if threading.current_thread() is self.thread:
                self.writes.set()
                self.may_write.wait(helpers.DEADLINE)
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", slow)
        self.thread.start()
        assert self.writes.wait(helpers.DEADLINE)

    def end(self) -> None:
        self.may_write.set()
        self.thread.join(helpers.DEADLINE)


def test_the_end_comes_after_the_writes_of_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TraceFile(str(tmp_path / "trace.json"))
    descriptor, closed, close = file._descriptor, list[int](), os.close
    monkeypatch.setattr(os, "close", lambda each: (closed.append(each), close(each))[1])
    file.add(file.text({"name": "taken"}))
    writer = SlowWriter(file, monkeypatch)
    file.add(file.text({"name": "mine"}))
    closing = threading.Thread(target=file.close)
    closing.start()
    closing.join(0.02)
    assert closing.is_alive()
    writer.end()
    closing.join(helpers.DEADLINE)
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())]
    assert sorted(names) == ["mine", "process_name", "taken"] and file.error is None
    # All threads have told that they have written, so the file is closed.
    assert not closing.is_alive() and descriptor in closed


def test_events_after_the_end_are_dropped(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "trace.json"))
    file.close()
    whole = (tmp_path / "trace.json").read_text()
    file.add(file.text({"name": "late"}))
    file.flush()
    assert (tmp_path / "trace.json").read_text() == whole and json.loads(whole)


def test_a_thread_that_sees_the_end_writes_nothing(tmp_path: Path) -> None:
    """Between the moment from which `close` waits for no more threads, and the end of the array."""
    file = TraceFile(str(tmp_path / "trace.json"))
    before = (tmp_path / "trace.json").read_text()
    file._ended = True
    file.add(file.text({"name": "late"}))
    file.flush()
    assert (tmp_path / "trace.json").read_text() == before
    file.close()
    assert [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())] == ["process_name"]


def test_a_write_that_has_ended_leaves_nothing(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "trace.json"))
    for _ in range(3):
        file.flush()
    assert not file._writing
    file.close()


def test_a_forked_child_waits_for_no_thread_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copies of the locks that other threads hold are never released."""
    monkeypatch.setattr(trace_file, "LAST_WRITES", 60.0)
    file = TraceFile(str(tmp_path / "trace.json"))
    held = threading.Lock()
    held.acquire()
    file._writing[held] = None
    file.reset_after_fork()
    closing = threading.Thread(target=file.close, daemon=True)
    closing.start()
    closing.join(2)
    assert not closing.is_alive()


def test_an_error_of_the_file_harms_no_fork(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "trace.json"))
    assert file._descriptor is not None
    os.close(file._descriptor)
    file.reset_after_fork()
    file.close()


def test_hosts_share_no_lock() -> None:
    """In Python 3.11 a `cached_property` holds one lock for all objects of the class while it computes."""
    assert not [name for name, value in vars(host.Host).items() if isinstance(value, functools.cached_property)]


def test_a_thread_that_never_writes_holds_the_end_up_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "LAST_WRITES", 0.01)
    file = TraceFile(str(tmp_path / "trace.json"))
    descriptor = file._descriptor
    assert descriptor is not None
    file.add(file.text({"name": "taken"}))
    writer = SlowWriter(file, monkeypatch)
    file.close()
    # Still open: closed, its number could become another file's, and the thread would write into that.
    os.fstat(descriptor)
    writer.end()
    os.close(descriptor)
