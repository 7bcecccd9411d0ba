"""H25: where callbacks wait for the interpreter lock, threads that compute hand it over sooner, for a while."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from support.helpers import DEADLINE
from support.subprocesses import run_program
from support.switch_intervals import FLAG, switch_interval_of

from hostcb._spec import flags
from hostcb._threads import switching
from hostcb._threads.switching import SwitchInterval, waits_for_lock

pytestmark = pytest.mark.contract("H25")

USUAL = 0.005


@pytest.fixture
def interval() -> Iterator[SwitchInterval]:
    """One of its own, in a process whose interval is Python's usual one."""
    with switch_interval_of(USUAL):
        yield SwitchInterval()


def now() -> float:
    return round(sys.getswitchinterval(), 9)


def meanwhile(monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any]) -> list[Any]:
    """Let a thread that has shortened the interval call this in place of sleeping; return what it returns."""
    returned: list[Any] = []
    monkeypatch.setattr(switching, "time", SimpleNamespace(sleep=lambda seconds: returned.append(function())))
    return returned


def test_it_is_short_for_a_while(interval: SwitchInterval, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = meanwhile(monkeypatch, now)
    interval.shorten_for_a_while(1e-4)
    assert (shown, now()) == ([1e-4], USUAL)
    interval.shorten_for_a_while(2e-5)
    assert (shown, now()) == ([1e-4, 2e-5], USUAL)


@pytest.mark.parametrize("microseconds", [115, 180, 5000])
def test_it_comes_back_as_it_was_to_the_microsecond(
    interval: SwitchInterval, monkeypatch: pytest.MonkeyPatch, microseconds: int
) -> None:
    """Python cuts fractions off: what it reports as 0.000115 s it takes for 0.000114 s."""
    sys.setswitchinterval((microseconds + 0.5) * 1e-6)
    before = sys.getswitchinterval()
    shown = meanwhile(monkeypatch, sys.getswitchinterval)
    interval.shorten_for_a_while(1.1e-4)
    assert shown == [switching.reported(1.1e-4)]
    assert sys.getswitchinterval() == before == microseconds * 1e-6


@pytest.mark.parametrize("longer", [0, 1e-4])
def test_it_is_never_made_longer_nor_set_again(
    interval: SwitchInterval, monkeypatch: pytest.MonkeyPatch, longer: float
) -> None:
    """Python would take the same interval for a microsecond less."""
    sys.setswitchinterval(115.5e-6)
    before = sys.getswitchinterval()
    shown = meanwhile(monkeypatch, now)
    interval.shorten_for_a_while(before + longer)
    assert shown == [] and sys.getswitchinterval() == before
    sys.setswitchinterval(USUAL)
    interval.shorten_for_a_while(1e-4)
    assert shown == [1e-4], "it is free for the next thread"


def test_an_interval_that_somebody_else_sets_stays(interval: SwitchInterval, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(monkeypatch, lambda: sys.setswitchinterval(0.002))
    interval.shorten_for_a_while(1e-4)
    assert now() == 0.002
    meanwhile(monkeypatch, lambda: sys.setswitchinterval(USUAL))
    interval.shorten_for_a_while(1e-4)
    assert now() == USUAL


def test_a_shortened_interval_that_somebody_puts_back_is_restored(
    interval: SwitchInterval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program reads the interval while it is short, sets another one for a while, and then puts back what it read."""

    def program() -> None:
        read.append(sys.getswitchinterval())
        # Python cuts a fraction off what it has reported itself: 99 microseconds are put back.
        sys.setswitchinterval(read[0] if len(read) == 3 else 0.002)

    read: list[float] = []
    meanwhile(monkeypatch, program)
    interval.shorten_for_a_while(1e-4)
    assert (len(read), now()) == (3, USUAL)
    meanwhile(monkeypatch, lambda: sys.setswitchinterval(0.002))
    interval.shorten_for_a_while(1e-4)
    assert now() == 0.002, "somebody has set another one for good"


def test_one_thread_at_a_time_changes_it(interval: SwitchInterval, monkeypatch: pytest.MonkeyPatch) -> None:
    def another() -> float:
        interval.shorten_for_a_while(1e-5)
        return now()

    shown = meanwhile(monkeypatch, another)
    interval.shorten_for_a_while(1e-4)
    assert (shown, now()) == ([1e-4], USUAL)


def test_a_forked_child_restores_it(interval: SwitchInterval, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not the thread of its parent that would; and its own callbacks may shorten it again."""
    shown = []

    def forked() -> None:
        interval.forked()
        shown.append(now())
        meanwhile(monkeypatch, lambda: shown.append(now()))
        interval.shorten_for_a_while(1e-4)

    meanwhile(monkeypatch, forked)
    interval.shorten_for_a_while(1e-4)
    assert (shown, now()) == ([USUAL, 1e-4], USUAL)


class Clock:
    """The time that a `SwitchInterval` reads, and the threads that it starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: list[bool]) -> None:
        self.now = 1000.0
        self.wanted: list[float] = []
        self.waits = waits
        monkeypatch.setattr(switching, "monotonic", lambda: self.now)
        # Each callback looks at the clock.
        monkeypatch.setattr(switching, "CALLBACKS_FOR_CLOCK", 1)
        monkeypatch.setattr(switching, "waits_for_lock", lambda interval: self.waits.pop(0))
        monkeypatch.setattr(switching._thread, "start_new_thread", self._start)
        self.interval = SwitchInterval()

    def _start(self, function: Any, arguments: tuple[float, ...]) -> None:
        self.wanted += arguments

    def callback_after(self, seconds: float) -> None:
        self.now += seconds
        self.interval.callback_begins()


@pytest.fixture
def clock(interval: SwitchInterval, monkeypatch: pytest.MonkeyPatch) -> Clock:
    jax.config.update(FLAG, None)
    return Clock(monkeypatch, [True] * 10)


def test_a_callback_that_waits_twice_after_a_pause_shortens_it(clock: Clock) -> None:
    clock.callback_after(0.006)
    assert clock.wanted == [flags.switch_interval.value] == [1e-4]
    assert len(clock.waits) == 8


def test_callbacks_look_at_the_clock_together(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switching, "CALLBACKS_FOR_CLOCK", 3)
    for seconds in (0.001, 0.001, 0.001, 0.004, 0.001):
        clock.callback_after(seconds)
    assert clock.wanted == []
    clock.callback_after(0.004)
    assert clock.wanted == [1e-4], "the mean is more than half of 5 ms"


@pytest.mark.parametrize("waits", [[False], [True, False]])
def test_a_pause_without_waiting_does_not(clock: Clock, waits: list[bool]) -> None:
    clock.waits = waits
    clock.callback_after(0.006)
    assert (clock.wanted, clock.waits) == ([], [])


@pytest.mark.parametrize("seconds", [1e-6, 2e-3, 0.2])
def test_callbacks_without_such_a_pause_do_not_look(clock: Clock, seconds: float) -> None:
    """They come too quickly to have waited, or too seldom to lose much time."""
    for _ in range(1000):
        clock.callback_after(seconds)
    assert (clock.wanted, len(clock.waits)) == ([], 10)


def test_the_pause_is_compared_with_the_interval_of_the_process(clock: Clock) -> None:
    sys.setswitchinterval(0.001)
    clock.callback_after(0.0008)
    assert clock.wanted == [1e-4]


def test_callbacks_look_ten_times_a_second_at_most(clock: Clock) -> None:
    for _ in range(100):
        clock.waits = [False]
        clock.callback_after(0.009)
    # In 0.9 seconds, with the first.
    assert clock.interval._next_look == pytest.approx(1000.9, abs=0.11)
    looks = 0
    for _ in range(100):
        clock.waits = [False]
        clock.callback_after(0.01)
        looks += not clock.waits
    assert 9 <= looks <= 10


@pytest.mark.parametrize("flag", [0, 0.01])
def test_nothing_looks_where_the_interval_is_short_enough_or_never_wanted(clock: Clock, flag: float) -> None:
    jax.config.update(FLAG, flag)
    clock.callback_after(0.006)
    assert (clock.wanted, len(clock.waits)) == ([], 10)


def test_a_system_without_another_thread(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(function: Any, arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(switching._thread, "start_new_thread", none)
    clock.callback_after(0.006)
    assert len(clock.waits) == 8 and now() == USUAL


@contextmanager
def computing() -> Iterator[None]:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            for _ in range(1000):
                pass

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(DEADLINE)


def test_a_thread_that_computes_lets_another_one_wait(interval: SwitchInterval) -> None:
    """Other processes may take the cores now and then, and so the answer may be wrong now and then."""
    end = time.monotonic() + DEADLINE
    with computing():
        while not waits_for_lock(USUAL):
            assert time.monotonic() < end
    while waits_for_lock(USUAL):
        assert time.monotonic() < end


PROGRAM = """
import sys, threading, time
import jax
import numpy as np
import hostcb
shown = set()
def function(value, *transforms):
    shown.add(round(sys.getswitchinterval(), 9))
    return value
def fill(context, out, value):
    function(value)
    np.asarray(out)[...] = np.asarray(value)
STEPS = {
    "call": lambda x: hostcb.call(function, x, result_shape=x),
    "tap": lambda x: hostcb.id_tap(function, x),
    "buffer": lambda x: hostcb.buffer_callback(fill, x, has_side_effect=True)(x),
}
step = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: STEPS["KIND"](y), x))
compiled = step.lower(1.0).compile()
print(sys.getswitchinterval())
over = threading.Event()
def compute():
    while not over.is_set():
        for _ in range(1000):
            pass
thread = threading.Thread(target=compute, daemon=True)
thread.start()
end = time.monotonic() + 60
while SHOWN not in shown and time.monotonic() < end:
    compiled(1.0)
    hostcb.barrier_wait()
over.set()
thread.join()
print(SHOWN in shown)
while sys.getswitchinterval() < 0.001 and time.monotonic() < end:
    pass
print(sys.getswitchinterval())
"""


@pytest.mark.parametrize(
    ("kind", "environment", "shown"),
    [
        *((kind, {}, 1e-4) for kind in ("call", "tap", "buffer")),
        ("call", {FLAG.upper(): "0.0003"}, 3e-4),
        ("tap", {"HOSTCB_NATIVE": "0"}, 1e-4),
    ],
)
def test_callbacks_beside_a_thread_that_computes(kind: str, environment: dict[str, str], shown: float) -> None:
    """A program that is compiled changes nothing; its callbacks do, and the interval comes back while it is alive."""
    source = PROGRAM.replace("KIND", kind).replace("SHOWN", repr(shown))
    ended = run_program(source, prelude="", devices=1, env=environment).check()
    assert ended.lines == ["0.005", "True", "0.005"], str(ended)
