"""H24: taps that are handed over in C keep every promise."""

from __future__ import annotations

import collections
import contextlib
import gc
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import DEADLINE
from support.large_values import WORDS, looped, number_in, queue_budget, taken_while_locked

import hostcb as hcb
from hostcb._native import library as native
from hostcb._runtime.queue import rings
from hostcb._runtime.queue.queues import queues

pytestmark = pytest.mark.contract("H24")

needs_library = pytest.mark.skipif(native.library.problem is not None, reason=f"the library: {native.library.problem}")


@needs_library
@pytest.mark.parametrize(
    ("shape", "steps", "microseconds", "least"),
    [((), 100_000, 20_000, 100), ((WORDS + 16,), 1000, 50_000, 20)],
    ids=["small", "large"],
)
def test_a_tap_does_not_wait_for_the_interpreter_lock(shape: Any, steps: int, microseconds: int, least: int) -> None:
    # The queue has room for all of them.
    seen: list[float] = []
    program = looped(lambda arg, transforms: seen.append(float(arg.flat[0])), steps)
    program(jnp.zeros(shape)).block_until_ready()
    hcb.barrier_wait()
    seen.clear()
    taken, before = taken_while_locked(program, jnp.zeros(shape), microseconds)
    assert seen == [float(n) for n in range(steps)]
    assert taken > least or before > steps // 2, f"{taken} taps were handed over while Python was locked"


@needs_library
def test_the_text_of_a_program_has_no_numbers_of_the_process() -> None:
    def text() -> str:
        function = lambda arg, transforms: None
        return str(jax.jit(lambda x: hcb.id_tap(function, hcb.id_tap(function, x) + 1)).lower(1.0).as_text())

    first = text()
    assert native.TARGET in first
    looped(lambda arg, transforms: None, 3)(0.0).block_until_ready()
    assert text() == first


@needs_library
def test_ring_and_queue_together_keep_the_budget(devices: list[jax.Device]) -> None:
    held, values, budget = [], [], 4096
    queue = queues[devices[0]]

    def tap(arg: Any, transforms: Any) -> None:
        held.append(queue.held())
        values.append(int(arg[0]))
        if len(values) % 50 == 0:
            # The device goes on meanwhile, and fills the queue.
            time.sleep(1e-3)

    with queue_budget(budget):
        looped(tap, 2000)(jnp.zeros(64, jnp.int32)).block_until_ready()
    assert values == list(range(2000))
    assert max(held) <= budget


@needs_library
def test_more_values_than_the_ring_holds(devices: list[jax.Device]) -> None:
    gate, values = threading.Event(), []

    def tap(arg: Any, transforms: Any) -> None:
        assert gate.wait(DEADLINE)
        values.append(int(arg[0]))

    steps = rings.CAPACITY // 8192 + 500
    program = looped(tap, steps)
    gate.set()
    program(jnp.zeros(2048, jnp.int32)).block_until_ready()
    hcb.barrier_wait()
    values.clear()
    gate.clear()
    out = program(jnp.zeros(2048, jnp.int32))
    gate.set()
    hcb.barrier_wait()
    assert int(out[0]) == steps and values == list(range(steps))


@pytest.mark.contract("H18")
@needs_library
@pytest.mark.parametrize(("shape", "steps"), [((), 200), ((WORDS + 1,), 20)], ids=["small", "large"])
def test_values_of_a_dropped_executable_arrive(shape: Any, steps: int, devices: list[jax.Device]) -> None:
    from hostcb._runtime.queue import sites

    gate, seen = threading.Event(), []

    def tap(arg: Any, transforms: Any) -> None:
        gate.wait(DEADLINE)
        seen.append(number_in(arg))

    gate.set()
    program = looped(tap, steps)
    program(jnp.zeros(shape)).block_until_ready()
    hcb.barrier_wait()
    seen.clear()
    gate.clear()
    program(jnp.zeros(shape)).block_until_ready()
    del program
    jax.clear_caches()
    gc.collect()
    assert sites.sites_to_forget, "the executable should have ended, with values in the ring"
    gate.set()
    hcb.barrier_wait()
    assert seen == [float(n) for n in range(steps)]
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
