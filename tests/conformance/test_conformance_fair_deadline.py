"""A busy machine extends a cell's time limit, a hang does not (docs/no-false-alarms.md)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from conformance.worker import fair_deadline
from conformance.worker.fair_deadline import MOST, FairDeadline, waited_for_processors

DEADLINE = 120.0

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts how long a thread waited")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """The time, and how long the threads `a` and `b` have waited."""
    now = {"time": 100.0, "a": 7.0, "b": 0.0}
    monkeypatch.setattr(fair_deadline.time, "monotonic", lambda: now["time"])
    monkeypatch.setattr(fair_deadline, "waited_for_processors", lambda pid: {name: now[name] for name in "ab"})
    yield now


def test_a_process_that_waits_for_nothing_has_its_time_limit_and_no_more(clock: dict[str, float]) -> None:
    deadline = FairDeadline(1, 10.0)
    clock["time"] += 9.5
    assert deadline.left() == 0.5
    clock["time"] += 0.75
    assert deadline.left() == -0.25


def test_the_time_without_a_processor_is_added(clock: dict[str, float]) -> None:
    deadline = FairDeadline(1, 10.0)
    clock["a"] += 3.0
    clock["b"] += 1.0
    clock["time"] += 12.0
    assert deadline.left() == 2.0
    clock["time"] += 2.0
    assert deadline.left() == 0.0


def test_threads_that_spin_do_not_extend_it_for_ever(clock: dict[str, float]) -> None:
    deadline = FairDeadline(1, 10.0)
    clock["a"] += 1e6
    clock["time"] += MOST * 10.0 - 1.0
    assert deadline.left() == 1.0


@ON_LINUX
def test_linux_tells_how_long_a_thread_waited_for_a_processor() -> None:
    """Two processes that spin on one processor wait for each other, and a third that sleeps waits for neither."""
    core = str(min(os.sched_getaffinity(0)))
    spin = f"import os; os.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    sleep = "print(flush=True)\ninput()"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        for code in (spin, spin, sleep)
    ]
    try:
        for each in started:
            assert each.stdout is not None
            each.stdout.readline()

        def waited(process: subprocess.Popen[bytes]) -> float:
            return sum(waited_for_processors(process.pid).values())

        slept_before, until = waited(started[2]), time.monotonic() + DEADLINE
        while min(map(waited, started[:2])) < 0.2:
            assert time.monotonic() < until
        assert waited(started[2]) - slept_before < 0.2
    finally:
        for each in started:
            each.kill()
            each.communicate()


def test_a_process_that_has_ended_waits_for_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert waited_for_processors(ended.pid) == {}
    assert FairDeadline(ended.pid, 0.0).left() <= 0.0
