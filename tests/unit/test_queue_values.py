"""A queue holds so many values and no more: at that number, the thread that puts one more runs the oldest."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import hostcb as hcb
from hostcb._native.library import library
from hostcb._runtime.queue import device_queue
from hostcb._runtime.queue.device_queue import DeviceQueue
from hostcb._runtime.queue.queues import queues

pytestmark = pytest.mark.contract("H12")

MOST = 4


class Receiver:
    callback: Any = None
    nbytes = 8

    def __init__(self, name: int, ran: list[int]):
        self.name, self.ran = name, ran

    def deliver(self, device: Any, item: Any) -> None:
        item.hand_to(lambda: self.ran.append(self.name))


@pytest.mark.parametrize("count", [MOST - 1, MOST, MOST + 1])
def test_values_below_at_and_above_the_most(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_queue.MOST_VALUES == 500_000
    monkeypatch.setattr(device_queue, "MOST_VALUES", MOST)
    queue, ran = DeviceQueue(jax.devices()[0]), list[int]()
    # Without a consumer.
    queue._wake = lambda: None  # type: ignore[method-assign]
    for name in range(count):
        queue.put(Receiver(name, ran), ())
    assert (len(list(queue.items)), ran) == ((count, []) if count <= MOST else (MOST, [*range(count - MOST)]))
    queue.drain()
    assert ran == [*range(count)]


@pytest.mark.parametrize("of_ring", [MOST - 2, MOST - 1])
def test_values_of_the_ring_count_too(of_ring: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_queue, "MOST_VALUES", MOST)
    queue, ran = DeviceQueue(jax.devices()[0]), list[int]()
    queue._wake = lambda: None  # type: ignore[method-assign]
    queue.put(Receiver(0, ran), ())
    ring: Any = SimpleNamespace(
        held=lambda: (of_ring, 0),
        oldest=lambda: None,
        is_pending=lambda: False,
        counters=SimpleNamespace(tail=0, head=0),
        is_expecting=lambda: False,
    )
    queue.ring = ring
    queue.put(Receiver(1, ran), ())
    assert ran == ([] if of_ring + 1 < MOST else [0])


@pytest.mark.skipif(library.problem is not None, reason=f"the native extension: {library.problem}")
def test_after_a_barrier_no_value_counts() -> None:
    """What ended and counted all the same would fill the ring, after 500,000 values."""
    program = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: hcb.id_tap(lambda *_: None, y), x))
    for _ in range(3):
        jax.block_until_ready(program(1.0))
    hcb.barrier_wait()
    ring = queues[jax.devices()[0]].ring
    assert ring is not None and ring.held() == (0, 0)


@pytest.mark.contract("H11", "H14")
def test_what_comes_while_an_exception_ends_the_consumer_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # It reports the end of the thread, which is on purpose.
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    queue, ran = DeviceQueue(jax.devices()[0]), list[int]()
    third, ended = threading.Event(), list[threading.Thread]()

    class Ending(Receiver):
        """Ends the consumer, when two further values have come meanwhile."""

        def deliver(self, device: Any, item: Any) -> None:
            super().deliver(device, item)
            ended.append(threading.current_thread())
            for name in (1, 2):
                queue.put(Last(name, ran), ())
            raise SystemExit

    class Last(Receiver):
        def deliver(self, device: Any, item: Any) -> None:
            super().deliver(device, item)
            if self.name == 2:
                third.set()

    queue.put(Ending(0, ran), ())
    assert third.wait(20)
    queue.stop()
    ended[0].join(20)
    assert ran == [0, 1, 2]
