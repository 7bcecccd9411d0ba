"""H24: taps that are handed over in C keep every promise."""

from __future__ import annotations

import collections
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import DEADLINE, Record
from support.large_values import taken_while_locked

import hostcb as hcb
from hostcb._native import library as native
from hostcb._runtime.queue import rings
from hostcb._runtime.queue.queues import queues

pytestmark = pytest.mark.contract("H24")

needs_library = pytest.mark.skipif(native.library.problem is not None, reason=f"the library: {native.library.problem}")
BUDGET = "jax_host_callback_max_queue_byte_size"


def taps_in_loop(function: Any, steps: int) -> Any:
    """A program that taps `x, x + 1, …` in a loop."""

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(function, x) + 1

    return jax.jit(lambda x: jax.lax.fori_loop(0, steps, step, x))


@needs_library
def test_a_tap_does_not_wait_for_the_interpreter_lock() -> None:
    steps, seen = 100_000, []
    program = taps_in_loop(lambda arg, transforms: seen.append(float(arg)), steps)
    program(0.0).block_until_ready()
    hcb.barrier_wait()
    seen.clear()
    taken, before = taken_while_locked(program, 0.0, 20_000)
    assert seen == [float(n) for n in range(steps)]
    assert taken > 100 or before > steps // 2, f"{taken} taps were handed over while Python was locked"


@needs_library
def test_the_text_of_a_program_has_no_numbers_of_the_process() -> None:
    def text() -> str:
        function = lambda arg, transforms: None
        return str(jax.jit(lambda x: hcb.id_tap(function, hcb.id_tap(function, x) + 1)).lower(1.0).as_text())

    first = text()
    assert native.TARGET in first
    taps_in_loop(lambda arg, transforms: None, 3)(0.0).block_until_ready()
    assert text() == first


def test_order_with_calls_eager_taps_and_meshes(devices: list[jax.Device]) -> None:
    record = Record()
    mesh = helpers.mesh_of(devices[:2])

    def program(x: Any) -> Any:
        x = hcb.id_tap(record.labelled("tap"), x)
        x = hcb.call(record.caller("call"), x + 1, result_shape=x)
        return hcb.id_tap(record.labelled("tap"), x + 1)

    compiled = jax.jit(program)
    spread = jax.jit(lambda x: hcb.id_tap(record.labelled("mesh"), x))
    over = jax.device_put(np.arange(2.0), jax.NamedSharding(mesh, jax.P()))
    for n in range(50):
        hcb.id_tap(record.labelled("eager"), np.float32(10 * n - 1))
        out = compiled(np.float32(10 * n))
        hcb.id_tap(record.labelled("eager"), out)
        if n % 10 == 0:
            spread(over)
    hcb.barrier_wait()
    expected = []
    for n in range(50):
        expected += ["eager", "tap", "call", "tap", "eager"] + ["mesh"] * (n % 10 == 0)
    assert record.labels == expected
    assert [float(seen.arg) for seen in record.all if seen.label != "mesh"] == [
        float(10 * n + k) for n in range(50) for k in (-1, 0, 1, 2, 2)
    ]


@pytest.fixture
def small_budget() -> Iterator[int]:
    hcb.barrier_wait()
    budget = 4096
    jax.config.update(BUDGET, budget)
    yield budget
    hcb.barrier_wait()
    jax.config.update(BUDGET, None)


@needs_library
def test_ring_and_queue_together_keep_the_budget(small_budget: int, devices: list[jax.Device]) -> None:
    held, values = [], []
    queue = queues[devices[0]]

    def tap(arg: Any, transforms: Any) -> None:
        held.append(queue.held())
        values.append(int(arg[0]))
        if len(values) % 50 == 0:
            # The device goes on meanwhile, and fills the queue.
            time.sleep(1e-3)

    taps_in_loop(tap, 2000)(jnp.zeros(64, jnp.int32)).block_until_ready()
    hcb.barrier_wait()
    assert values == list(range(2000))
    assert max(held) <= small_budget


