"""A busy machine extends a cell's time limit, a hang does not (docs/testing-the-suite.md)."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.oracle import fair_deadline
from conformance.oracle.fair_deadline import MOST, FairDeadline, waited_for_processors
from conformance.oracle.verdicts import Verdict
from conformance.worker import processes
from conformance.worker.transport import LocalTransport

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
    deadline = FairDeadline(10.0, 1)
    clock["time"] += 9.5
    assert deadline.left() == 0.5
    clock["time"] += 0.75
    assert deadline.left() == -0.25


def test_the_time_without_a_processor_is_added(clock: dict[str, float]) -> None:
    deadline = FairDeadline(10.0, 1)
    clock["a"] += 3.0
    clock["b"] += 1.0
    clock["time"] += 12.0
    assert deadline.left() == 2.0
    clock["time"] += 2.0
    assert deadline.left() == 0.0


def test_threads_that_spin_do_not_extend_it_for_ever(clock: dict[str, float]) -> None:
    deadline = FairDeadline(10.0, 1)
    clock["a"] += 1e6
    clock["time"] += MOST * 10.0 - 1.0
    assert deadline.left() == 1.0


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


ENDS_LATE = """
import sys
for line in sys.stdin:
    print(line, end="", flush=True)
# The end of the input is the order to end; then it waits for a file.
with open(sys.argv[1]):
    pass
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_worker_that_has_no_processor_may_end_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine keeps the worker from ending until its plain time is over."""
    looks = 0
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    worker = processes.WorkerProcess.__new__(processes.WorkerProcess)
    process = subprocess.Popen(
        [sys.executable, "-c", ENDS_LATE, str(gate)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    transport = worker._transport = LocalTransport.__new__(LocalTransport)
    transport._process = process
    assert process.stdin and process.stdout
    transport._commands, transport._reports = process.stdin, process.stdout
    worker._selector = selectors.DefaultSelector()
    worker.buried = False

    def waited(pid: int) -> dict[str, float]:
        nonlocal looks
        looks += 1
        if looks == 3:
            # It gets a processor, and ends.
            gate.write_text("")
            process.wait(DEADLINE)
        return {"main": 0.2 * looks}

    monkeypatch.setattr(fair_deadline, "waited_for_processors", waited)
    monkeypatch.setattr(processes, "EXIT_DEADLINE", 0.2)
    try:
        assert worker.finish().verdict is Verdict.PASS
    finally:
        process.kill()
    assert looks == 3


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
