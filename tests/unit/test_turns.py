"""H5, H9: devices that take turns to call back call as often, in the same order and on the same values as without."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from support.helpers import DEADLINE, wait_until
from support.subprocesses import run_program

from hostcb._runtime.dispatch.turns import LEAST_CALLS, MOST_CALLS, Turns


class First:
    """A buffer of a device."""

    def __init__(self, device: int):
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, self.device


def execution(turns: Turns, counts: dict[int, int], function: Callable[[int], None]) -> None:
    """Each device in a thread of its own, as the runtime does it."""
    turns.execution_begins()
    handler = turns.taking(lambda context, first: function(first.device), None)
    failed: list[BaseException] = []

    def run(device: int, count: int) -> None:
        try:
            for _ in range(count):
                handler(None, First(device))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=each) for each in counts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive(), "a device waits for a turn that does not come"
    assert not failed, failed


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    # A loaded machine may keep a thread from running for longer than the look-up; these tests are not about that.
    monkeypatch.setattr("hostcb._runtime.dispatch.turns.LOOK_UP", 0.5)
    monkeypatch.setattr("hostcb._runtime.dispatch.turns.LEAST_PROGRESS", 1)
    monkeypatch.setattr("hostcb._runtime.dispatch.turns.MOST_SLOW", 1)


def test_turns_are_taken_once_two_executions_were_alike() -> None:
    turns, counts = Turns(), dict.fromkeys(range(4), 2 * LEAST_CALLS)
    for number in range(4):
        seen: list[int] = []
        execution(turns, counts, seen.append)
        assert sorted(seen) == sorted(device for device in counts for _ in range(counts[device]))
        if number >= 2:
            changes = sum(before != after for before, after in itertools.pairwise(seen))
            assert changes == 3, f"{changes} changes of device in execution {number}, not one for each turn"
    assert not turns._given_up


class Telling(deque[Any]):
    """Tells when somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.somebody = threading.Event()

    def append(self, each: Any) -> None:
        super().append(each)
        self.somebody.set()


def test_a_turn_is_bounded() -> None:
    turns, counts = Turns(), {0: 2 * MOST_CALLS, 1: 2 * MOST_CALLS}
    for _ in range(2):
        execution(turns, counts, lambda device: None)
    turns._waiting = waiting = Telling()
    seen: list[int] = []

    def function(device: int) -> None:
        seen.append(device)
        assert waiting.somebody.wait(DEADLINE)

    execution(turns, counts, function)
    runs = [index for index, (before, after) in enumerate(itertools.pairwise(seen), 1) if before != after]
    assert runs == [MOST_CALLS, 2 * MOST_CALLS, 3 * MOST_CALLS]


@pytest.mark.parametrize(
    "counts",
    [
        [{0: 64, 1: 64}] * 3 + [{0: 64, 1: 90}, {0: 64, 1: 64}],
        [{0: 64, 1: 64}] * 3 + [{0: 40, 1: 64}, {0: 64, 1: 64}],
        [{0: 64, 1: 64}] * 3 + [{0: 64}, {1: 64}, {0: 1, 1: 1}],
        [{0: 1, 1: 1}] * 5,
        [{0: n, 1: n} for n in range(60, 65)],
        [{0: 64}] * 4,
        [{0: 128, 1: 64}] * 4,
    ],
    ids=["more", "less", "one_device_less", "few", "always_others", "one_device", "unequal"],
)
def test_any_number_of_calls_is_made(counts: list[dict[int, int]]) -> None:
    turns = Turns()
    for each in counts:
        seen: list[int] = []
        execution(turns, each, seen.append)
        assert {device: seen.count(device) for device in each} == each


def test_who_waits_longest_has_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # None of them looks whether the others make progress.
    monkeypatch.setattr("hostcb._runtime.dispatch.turns.LOOK_UP", DEADLINE)
    turns, got = Turns(), list[int]()
    turns._holder = 0

    def waits(device: int) -> None:
        turns._wait(device)
        got.append(device)
        turns._pass_on(device)

    threads = []
    for device in (1, 2, 3):
        threads.append(threading.Thread(target=waits, args=(device,)))
        threads[-1].start()
        wait_until(lambda: len(turns._waiting) == len(threads))
    turns._pass_on(0)
    for thread in threads:
        thread.join(DEADLINE)
    assert got == [1, 2, 3]


