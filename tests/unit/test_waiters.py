"""H30: the threads of barriers with a timeout, and what is outstanding of several programs."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest

import hostcb as hcb
from hostcb._runtime.executions import barrier
from hostcb._runtime.queue.device_queue import DeviceQueue
from hostcb._threads import deadlines
from hostcb._threads.deadlines import Waiter

pytestmark = pytest.mark.contract("H30")

PATIENCE = 20.0


class Waitable:
    """An execution that has ended."""

    waiter: Any = None

    def wait(self) -> None: ...

    def done(self) -> bool:
        return True


def test_a_waiter_that_has_ended_is_not_kept() -> None:
    waiter = Waiter(Waitable())
    waiter.join()
    assert waiter not in deadlines._waiters


def test_what_waits_is_listed_in_its_order() -> None:
    begun, release = threading.Event(), threading.Event()

    def first(value: Any, transforms: Any) -> None:
        begun.set()
        release.wait(PATIENCE)

    def second(value: Any, transforms: Any) -> None: ...

    def third(value: Any, transforms: Any) -> None: ...

    for function in (first, second, third):
        hcb.id_tap(function, np.float32(1))
    assert begun.wait(PATIENCE)
    try:
        with pytest.raises(hcb.BarrierTimeoutError) as caught:
            hcb.barrier_wait(timeout=0.01)
    finally:
        release.set()
    hcb.barrier_wait()
    places = [str(caught.value).index(f"{function.__name__} (") for function in (first, second, third)]
    assert places == sorted(places), caught.value


def test_the_end_of_a_program_is_not_the_end_of_the_time() -> None:
    program_ends, tap_ends, begun = threading.Event(), threading.Event(), threading.Event()

    def called(operand: Any) -> Any:
        begun.set()
        program_ends.wait(PATIENCE)
        return operand

    ended: list[Any] = []

    def wait() -> None:
        try:
            ended.append(hcb.barrier_wait(timeout=PATIENCE))
        except Exception as error:
            ended.append(error)

    hcb.id_tap(lambda *_: tap_ends.wait(PATIENCE), jax.device_put(np.float32(1), jax.devices()[-1]))
    program = jax.pmap(lambda x: hcb.call(called, x, result_shape=x), devices=jax.devices()[:2])
    result = program(np.ones(2, np.float32))
    assert begun.wait(PATIENCE)
    thread = threading.Thread(target=wait)
    thread.start()
    # One-sided: a slow machine can only miss a barrier that ends too early.
    thread.join(0.2)
    program_ends.set()
    jax.block_until_ready(result)
    thread.join(0.2)
    early = [*ended]
    tap_ends.set()
    thread.join(PATIENCE)
    assert (early, ended) == ([], [None])


@pytest.mark.contract("H21")
def test_without_the_hooks_a_timeout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier.tracker, "informed", False)
    with pytest.raises(hcb.UnknownJaxError, match="timeout"):
        hcb.barrier_wait(timeout=1.0)


@pytest.mark.contract("H13")
def test_a_barrier_does_not_wait_for_what_comes_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, waits = threading.Event(), threading.Event()
    gates = {1: threading.Event(), 2: threading.Event()}
    plain = DeviceQueue.end

    def end(queue: DeviceQueue) -> Any:
        found = plain(queue)
        if threading.current_thread() is thread and queue.is_pending():
            waits.set()
        return found

    def tap(value: Any, transforms: Any) -> None:
        begun.set()
        gates[int(value)].wait(PATIENCE)

    thread = threading.Thread(target=hcb.barrier_wait)
    monkeypatch.setattr(DeviceQueue, "end", end)
    hcb.id_tap(tap, np.int32(1))
    assert begun.wait(PATIENCE)
    thread.start()
    assert waits.wait(PATIENCE)
    hcb.id_tap(tap, np.int32(2))
    gates[1].set()
    # Less than the second tap waits at most.
    thread.join(PATIENCE / 2)
    returned = not thread.is_alive()
    gates[2].set()
    hcb.barrier_wait()
    assert returned
