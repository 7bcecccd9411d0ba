"""H11 and H12: when the consumer of taps wakes, and what is in hand while the queue is full."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import helpers
import jax
import jax.numpy as jnp
import pytest

import hostcb as hcb
from hostcb import _queues
from hostcb._blocks import LEAST_BYTES, blocks

BUDGET = 4
OPTION = "jax_host_callback_max_queue_byte_size"


@pytest.fixture
def small_budget() -> Iterator[None]:
    hcb.barrier_wait()
    jax.config.update(OPTION, BUDGET * LEAST_BYTES)
    yield
    hcb.barrier_wait()
    jax.config.update(OPTION, None)


def test_h12_a_large_value_is_not_copied_before_it_has_room(small_budget: None) -> None:
    copies: list[int] = []

    def tap(arg: Any, transforms: Any) -> None:
        copies.append(len(blocks._lent))

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(tap, x) + 1

    before = len(blocks._lent)
    jax.jit(lambda x: jax.lax.fori_loop(0, 40, step, x))(jnp.zeros(LEAST_BYTES // 4, jnp.float32))
    hcb.barrier_wait()
    assert len(copies) == 40
    assert max(copies) - before <= BUDGET, f"{max(copies) - before} copies at once, the budget is for {BUDGET}"


def test_h12_a_value_larger_than_the_budget_gets_in_alone(small_budget: None) -> None:
    record = helpers.Record()
    program = jax.jit(lambda x: hcb.id_tap(record.tap, hcb.id_tap(record.tap, x) + 1))
    program(jnp.zeros((BUDGET + 1) * LEAST_BYTES // 4, jnp.float32))
    hcb.barrier_wait()
    assert [float(arg[0]) for arg in record.args] == [0, 1]


@pytest.mark.parametrize("count", [1, 10, 5000])
def test_h11_taps_run_without_being_waited_for(count: int) -> None:
    last = threading.Event()

    def tap(arg: Any, transforms: Any) -> None:
        if arg == count:
            last.set()

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(tap, x + 1)

    program = jax.jit(lambda x: jax.lax.fori_loop(0, count, step, x))
    jax.block_until_ready(program(jnp.float32(0)))
    assert last.wait(helpers.DEADLINE), f"the last of {count} taps did not run by itself"


def test_h13_a_barrier_does_not_wait_for_the_consumer_to_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    # Were it to, this would take hours.
    monkeypatch.setattr(_queues, "LINGER", 3600.0)
    record, one = helpers.Record(), jax.jit(lambda x: hcb.id_tap(record.tap, x))
    for number in range(3):
        one(jnp.float32(number))
        hcb.barrier_wait()
    assert [float(arg) for arg in record.args] == [0, 1, 2]
    # Ends the long sleep as well.
    hcb.stop_outfeed_receiver()


def test_h5_a_call_runs_what_the_consumer_sleeps_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_queues, "LINGER", 3600.0)
    record = helpers.Record()

    @jax.jit
    def program(x: Any) -> Any:
        for number in range(20):
            hcb.id_tap(record.tap, x + number)
        return hcb.call(lambda value: value + len(record.args), x, result_shape=x)

    program(jnp.float32(0))
    hcb.barrier_wait()
    # The consumer sleeps now, and is not idle.
    assert float(program(jnp.float32(0))) == 40
    hcb.stop_outfeed_receiver()


class Interrupted(BaseException):
    """What Ctrl-C may raise between any two steps."""


class Interrupting:
    """A lock that is interrupted when it is taken, so often as it has been told."""

    def __init__(self, lock: Any):
        self.lock, self.times = lock, 0

    def __enter__(self) -> None:
        if self.times:
            self.times -= 1
            raise Interrupted
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_h12_an_interrupt_while_a_queue_is_worked_off_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, ran = _queues.DeviceQueue(jax.devices()[0]), []
    lock = Interrupting(queue._lock)
    monkeypatch.setattr(queue, "_lock", lock)
    # Without a consumer, so that this thread does the work.
    monkeypatch.setattr(queue, "_wake", lambda: None)

    class Receiver:
        nbytes = 1
        callback: Any = None

        def deliver(self, device: Any, arrays: Any) -> None:
            ran.append(arrays)
            # When it is counted, which is then done all the same; what is delivered next is not interrupted.
            lock.times = 2 if arrays == 0 else 0
            if arrays == 1:
                raise Interrupted

    for number in range(4):
        queue.put(Receiver(), number)
    for expected in ([0], [0, 1]):
        with pytest.raises(Interrupted):
            queue.drain()
        assert ran == expected and queue.finished == len(expected)
    queue.drain()
    assert ran == [0, 1, 2, 3] and not queue.busy and queue._bytes == 0