def test_executions_that_follow_each_other_without_a_pause_are_no_others() -> None:
    turns, counts = Turns(), {0: 64, 1: 64}
    for _ in range(3):
        execution(turns, counts, lambda device: None)
    # Two in a row, of which nobody told where one ends.
    seen: list[int] = []
    execution(turns, {0: 128, 1: 128}, seen.append)
    assert (seen.count(0), seen.count(1)) == (128, 128) and not turns._given_up


def test_devices_that_wait_for_each_other_get_what_they_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, counts = Turns(), {0: 64, 1: 64}
    for _ in range(3):
        execution(turns, counts, lambda device: None)
    monkeypatch.setattr("hostcb._runtime.dispatch.turns.LOOK_UP", 0.002)
    meeting = threading.Barrier(2)
    execution(turns, counts, lambda device: (meeting.wait(DEADLINE), None)[1])
    assert turns._given_up, "turns do not help devices that wait for each other"
    execution(turns, counts, lambda device: (meeting.wait(DEADLINE), None)[1])


def test_a_device_that_fails_in_its_turn_does_not_keep_it() -> None:
    turns, counts, failing = Turns(), {0: 64, 1: 64}, [False]

    def function(device: int) -> None:
        if failing[0] and device == 0:
            raise ValueError("failed on purpose")

    for _ in range(3):
        execution(turns, counts, function)
    failing[0] = True
    with pytest.raises(AssertionError, match="failed on purpose"):
        execution(turns, counts, function)
    failing[0] = False
    execution(turns, counts, function)


PROGRAM = """
def ordered(seen, count):
    by_device = {}
    for device, value in seen:
        by_device.setdefault(device, []).append(value)
    return sorted(by_device) == list(range(4)) and all(values == list(range(count)) for values in by_device.values())

count, seen = 120, []
def tap(value, transforms, *, device):
    seen.append((device.id, int(value)))

def step(i, carry):
    hcb.id_tap(tap, i, tap_with_device=True)
    return hcb.call(np.negative, carry, result_shape=carry) * 2

program = jax.pmap(lambda x: jax.lax.fori_loop(0, count, step, x) * 0 + x)
x = jnp.arange(4.0)
right = []
for _ in range(6):
    seen.clear()
    right.append(np.asarray(program(x)).tolist() == [0, 1, 2, 3])
    hcb.barrier_wait()
    right.append(ordered(seen, count))
# Without waiting in between.
seen.clear()
outs = [program(x) for _ in range(5)]
right.append([np.asarray(out).tolist() for out in outs] == [[0, 1, 2, 3]] * 5)
hcb.barrier_wait()
right.append(all(
    [value for device, value in seen if device == each] == list(range(count)) * 5 for each in range(4)
))

def summed(i, carry):
    return hcb.call(lambda v: v, jax.lax.psum(carry, "x") / 4, result_shape=carry) + 1

collective = jax.pmap(lambda x: jax.lax.fori_loop(0, count, summed, x), axis_name="x")
for _ in range(4):
    right.append(np.asarray(collective(jnp.zeros(4))).tolist() == [count] * 4)

meeting = threading.Barrier(4)
def meet(value):
    meeting.wait(60)
    return value
together = jax.pmap(lambda x: jax.lax.fori_loop(0, count, lambda i, c: hcb.call(meet, c, result_shape=c) + 1, x))
for _ in range(4):
    right.append(np.asarray(together(jnp.zeros(4))).tolist() == [count] * 4)
print(json.dumps(right))
"""


@pytest.mark.contract("H5", "H9")
def test_programs_of_several_devices() -> None:
    right = run_program(PROGRAM, devices=4).json()
    assert all(right), f"what came out right, check by check: {right}"
