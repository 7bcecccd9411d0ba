"""A busy machine extends a cell's time limit, a hang does not (docs/testing-the-suite.md)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from conformance.oracle import fair_deadline
from conformance.oracle.fair_deadline import MOST, FairDeadline, waited_for_processors

DEADLINE = 120.0

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts how long a thread waited")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """The time, and how long the threads `a` and `b` have waited."""
    now = {"time": 100.0, "a": 7.0, "b": 0.0}
    monkeypatch.setattr(fair_deadline.time, "monotonic", lambda: now["time"])
    monkeypatch.setattr(fair_deadline, "waited_for_processors", lambda pid: {name: now[name] for name in "ab"})
    yield now


@pytest.mark.parametrize(
    ("took", "waited", "left"),
    [
        (9.5, 0.0, 0.5),
        (10.25, 0.0, -0.25),
        # The time without a processor is added, for each thread.
        (12.0, 4.0, 2.0),
        # Threads that spin do not extend it for ever.
        (MOST * 10.0 - 1.0, 1e6, 1.0),
    ],
)
def test_the_time_that_is_left(clock: dict[str, float], took: float, waited: float, left: float) -> None:
    deadline = FairDeadline(10.0, 1)
    clock["time"] += took
    clock["a"] += waited * 0.75
    clock["b"] += waited * 0.25
    assert deadline.left() == left


def test_of_several_processes_the_one_that_was_kept_longest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, kept = 0.0, {1: 0.0, 2: 0.0}
    monkeypatch.setattr(fair_deadline.time, "monotonic", lambda: now)
    monkeypatch.setattr(fair_deadline, "waited_for_processors", lambda pid: {"main": kept[pid]})
    deadline = FairDeadline(10.0, 1, 2)
    now, kept = 12.0, {1: 1.0, 2: 5.0}
    assert deadline.left() == 3.0


def test_a_wait_goes_on_until_its_end_or_the_answer(clock: dict[str, float]) -> None:
    deadline, asked = FairDeadline(10.0, 1), []

    def ends(seconds: float) -> int | None:
        asked.append(seconds)
        clock["time"] += seconds
        clock["a"] += 4.0 if len(asked) == 1 else 0.0
        return None

    assert deadline.wait(ends) is None
    assert asked == [10.0, 4.0, 0.0]
    assert FairDeadline(10.0, 1).wait(lambda seconds: 0) == 0


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
    assert FairDeadline(0.0, ended.pid).left() <= 0.0
