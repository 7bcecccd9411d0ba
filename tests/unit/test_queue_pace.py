"""H11 and H12: when the consumer of taps wakes, and what is in hand while the queue is full."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support import helpers
from support.switch_intervals import switch_interval_of

import hostcb as hcb
from hostcb._native.library import library
from hostcb._runtime.memory.blocks import LEAST_BYTES
from hostcb._runtime.queue import consumers, rings
from hostcb._runtime.queue.device_queue import CACHED, DeviceQueue
from hostcb._runtime.queue.queues import queues

BUDGET = 4
OPTION = "jax_host_callback_max_queue_byte_size"


@pytest.fixture
def small_budget() -> Iterator[None]:
    hcb.barrier_wait()
    jax.config.update(OPTION, BUDGET * LEAST_BYTES)
    yield
    hcb.barrier_wait()
    jax.config.update(OPTION, None)


@pytest.mark.contract("H12")
def test_a_large_value_is_not_copied_before_it_has_room(small_budget: None) -> None:
    copies: list[int] = []
    before = helpers.bytes_in_blocks()

    def tap(arg: Any, transforms: Any) -> None:
        if len(copies) == 1:
            # The device goes on until the queue is full.
            helpers.wait_until(lambda: helpers.bytes_in_blocks() - before >= BUDGET * LEAST_BYTES)
        copies.append((helpers.bytes_in_blocks() - before) // LEAST_BYTES)

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(tap, x) + 1

    jax.jit(lambda x: jax.lax.fori_loop(0, 40, step, x))(jnp.zeros(LEAST_BYTES // 4, jnp.float32))
    hcb.barrier_wait()
    assert len(copies) == 40
    assert max(copies) == BUDGET, f"{max(copies)} copies at once, the budget is for {BUDGET}"


@pytest.mark.contract("H12")
def test_a_value_larger_than_the_budget_gets_in_alone(small_budget: None) -> None:
    record = helpers.Record()
    program = jax.jit(lambda x: hcb.id_tap(record.tap, hcb.id_tap(record.tap, x) + 1))
    program(jnp.zeros((BUDGET + 1) * LEAST_BYTES // 4, jnp.float32))
    hcb.barrier_wait()
    assert [float(arg[0]) for arg in record.args] == [0, 1]


@pytest.mark.contract("H11")
def test_much_that_waits_wakes_a_consumer_that_sleeps_on(monkeypatch: pytest.MonkeyPatch) -> None:
    device = jax.devices()[0]
    record = helpers.Record()
    program = jax.jit(lambda x: hcb.id_tap(record.tap, x))
    program(jnp.zeros(2, jnp.float32))
    # This rings a bell, which is not the next consumer's.
    hcb.stop_outfeed_receiver()
    record.all.clear()
    monkeypatch.setattr(consumers, "LINGER_SECONDS", 10 * helpers.DEADLINE)
    for count, words in enumerate([1, CACHED // 4], start=1):
        jax.block_until_ready(program(jnp.zeros(words, jnp.float32)))
        helpers.wait_until(lambda count=count: len(record.args) == count and queues[device].lingering)
    hcb.stop_outfeed_receiver()


@pytest.mark.contract("H11")
@pytest.mark.skipif(library.problem is not None, reason=f"the library: {library.problem}")
def test_a_half_full_ring_wakes_a_consumer_that_sleeps_on(monkeypatch: pytest.MonkeyPatch) -> None:
    device = jax.devices()[0]
    seen: list[int] = []

    def tap(arg: Any, transforms: Any) -> None:
        seen.append(int(arg[0]))

    def step(number: Any, x: Any) -> Any:
        return hcb.id_tap(tap, x) + 1

    # More than half of the ring, and not all: a full ring would run the oldest values in the device's thread.
    words = 1 << 14
    count = rings.CAPACITY // (4 * words) * 3 // 4
    program = jax.jit(lambda x, count: jax.lax.fori_loop(0, count, step, x))
    jax.block_until_ready(program(jnp.zeros(words, jnp.int32), 2))
    hcb.stop_outfeed_receiver()
    seen.clear()
    monkeypatch.setattr(consumers, "LINGER_SECONDS", 10 * helpers.DEADLINE)
    jax.block_until_ready(program(jnp.zeros(words, jnp.int32), 1))
    helpers.wait_until(lambda: len(seen) == 1 and queues[device].lingering)
    jax.block_until_ready(program(jnp.zeros(words, jnp.int32), count))
    # Nothing is waited for, and nothing else rings: the values that came before the ring was half full have run.
    helpers.wait_until(lambda: len(seen) > count // 2)
    hcb.stop_outfeed_receiver()
    assert seen == [0, *range(count)]


@pytest.mark.contract("H11", "H12")
def test_what_a_ring_holds_counts_as_held() -> None:
    """So a consumer wakes before the ring is full."""
    queue: Any = DeviceQueue(jax.devices()[0])
    queue._wake = lambda: None
    queue.put(SimpleNamespace(nbytes=3), ())
    assert queue.held() == 3
    queue.ring = SimpleNamespace(counters=SimpleNamespace(bytes=4))
    assert queue.held() == 7


@pytest.mark.contract("H11")
def test_values_that_come_steadily_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    # The consumer begins at 0, 10, 30 and 90 ms. It asks for the end only of what it began soon after the last begin.
    times = iter([0.0, 0.010, 0.011, 0.030, 0.036, 0.090])
    queue = DeviceQueue(jax.devices()[0])
    consumer = consumers.Consumer(queue, None)
    queue.consumer = consumer
    slept: list[float] = []

    def sleep(timeout: float | None = None) -> bool:
        slept.append(-1.0 if timeout is None else timeout)
        if len(slept) == 7:
            queue.consumer = None
        return True

    monkeypatch.setattr(consumers.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(consumer, "sleep", sleep)
    consumer._consume()
    lone, together, idle = consumers.LINGER_SECONDS, consumers.STEADY_SECONDS, -1.0
    # The first value; one soon after it; one whose functions took long; one after a long time.
    assert slept == [lone, idle, together, idle, lone, idle, lone]


@pytest.mark.contract("H11")
@pytest.mark.parametrize(
    ("seconds", "ran"), [(0.5 * consumers.QUICK_VALUE_SECONDS, [3]), (2 * consumers.QUICK_VALUE_SECONDS, [3, 2, 1, 0])]
)
def test_values_that_come_quickly_wait_for_each_other(
    seconds: float, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the function of each value runs, for so many seconds, another value comes."""
    times = itertools.count(0.0, seconds)
    queue, receiver = DeviceQueue(jax.devices()[0]), Receiver(before=-1, after=-1)
    consumer = queue.consumer = consumers.Consumer(queue, None)
    monkeypatch.setattr(queue, "_wake", lambda: None)
    monkeypatch.setattr(consumers.time, "monotonic", lambda: next(times))
    plain = receiver.deliver

    def deliver(device: Any, item: Any) -> None:
        plain(device, item)
        if receiver.ran[-1]:
            queue.put(receiver, [receiver.ran[-1] - 1])

    monkeypatch.setattr(receiver, "deliver", deliver)
    queue.put(receiver, [3])
    consumer._work()
    assert receiver.ran == ran
    queue.work_until(lambda: not queue.is_pending())
    assert receiver.ran == [3, 2, 1, 0]


