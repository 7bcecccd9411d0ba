"""H24: what other threads, signal handlers and finalizers may do in the middle of the hand-over in C."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import DEADLINE
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._compat import extend
from hostcb._lowering import views
from hostcb._native.library import library
from hostcb._runtime.observing import observers, recording
from hostcb._runtime.queue import sites
from hostcb._runtime.queue.device_queue import DeviceQueue
from hostcb._runtime.queue.queues import queues
from hostcb._runtime.queue.sites import is_small

pytestmark = [
    pytest.mark.contract("H24"),
    pytest.mark.skipif(library.problem is not None, reason=f"the library: {library.problem}"),
]


def accepted(device: Any) -> int:
    ring = queues[device].ring
    return 0 if ring is None else int(ring.counters.accepted)


# The ring has just run empty, and C has gone back to the begin of its memory. Python does not know that yet.
MEMORY_IS_USED_AGAIN = """
from hostcb._native.library import library
from hostcb._runtime.queue import rings
from hostcb._runtime.queue.queues import queues

seen = []
tap = lambda arg, transforms: seen.append(int(arg))
one = jax.jit(lambda x: hcb.id_tap(tap, x))
five = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda i, x: hcb.id_tap(tap, x) + 1, x))
for program in (one, five):
    program(0).block_until_ready()
    hcb.barrier_wait()
seen.clear()
ring = queues[jax.devices()[0]].ring
done, went_back, go_on = library.held.hostcb_done, threading.Event(), threading.Event()

def slow(address, position):
    done(address, position)
    if not went_back.is_set():
        went_back.set()
        assert go_on.wait(30)

library.held.hostcb_done = slow
one(1).block_until_ready()
assert went_back.wait(30)
five(10).block_until_ready()
go_on.set()
hcb.barrier_wait()
assert seen == [1, 10, 11, 12, 13, 14], seen

# A thread has looked up the position, and the memory behind it holds other records before it reads them.
large = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: hcb.id_tap(lambda arg, transforms: None, x) + 0, x))
position = ring.counters.head
for _ in range(3):
    large(jnp.zeros(100, int)).block_until_ready()
    hcb.barrier_wait()
    five(0).block_until_ready()
    hcb.barrier_wait()
    read = rings.Read()
    assert library.held.hostcb_read(ring.address, position, read, rings.MOST_READ) == 0
    assert read[0] == ring.counters.tail
