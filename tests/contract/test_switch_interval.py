"""H25: while a program with callbacks is alive, a thread that computes hands over the interpreter lock sooner."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import jax
import pytest
from support.helpers import DEADLINE
from support.subprocesses import run_program

from hostcb._spec import flags
from hostcb._threads.switching import SwitchInterval

pytestmark = pytest.mark.contract("H25")

USUAL = 0.005
FLAG = "hostcb_switch_interval"


class Owner:
    """Stands for a program."""


@pytest.fixture
def interval() -> Iterator[SwitchInterval]:
    """One of its own, in a process whose interval is Python's usual one."""
    # Programs of earlier tests hold hostcb's own one, which restores the interval with the last of them.
    gc.collect()
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield SwitchInterval()
    jax.config.update(FLAG, None)
    sys.setswitchinterval(before)


def now() -> float:
    return round(sys.getswitchinterval(), 9)


def test_from_the_first_program_to_the_last(interval: SwitchInterval) -> None:
    first, second = Owner(), Owner()
    interval.hold(first)
    interval.hold(second)
    assert now() == flags.switch_interval.value == 1e-4
    del first
    gc.collect()
    assert now() == 1e-4
    del second
    gc.collect()
    assert now() == USUAL


AT_EXIT = """
import atexit, sys
# Registered before all others, and so called after them.
atexit.register(lambda: print(f"{sys.getswitchinterval():g}"))
import hostcb as hcb, jax
program = jax.jit(lambda x: hcb.id_tap(lambda *_: None, x))
program(1.0)
"""


def test_a_program_that_is_alive_at_the_end_of_the_process_holds_it_until_then() -> None:
    ended = run_program(AT_EXIT, prelude="", devices=None, fresh=True)
    assert ended.stdout.split() == ["0.0001"], ended


@pytest.mark.parametrize("microseconds", [115, 180, 5000])
def test_it_comes_back_as_it_was_to_the_microsecond(interval: SwitchInterval, microseconds: int) -> None:
    """Python cuts fractions off: what it reports as 0.000115 s it takes for 0.000114 s."""
    sys.setswitchinterval((microseconds + 0.5) * 1e-6)
    before = sys.getswitchinterval()
    owner = Owner()
    interval.hold(owner)
    assert now() == 1e-4
    del owner
    gc.collect()
    assert sys.getswitchinterval() == before == microseconds * 1e-6


def test_an_interval_that_is_the_wanted_one_is_not_set_again(interval: SwitchInterval) -> None:
    """Python would take it for a microsecond less."""
    sys.setswitchinterval(115.5e-6)
    before = sys.getswitchinterval()
    jax.config.update(FLAG, before)
    owner = Owner()
    interval.hold(owner)
    assert sys.getswitchinterval() == before == flags.switch_interval.value
    del owner
    gc.collect()
    assert sys.getswitchinterval() == before


def test_an_interval_that_somebody_else_sets_stays(interval: SwitchInterval) -> None:
    owner, later = Owner(), Owner()
    interval.hold(owner)
    sys.setswitchinterval(0.002)
    del owner
    gc.collect()
    assert now() == 0.002
    sys.setswitchinterval(1e-5)
    interval.hold(later)
    assert now() == 1e-5, "a shorter one is never made longer"
    del later
    gc.collect()
    assert now() == 1e-5


def test_the_flag_changes_it_at_once_and_zero_is_never(interval: SwitchInterval) -> None:
    owner = Owner()
    interval.hold(owner)
    interval.changed(1e-3)
    assert now() == 1e-3
    interval.changed(0.0)
    assert now() == USUAL
    interval.changed(2e-5)
    assert now() == 2e-5
    del owner
    gc.collect()
    assert now() == USUAL
    interval.changed(1e-3)
    assert now() == USUAL, "nothing is alive"


def test_an_owner_may_end_while_another_begins(interval: SwitchInterval, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector runs finalizers wherever it runs: also in the thread that has the lock."""
    owners = [Owner()]
    interval.hold(owners[0])
    apply = interval._apply

    def ended(wanted: float) -> None:
        owners.clear()
        gc.collect()
        apply(wanted)

    monkeypatch.setattr(interval, "_apply", ended)
    last = Owner()
    interval.hold(last)
    assert now() == 1e-4
    del last
    gc.collect()
    assert now() == USUAL


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(interval: SwitchInterval) -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with interval._lock:
            held.set()
            over.wait(DEADLINE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(DEADLINE)
    interval.forked()
    owner = Owner()
    ended = threading.Thread(target=interval.hold, args=(owner,), daemon=True)
    ended.start()
    ended.join(DEADLINE)
    over.set()
    thread.join()
    assert not ended.is_alive() and now() == 1e-4


@pytest.mark.parametrize("value", [-1, 1e-7, "quick", float("inf"), float("nan")])
def test_a_wrong_interval(value: object) -> None:
    with pytest.raises(ValueError, match=FLAG):
        jax.config.update(FLAG, value)


PROGRAM = """
import gc, sys, time
import jax
import hostcb
print(sys.getswitchinterval())
step = jax.jit(lambda x: hostcb.call(lambda value: value, x, result_shape=x))
compiled = step.lower(1.0).compile()
print(round(sys.getswitchinterval(), 9))
print(float(compiled(1.0)))
del compiled, step
jax.clear_caches()
# A thread of the runtime may hold the executable a little longer than its result takes.
end = time.monotonic() + 60
while gc.collect() >= 0 and sys.getswitchinterval() < 0.001 and time.monotonic() < end:
    pass
print(sys.getswitchinterval())
"""


@pytest.mark.parametrize(("environment", "shown"), [({}, "0.0001"), ({FLAG.upper(): "0"}, "0.005")], ids=["on", "off"])
def test_a_compiled_program_holds_it(environment: dict[str, str], shown: str) -> None:
    ended = run_program(PROGRAM, prelude="", devices=1, env=environment).check()
    assert ended.lines == ["0.005", shown, "1.0", "0.005"], str(ended)