@pytest.mark.contract("H11")
@pytest.mark.parametrize("count", [1, 10, 5000])
def test_taps_run_without_being_waited_for(count: int) -> None:
    last = threading.Event()

    def tap(arg: Any, transforms: Any) -> None:
        if arg == count:
            last.set()

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(tap, x + 1)

    program = jax.jit(lambda x: jax.lax.fori_loop(0, count, step, x))
    jax.block_until_ready(program(jnp.float32(0)))
    assert last.wait(helpers.DEADLINE), f"the last of {count} taps did not run by itself"


@pytest.mark.contract("H13")
def test_a_barrier_does_not_wait_for_the_consumer_to_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    # Were it to, this would take hours.
    monkeypatch.setattr(consumers, "LINGER_SECONDS", 3600.0)
    record, one = helpers.Record(), jax.jit(lambda x: hcb.id_tap(record.tap, x))
    for number in range(3):
        one(jnp.float32(number))
        hcb.barrier_wait()
    assert [float(arg) for arg in record.args] == [0, 1, 2]
    # Ends the long sleep as well.
    hcb.stop_outfeed_receiver()


@pytest.mark.contract("H5")
def test_a_call_runs_what_the_consumer_sleeps_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "LINGER_SECONDS", 3600.0)
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


class Receiver:
    """A callback whose values are interrupted where a number says so: before the function, in it, or after it."""

    nbytes = 1
    callback: Any = None

    def __init__(self, before: int, after: int):
        self.before, self.after, self.ran = before, after, []

    def deliver(self, device: Any, item: Any) -> None:
        (value,) = item.arrays
        if value == self.before:
            self.before = -1
            raise Interrupted
        item.hand_to(self.ran.append)
        if value == self.after:
            raise Interrupted