@needs_library
def test_more_values_than_the_ring_holds(devices: list[jax.Device]) -> None:
    gate, values = threading.Event(), []

    def tap(arg: Any, transforms: Any) -> None:
        assert gate.wait(DEADLINE)
        values.append(int(arg[0]))

    steps = rings.CAPACITY // 8192 + 500
    program = taps_in_loop(tap, steps)
    gate.set()
    program(jnp.zeros(2048, jnp.int32)).block_until_ready()
    hcb.barrier_wait()
    values.clear()
    gate.clear()
    out = program(jnp.zeros(2048, jnp.int32))
    gate.set()
    hcb.barrier_wait()
    assert int(out[0]) == steps and values == list(range(steps))


def test_a_program_nested_in_a_callback_runs_its_taps_at_once() -> None:
    """Also one that has handed over its values in C before, when it was not nested."""
    seen: list[float] = []
    inner = taps_in_loop(lambda arg, transforms: seen.append(float(arg)), 3)
    inner(0.0).block_until_ready()
    inner(3.0).block_until_ready()
    hcb.barrier_wait()
    assert seen == [0, 1, 2, 3, 4, 5]
    at_return: list[list[float]] = []

    def outer(arg: Any) -> Any:
        seen.clear()
        inner(arg).block_until_ready()
        at_return.append(list(seen))
        return arg

    outer_program = jax.jit(lambda x: hcb.call(outer, x, result_shape=x))
    for n in range(3):
        outer_program(np.float32(n)).block_until_ready()
    hcb.barrier_wait()
    assert at_return == [[n, n + 1, n + 2] for n in range(3)]
    inner(7.0).block_until_ready()
    hcb.barrier_wait()
    assert seen[-3:] == [7, 8, 9]


def test_a_tap_whose_function_runs_a_program_that_taps() -> None:
    """With a queue that is always full, where waiting for the consumer would hang."""
    jax.config.update(BUDGET, 16)
    try:
        seen: list[float] = []
        inner = taps_in_loop(lambda arg, transforms: seen.append(float(arg)), 2)

        def tap(arg: Any, transforms: Any) -> None:
            inner(arg).block_until_ready()

        program = taps_in_loop(tap, 100)
        for _ in range(3):
            program(0.0).block_until_ready()
        hcb.barrier_wait()
    finally:
        jax.config.update(BUDGET, None)
    assert seen == [float(n + k) for n in range(100) for k in (0, 1)] * 3


@needs_library
def test_values_of_a_dropped_executable_arrive(devices: list[jax.Device]) -> None:
    from hostcb._runtime.queue import sites

    gate, seen = threading.Event(), []

    def tap(arg: Any, transforms: Any) -> None:
        gate.wait(DEADLINE)
        seen.append(float(arg))

    gate.set()
    program = taps_in_loop(tap, 200)
    program(0.0).block_until_ready()
    hcb.barrier_wait()
    seen.clear()
    gate.clear()
    program(0.0).block_until_ready()
    del program
    jax.clear_caches()
    gc.collect()
    assert sites.sites_to_forget, "the executable should have ended, with values in the ring"
    gate.set()
    hcb.barrier_wait()
    assert seen == [float(n) for n in range(200)]
    queues[devices[0]].stop()
    assert not sites.sites_to_forget


@pytest.mark.contract("H12", "H18")
def test_values_of_a_dropped_executable_wait_for_their_own_device_alone(devices: list[jax.Device]) -> None:
    """All wait when their program is dropped; then those of one device run after those of all others."""
    runs, last, first_gate, last_gate = 10, devices[-1], threading.Event(), threading.Event()
    others, seen = threading.Semaphore(0), []

    def tap(arg: Any, transforms: Any, device: Any) -> None:
        (last_gate if device == last else first_gate).wait(DEADLINE)
        seen.append(device)
        if device != last:
            others.release()

    def run(program: Any, times: int) -> None:
        for _ in range(times):
            jax.block_until_ready(program(np.zeros(len(devices), np.float32)))

    program = jax.pmap(lambda x: hcb.id_tap(tap, x, tap_with_device=True))
    first_gate.set(), last_gate.set()
    # The first runs may take another way into the queues than the later ones.
    run(program, 2)
    hcb.barrier_wait()
    while others.acquire(blocking=False):
        pass
    seen.clear(), first_gate.clear(), last_gate.clear()
    run(program, runs)
    del program
    jax.clear_caches()
    gc.collect()
    first_gate.set()
    assert all(others.acquire(timeout=DEADLINE) for _ in range(runs * (len(devices) - 1)))
    assert last not in seen
    last_gate.set()
    hcb.barrier_wait()
    assert collections.Counter(seen) == dict.fromkeys(devices, runs)


