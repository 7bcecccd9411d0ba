"""A busy machine extends a cell's time limit, a hang does not (docs/testing-the-suite.md)."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from conformance.oracle import fair_deadline
from conformance.oracle.fair_deadline import MOST, FairDeadline, waited_for_processors

DEADLINE = 120.0


def test_the_time_without_a_processor_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the process which was kept longest, for each of its threads, and not for ever."""
    now = {"time": 0.0, "a": 0.0, "b": 0.0, "other": 0.0}
    threads = {1: ("a", "b"), 2: ("other",)}
    monkeypatch.setattr(fair_deadline.time, "monotonic", lambda: now["time"])
    monkeypatch.setattr(fair_deadline, "waited_for_processors", lambda pid: {name: now[name] for name in threads[pid]})
    asked: list[float] = []

    def ends(seconds: float) -> int | None:
        asked.append(seconds)
        now["time"] += seconds
        now["a"] += 4.0 if len(asked) == 1 else 0.0
        return None

    assert FairDeadline(10.0, 1).wait(ends) is None
    assert asked == [10.0, 4.0, 0.0]
    assert FairDeadline(10.0, 1).wait(lambda seconds: 0) == 0
    for took, waited, left in (
        (9.5, 0.0, 0.5),
        (10.25, 0.0, -0.25),
        (12.0, 4.0, 2.0),
        # Threads that spin do not extend it for ever.
        (MOST * 10.0 - 1.0, 1e6, 1.0),
    ):
        now = {"time": 100.0, "a": 7.0, "b": 0.0, "other": 0.0}
        deadline = FairDeadline(10.0, 1, 2)
        now = {"time": 100.0 + took, "a": 7.0 + waited * 0.75, "b": waited * 0.25, "other": waited / 2}
        assert deadline.left() == left


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts how long a thread waited")
def test_linux_counts_how_long_a_thread_waited_for_a_processor() -> None:
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
    assert waited_for_processors(started[2].pid) == {}
    assert FairDeadline(0.0, started[2].pid).left() <= 0.0