@pytest.mark.contract("H13")
def test_a_barrier_sleeps_while_the_consumer_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not ask again and again, and take the interpreter lock from the function for which it waits."""
    queue, receiver = DeviceQueue(jax.devices()[0]), Receiver(before=-1, after=-1)
    monkeypatch.setattr(queue, "_wake", lambda: None)
    queue.put(receiver, [0])
    ended, ends = threading.Event(), queue.end
    asked: list[bool] = []

    class Working:
        """A consumer whose function takes long."""

        thread = threading.Thread(target=ended.wait)

        def is_current(self) -> bool:
            return False

        def wake(self) -> None:
            pass

    def end() -> Any:
        really = ends()

        def asks() -> bool:
            asked.append(really())
            assert len(asked) < 10, "the barrier asks without a pause"
            return asked[-1]

        return asks

    def waits(enough: Any) -> None:
        # Meanwhile the consumer has run the value.
        queue._take_turn(lambda: False)

    consumer: Any = Working()
    consumer.thread.start()
    queue.consumer = consumer
    monkeypatch.setattr(queue, "end", end)
    monkeypatch.setattr(queue, "_wait_for_progress", waits)
    try:
        queue.join()
    finally:
        ended.set()
        consumer.thread.join(helpers.DEADLINE)
    assert receiver.ran == [0] and asked[0] is False and asked[-1] is True


@pytest.mark.contract("H12")
def test_an_interrupt_while_a_queue_is_worked_off_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, receiver = DeviceQueue(jax.devices()[0]), Receiver(before=1, after=2)
    # Without a consumer, so that this thread does the work.
    monkeypatch.setattr(queue, "_wake", lambda: None)
    for number in range(5):
        queue.put(receiver, [number])
    # A function that has not begun is run later, one that has counts as run.
    for ran, left in (([0], 4), ([0, 1, 2], 2)):
        with pytest.raises(Interrupted):
            queue.drain()
        assert receiver.ran == ran and queue.items.held() == (left, left)
    queue.drain()
    assert receiver.ran == [0, 1, 2, 3, 4] and queue.items.held() == (0, 0)


@pytest.mark.contract("H12")
def test_an_interrupt_before_anybody_was_woken_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, receiver = DeviceQueue(jax.devices()[0]), Receiver(before=-1, after=-1)
    monkeypatch.setattr(queue, "_wake", lambda: None)
    entered, go_on = threading.Event(), threading.Event()

    def deliver(device: Any, item: Any) -> None:
        item.hand_to(lambda value: None)
        entered.set()
        assert go_on.wait(helpers.DEADLINE)

    def interrupted() -> None:
        raise Interrupted

    def drain() -> None:
        with pytest.raises(Interrupted):
            queue.drain()

    monkeypatch.setattr(receiver, "deliver", deliver)
    queue.put(receiver, [0])
    # If one waits for ever, the test fails, and the process still ends.
    first = threading.Thread(target=drain, daemon=True)
    first.start()
    assert entered.wait(helpers.DEADLINE)
    monkeypatch.setattr(queue, "tell", interrupted)
    second = threading.Thread(target=queue.drain, daemon=True)
    second.start()
    while not queue._waiting:
        assert second.is_alive()
    go_on.set()
    for thread in (first, second):
        thread.join(helpers.DEADLINE)
        assert not thread.is_alive()


@pytest.mark.contract("H12")
def test_values_from_many_threads_keep_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, receiver = DeviceQueue(jax.devices()[0]), Receiver(before=-1, after=-1)
    queue.budget = 7
    most = []
    plain = receiver.deliver

    def deliver(device: Any, item: Any) -> None:
        most.append(queue.items.held()[0])
        plain(device, item)

    monkeypatch.setattr(receiver, "deliver", deliver)

    def put(first: int) -> None:
        for number in range(first, first + 500):
            queue.put(receiver, [number])

    threads = [threading.Thread(target=put, args=(1000 * number,)) for number in range(8)]
    try:
        # As many interleavings as can be had.
        with switch_interval_of(1e-6):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(helpers.DEADLINE)
            queue.join()
    finally:
        queue.stop()
    assert sorted(receiver.ran) == [1000 * thread + number for thread in range(8) for number in range(500)]
    for thread in range(8):
        mine = [number for number in receiver.ran if number // 1000 == thread]
        assert mine == sorted(mine), f"values of thread {thread} are out of order"
    assert max(most) <= 7 and queue.held() == 0


@pytest.mark.contract("H11")
def test_a_consumer_sleeps_on_for_no_longer_than_is_promised() -> None:
    """A tap may begin 15 milliseconds later while taps follow each other quickly."""
    assert sum(consumers.LINGER_SECONDS * 2**each for each in range(consumers.MOST_LINGERS)) <= 15.5e-3
    assert consumers.STEADY_SECONDS <= 15.5e-3


@pytest.mark.contract("H12")
@pytest.mark.parametrize(("values", "starts"), [(1, []), (2, [True])])
def test_a_thread_that_an_exception_ends_starts_another_only_for_what_waits(
    values: int, starts: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, receiver = DeviceQueue(jax.devices()[0]), Receiver(before=-1, after=0)
    started: list[bool] = []
    monkeypatch.setattr(queue, "_wake", lambda: None)
    monkeypatch.setattr(queue, "start", lambda: started.append(queue.is_pending()))
    consumer = queue.consumer = consumers.Consumer(queue, None)
    for number in range(values):
        queue.put(receiver, [number])
    with pytest.raises(Interrupted):
        consumer._consume()
    assert receiver.ran == [0] and started == starts and queue.consumer is None