@pytest.mark.contract("H12")
def test_taps_of_a_program_on_several_devices_run_at_once_inside_a_tap(devices: list[jax.Device]) -> None:
    ran: list[str] = []
    inner = jax.pmap(lambda x: hcb.id_tap(lambda *_: ran.append("inner"), x), devices=devices[:2])

    def outer(arg: Any, transforms: Any) -> None:
        jax.block_until_ready(inner(np.arange(2, dtype=np.float32)))
        ran.append("outer")

    for _ in range(3):
        ran.clear()
        hcb.id_tap(outer, np.float32(0))
        hcb.barrier_wait()
        assert ran == ["inner", "inner", "outer"]


@pytest.mark.contract("H17")
def test_stop_and_go_on() -> None:
    seen: list[float] = []
    program = taps_in_loop(lambda arg, transforms: seen.append(float(arg)), 10)
    for n in range(20):
        program(10.0 * n).block_until_ready()
        hcb.stop_outfeed_receiver()
        assert len(seen) == 10 * (n + 1)
    assert seen == [float(n) for n in range(200)]


@pytest.mark.contract("H14")
def test_failures_are_reported_once_each() -> None:
    def tap(arg: Any, transforms: Any) -> None:
        if int(arg) % 10 == 3:
            raise ValueError(f"number {int(arg)}")

    taps_in_loop(tap, 50)(0.0).block_until_ready()
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    assert [str(each.exception) for each in caught.value.failures] == [f"number {n}" for n in (3, 13, 23, 33, 43)]


def test_counts_are_those_of_collections() -> None:
    """With many small operands of several types, among them those that cross in wider ones."""
    seen: list[Any] = []
    operands = (
        np.arange(3, dtype=np.int8),
        np.float32(2.5),
        np.zeros((0, 4), np.float32),
        jnp.asarray([1, -2], jnp.int4),
        jnp.asarray([1.5, -2], jnp.bfloat16),
        np.array([True, False]),
        np.array(1 + 2j, np.complex64),
    )
    program = jax.jit(lambda *x: hcb.id_tap(lambda arg, transforms: seen.append(arg), x))
    for _ in range(3):
        program(*operands)
    hcb.barrier_wait()
    assert len(seen) == 3
    for got in seen:
        for one, other in zip(got, operands, strict=True):
            assert type(one) is np.ndarray and one.flags.writeable and one.flags.owndata
            helpers.equal(one, np.asarray(other), "operand")
    assert collections.Counter(map(len, seen)) == {7: 3}


@needs_library
@pytest.mark.parametrize("what", ["fails", "fails in a thread", "nested", "traced"])
def test_taps_go_by_c_again_after_what_needed_python(what: str, devices: list[jax.Device], tmp_path: Any) -> None:
    fails = []

    def host(value: Any) -> Any:
        if fails:
            raise OSError("not now")
        return value

    @jax.jit
    def step(x: Any) -> Any:
        return hcb.id_tap(lambda *_: None, hcb.call(host, x, result_shape=x) + 1)

    def by_c() -> int:
        ring = queues[devices[0]].ring
        before = 0 if ring is None else ring.counters.accepted
        for _ in range(10):
            jax.block_until_ready(step(x))
        hcb.barrier_wait()
        return int(queues[devices[0]].ring.counters.accepted - before)  # type: ignore[union-attr]

    def failing() -> None:
        fails.append(True)
        with pytest.raises(jax.errors.JaxRuntimeError, match="not now"):
            step(x)
        fails.clear()

    x = jnp.ones(4)
    by_c()
    assert by_c() == 10
    if what == "fails":
        failing()
    elif what == "fails in a thread":
        thread = threading.Thread(target=failing)
        thread.start()
        thread.join(helpers.DEADLINE)
    elif what == "nested":
        outer = jax.jit(lambda x: hcb.call(lambda y: np.asarray(step(y)), x, result_shape=x))
        jax.block_until_ready(outer(x))
    else:
        with hcb.trace(str(tmp_path / "trace")):
            assert by_c() == 0
    with contextlib.suppress(hcb.CallbackException):
        hcb.barrier_wait()
    assert by_c() == 10