print(json.dumps("ended"))
"""


def test_memory_that_is_used_again_is_not_read_as_old_records() -> None:
    assert run_program(MEMORY_IS_USED_AGAIN, devices=None, env={"HOSTCB_NATIVE": "1"}, timeout=60).json() == "ended"


@pytest.mark.contract("H5")
def test_order_when_python_accepts_a_value_just_after_the_ring_ran_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def tap(arg: Any, transforms: Any) -> None:
        seen.append(float(np.ravel(arg)[0]))

    monkeypatch.setattr(views, "suits", is_small)

    def mixed(x: Any) -> Any:
        # Values of 160 KB go through Python here.
        large = hcb.id_tap(tap, jnp.zeros(40_000) + x)
        return hcb.id_tap(tap, x + 1 + 0 * large[0])

    small, both = jax.jit(lambda x: hcb.id_tap(tap, x)), jax.jit(mixed)
    for program in (small, both):
        program(0.0).block_until_ready()
        hcb.barrier_wait()
    seen.clear()
    done, went_back, go_on = library.held.hostcb_done, threading.Event(), threading.Event()

    def slow(address: Any, position: int) -> None:
        done(address, position)
        if not went_back.is_set():
            went_back.set()
            assert go_on.wait(DEADLINE)

    monkeypatch.setattr(library.held, "hostcb_done", slow)
    small(1.0).block_until_ready()
    assert went_back.wait(DEADLINE)
    both(10.0).block_until_ready()
    go_on.set()
    hcb.barrier_wait()
    assert seen == [1.0, 10.0, 11.0]


def test_a_program_in_the_middle_of_a_handler_does_not_take_its_binding(
    monkeypatch: pytest.MonkeyPatch, devices: list[jax.Device]
) -> None:
    """As a signal handler may run one there."""
    seen: list[Any] = []
    inner = jax.jit(lambda x: hcb.id_tap(lambda arg, transforms: seen.append(("inner", int(arg))), x))
    inner(0).block_until_ready()

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(lambda arg, transforms: seen.append(("outer", float(arg[3]))), x) + 1

    outer = jax.jit(lambda x: jax.lax.fori_loop(0, 5, step, x))
    hcb.barrier_wait()
    seen.clear()
    bind = DeviceQueue.bind

    def interrupted(self: DeviceQueue, site: Any) -> None:
        monkeypatch.setattr(DeviceQueue, "bind", bind)
        inner(7).block_until_ready()
        bind(self, site)

    monkeypatch.setattr(DeviceQueue, "bind", interrupted)
    outer(jnp.zeros(4)).block_until_ready()
    hcb.barrier_wait()
    before = accepted(devices[0])
    outer(jnp.zeros(4)).block_until_ready()
    hcb.barrier_wait()
    assert seen == [("inner", 7)] + [("outer", float(n)) for n in range(5)] * 2
    assert accepted(devices[0]) == before + 5


class Receiver:
    """Receives values of a queue without a program."""

    nbytes = 4
    callback: Any = "a callback"

    def __init__(self, function: Any) -> None:
        self._function = function

    def deliver(self, device: Any, item: Any) -> None:
        item.hand_to(self._function)


class Unbound:
    """Stands for a call site whose program runs in a callback, where its own first value is not queued."""

    def bind(self, ring: Any) -> None:
        pass


@pytest.fixture
def queue() -> Iterator[DeviceQueue]:
    queue = DeviceQueue("a device")
    yield queue
    queue.stop()


@pytest.mark.contract("H11")
def test_values_run_without_a_barrier_when_a_callback_makes_the_ring(queue: DeviceQueue) -> None:
    gate, ended = threading.Event(), threading.Event()

    def first() -> None:
        assert gate.wait(DEADLINE)
        queue.bind(Unbound())  # type: ignore[arg-type]

    for function in (first, lambda: None, ended.set):
        queue.put(Receiver(function), ())
    gate.set()
    assert ended.wait(DEADLINE), "the values wait for a barrier"


@pytest.mark.contract("H12")
def test_c_knows_how_many_values_python_holds(queue: DeviceQueue) -> None:
    gate = threading.Event()
    queue.bind(Unbound())  # type: ignore[arg-type]
    for _ in range(5):
        queue.put(Receiver(lambda: gate.wait(DEADLINE)), ())
    assert queue.ring is not None
    counters = queue.ring.counters
    held = counters.outside_values, counters.outside_bytes
    gate.set()
    queue.join()
    assert held == (5, 20)
    assert (counters.outside_values, counters.outside_bytes) == (0, 0)


def test_a_value_that_a_finalizer_runs_does_not_run_twice(
    monkeypatch: pytest.MonkeyPatch, devices: list[jax.Device]
) -> None:
    seen: list[float] = []
    program = jax.jit(
        lambda x: jax.lax.fori_loop(0, 5, lambda i, x: hcb.id_tap(lambda a, t: seen.append(float(a)), x) + 1, x)
    )
    program(0.0).block_until_ready()
    hcb.barrier_wait()
    seen.clear()
    item = sites.Site.item

    def interrupted(self: Any, *record: Any) -> Any:
        monkeypatch.setattr(sites.Site, "item", item)
        queues[devices[0]]._run_oldest()
        return item(self, *record)

    monkeypatch.setattr(sites.Site, "item", interrupted)
    program(0.0).block_until_ready()
    hcb.barrier_wait()
    assert seen == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.contract("H18")
def test_a_site_whose_last_values_run_while_its_executable_ends_is_forgotten(queue: DeviceQueue) -> None:
    queue.bind(Unbound())  # type: ignore[arg-type]
    ring = queue.ring
    assert ring is not None

    class Ended:
        number = -1
        rings = (ring,)

    def runs() -> tuple[int, int, int]:
        return -1, 0, ring.counters.head

    sites._sites[-1] = Ended()  # type: ignore[assignment]
    ring.oldest = runs  # type: ignore[method-assign]
    sites.SiteKeeper(Ended())  # type: ignore[arg-type]
    assert -1 not in sites._sites and -1 not in sites.sites_to_forget


@pytest.mark.contract("H22")
def test_a_trace_that_begins_while_another_ends_gets_the_values_through_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[bool] = []
    begun: list[recording.Recorder] = []

    def tell(yes: bool) -> None:
        if not yes and not begun:
            begun.append(recording.begin(str(tmp_path / "second"), False))
        told.append(yes)

    monkeypatch.setattr(library, "all_through_python", tell)
    recording.end(recording.begin(str(tmp_path / "first"), False))
    assert observers.on is not None and told[-1]
    recording.end(begun[0])
    assert observers.on is None and not told[-1]


def test_a_program_for_cpu_is_lowered_where_jax_has_no_cpu_client(monkeypatch: pytest.MonkeyPatch) -> None:
    get_backend = extend.get_backend

    def without_cpu(platform: Any = None) -> Any:
        if platform == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return get_backend(platform)

    monkeypatch.setattr(extend, "get_backend", without_cpu)
    program = jax.jit(lambda x: hcb.id_tap(lambda arg, transforms: None, x))
    assert "custom_call" in program.trace(1).lower(lowering_platforms=("cpu",)).as_text()
