"""H29: what a process has handed over is counted from the first question on, and the figures belong together."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import DEADLINE
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._runtime.queue.queues import queues

pytestmark = pytest.mark.contract("H29")

X = np.arange(8, dtype=np.float32)


def nothing(value: Any, transforms: Any) -> None:
    pass


def add_one(context: Any, out: Any, x: Any) -> None:
    np.add(np.asarray(x), 1, out=np.asarray(out))


def counted(function: Any) -> Any:
    """What happens while the function runs, and the barrier after it."""
    hcb.barrier_wait()
    before = hcb.stats()
    function()
    try:
        hcb.barrier_wait()
    finally:
        counted.after = hcb.stats() - before  # type: ignore[attr-defined]
    return hcb.stats() - before


KINDS = {
    "id_tap": lambda x: hcb.id_tap(nothing, x),
    "id_print": lambda x: hcb.id_print(x, threshold=1),
    "call": lambda x: hcb.call(lambda v: v + 1, x, result_shape=x),
    "pure_callback": lambda x: hcb.pure_callback(lambda v: v + 1, x, x),
    "io_callback": lambda x: hcb.io_callback(lambda v: v + 1, x, x),
    "ordered io_callback": lambda x: hcb.io_callback(lambda v: v + 1, x, x, ordered=True),
    "debug.callback": lambda x: hcb.debug.callback(lambda v: None, x) or x,
    "debug.print": lambda x: hcb.debug.print("{x} is it", x=x) or x,
    "buffer_callback": lambda x: hcb.buffer_callback(add_one, x)(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(lambda v: np.from_dlpack(v) + 1, x)(x),
}


@pytest.mark.parametrize("staged", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_callback_is_counted_with_its_bytes(kind: str, staged: Any) -> None:
    program, x = staged(lambda x: KINDS[kind](x)), jnp.ones((2, 3), jnp.float32)
    # A program that was compiled before is counted, too.
    helpers.finish(program(x))
    found = counted(lambda: [jax.block_until_ready(program(x)) for _ in range(5)])
    here = found[jax.devices()[0]]
    is_tap = kind in ("id_tap", "id_print")
    assert (here.taps, here.taps_run) == ((5, 5) if is_tap else (0, 0))
    assert here.calls == ({} if is_tap else {kind.removeprefix("ordered "): 5})
    assert here.calls["no such callback"] == 0
    assert here.bytes == 5 * 24
    assert (here.queued, here.queued_bytes, here.failures) == (0, 0, 0)


@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_each_device_has_its_own_figures(layout: helpers.Layout) -> None:
    def program(x):
        hcb.id_tap(nothing, x)
        return hcb.call(lambda v: v, x, result_shape=x)

    compiled = layout.compile(program)
    helpers.finish(compiled(layout.same(X)))
    found = counted(lambda: helpers.finish(compiled(layout.same(X))))
    for number, device in enumerate(jax.devices()):
        times = 1 if number in layout.callers else 0
        here = found[device]
        assert (here.taps, here.taps_run, here.calls["call"]) == (times, times, times), device
        assert here.bytes == 2 * times * X.nbytes and found[f"cpu:{device.id}"] == here


@pytest.mark.parametrize("size", [1, 100_000, 400_000], ids=["small", "in blocks", "large"])
@pytest.mark.parametrize("through_c", [True, False], ids=["c", "python"])
def test_what_waits_is_known_now_and_at_most(through_c: bool, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not through_c:
        monkeypatch.setattr("hostcb._lowering.views.library.is_ready", lambda: False)
    began, gate = threading.Event(), threading.Event()

    def slow(value: Any, transforms: Any) -> None:
        began.set()
        assert gate.wait(DEADLINE)

    program, x = jax.jit(lambda x: hcb.id_tap(slow, x)), jnp.ones(size, jnp.float32)
    gate.set()
    helpers.finish(program(x))
    hcb.barrier_wait()
    began.clear(), gate.clear()
    before = hcb.stats()
    for _ in range(7):
        program(x)
    assert began.wait(DEADLINE)
    waiting = (hcb.stats() - before)["cpu:0"]
    gate.set()
    hcb.barrier_wait()
    after = (hcb.stats() - before)["cpu:0"]
    assert (waiting.taps, waiting.taps_run, waiting.queued, waiting.queued_bytes) == (7, 0, 7, 7 * 4 * size)
    assert (after.taps, after.taps_run, after.queued, after.queued_bytes) == (7, 7, 0, 0)
    assert waiting.bytes == after.bytes == 7 * 4 * size
    assert after.most_queued >= 7 and after.most_queued_bytes >= 7 * 4 * size


def test_the_most_is_known_even_if_nobody_looked() -> None:
    source = f"""
hcb.stats()
began, gate = threading.Event(), threading.Event()
program = jax.jit(lambda x: hcb.id_tap(lambda v, t: (began.set(), gate.wait({DEADLINE})), x))
for number in range(20):
    program(jnp.ones(10) * number)
assert began.wait({DEADLINE})
gate.set()
hcb.barrier_wait()
here = hcb.stats()["cpu:0"]
print(json.dumps([here.most_queued, here.most_queued_bytes, here.queued]))
"""
    assert run_program(source).json() == [20, 800, 0]


def test_the_first_call_begins_the_counting_with_what_waits() -> None:
    source = f"""
began, gate = threading.Event(), threading.Event()
def slow(v, t):
    began.set()
    gate.wait({DEADLINE})
for number in range(5):
    jax.jit(lambda x: hcb.call(lambda v: v, x, result_shape=x))(jnp.ones(3))
    hcb.id_tap(lambda v, t: None, jnp.ones(3))
hcb.barrier_wait()
for number in range(4):
    hcb.id_tap(slow, jnp.ones(3))
assert began.wait({DEADLINE})
first = hcb.stats()["cpu:0"]
gate.set()
hcb.barrier_wait()
then = hcb.stats()["cpu:0"]
print(json.dumps([[each.taps, each.taps_run, each.queued, each.bytes, each.calls] for each in (first, then)]))
"""
    assert run_program(source).json() == [[4, 0, 4, 48, {}], [4, 4, 0, 48, {}]]


def test_failures_are_counted_on_their_devices(devices: list[jax.Device]) -> None:
    def bad(value: Any, transforms: Any = None) -> Any:
        raise ValueError

    def fails() -> None:
        for device in devices[:2]:
            hcb.id_tap(bad, jax.device_put(X, device))
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(jax.jit(lambda x: hcb.call(bad, x, result_shape=x))(X))
        with pytest.raises(jax.errors.JaxRuntimeError):
            wrong = jax.jit(lambda x: hcb.call(lambda v: v[:1], x, result_shape=x))
            jax.block_until_ready(wrong(X))

    with pytest.raises(hcb.CallbackException):
        counted(fails)
    found = counted.after  # type: ignore[attr-defined]
    assert [found[device].failures for device in devices[:3]] == [3, 1, 0]
    # They have run, and the barrier has waited for them.
    assert [(found[device].taps, found[device].taps_run) for device in devices[:2]] == [(1, 1), (1, 1)]
    assert found[devices[0]].calls["call"] == 2


def test_a_callback_without_a_device_is_counted_at_unknown() -> None:
    def bad() -> Any:
        raise ValueError

    def fails() -> None:
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(jax.jit(lambda: hcb.debug.callback(bad))())
            jax.effects_barrier()

    with pytest.raises(hcb.CallbackException):
        counted(fails)
    found = counted.after  # type: ignore[attr-defined]
    assert (found["unknown"].calls, found["unknown"].failures) == ({"debug.callback": 1}, 1)


def test_taps_from_inside_of_a_callback_and_inline_are_handed_over_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = jax.jit(lambda x: hcb.id_tap(nothing, x))
    outer = jax.jit(lambda x: hcb.call(lambda v: np.asarray(inner(v)), x, result_shape=x))
    here = counted(lambda: jax.block_until_ready(outer(X)))["cpu:0"]
    assert (here.taps, here.taps_run, here.calls, here.bytes) == (1, 1, {"call": 1}, 2 * X.nbytes)
    jax.config.update("jax_host_callback_inline", True)
    try:
        here = counted(lambda: hcb.id_tap(nothing, X))["cpu:0"]
        failed = counted(fails_inline)["cpu:0"]
    finally:
        jax.config.update("jax_host_callback_inline", False)
    assert (here.taps, here.taps_run, here.bytes) == (1, 1, X.nbytes)
    assert (failed.taps, failed.taps_run, failed.bytes) == (1, 1, X.nbytes)


def fails_inline() -> None:
    def refuses(value: Any, transforms: Any) -> None:
        raise ValueError("not in the mood")

    with pytest.raises(ValueError, match="not in the mood"):
        hcb.id_tap(refuses, X)


def test_no_figure_is_lost_when_many_threads_call_back() -> None:
    inner = jax.jit(lambda x: hcb.id_tap(nothing, hcb.pure_callback(lambda v: v, x, x)))
    inner(X)

    def work() -> None:
        threads = [threading.Thread(target=lambda: [inner(X) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            here = hcb.stats()["cpu:0"]
            assert here.taps_run <= here.taps and here.queued >= 0
        for thread in threads:
            thread.join(DEADLINE)

    here = counted(work)["cpu:0"]
    assert (here.taps, here.taps_run, here.calls["pure_callback"]) == (800, 800, 800)
    assert here.bytes == 1600 * X.nbytes


def test_the_time_that_a_device_waits_for_room_is_counted() -> None:
    source = f"""
jax.config.update("jax_host_callback_max_queue_byte_size", 100)
before = hcb.stats()
began, gate = threading.Event(), threading.Event()
def slow(v, t):
    began.set()
    gate.wait({DEADLINE})
program = jax.jit(lambda x: hcb.id_tap(slow, x))
thread = threading.Thread(target=lambda: [program(jnp.ones(20)) for _ in range(2)])
thread.start()
assert began.wait({DEADLINE})
from hostcb._runtime.queue.queues import queues
queue = queues[jax.devices()[0]]
while not queue._waiting:
    assert thread.is_alive() or queue.counts.waited_for_room
threading.Event().wait(0.05)
gate.set()
thread.join()
hcb.barrier_wait()
moment = hcb.stats()
here = (moment - before)["cpu:0"]
program(jnp.ones(1)), hcb.barrier_wait()
later = (hcb.stats() - moment)["cpu:0"].waited_for_room
import jax.extend.backend
jax.extend.backend.clear_backends()
kept = (hcb.stats() - before)["cpu:0"].waited_for_room
print(json.dumps([here.waited_for_room, here.taps, here.taps_run, later, kept]))
"""
    waited, taps, ran, later, kept = run_program(source).json()
    assert 0.05 <= waited < DEADLINE and (taps, ran) == (2, 2)
    assert (later, kept) == (0, waited)


def test_barriers_and_their_time_are_counted() -> None:
    gate, began = threading.Event(), threading.Event()
    before = hcb.stats()
    hcb.id_tap(lambda value, transforms: (began.set(), gate.wait(DEADLINE)), 1.0)
    assert began.wait(DEADLINE)
    with pytest.raises(hcb.BarrierTimeoutError):
        hcb.barrier_wait(timeout=0.05)
    gate.set()
    hcb.barrier_wait()
    found = hcb.stats() - before
    assert found.barriers == 2 and 0.05 <= found.waited_in_barriers <= found.seconds < DEADLINE


def test_counting_leaves_taps_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    program = jax.jit(lambda x: hcb.id_tap(nothing, x))
    program(1.0)
    hcb.stats()
    ring = queues[jax.devices()[0]].ring
    if ring is None:
        pytest.skip("there is no native extension")
    before = ring.counters.accepted
    program(2.0)
    hcb.barrier_wait()
    assert ring.counters.accepted == before + 1


def test_figures_are_data(devices: list[jax.Device]) -> None:
    hcb.id_tap(nothing, X)
    hcb.barrier_wait()
    found = hcb.stats()
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert again == found and again["cpu:0"] == found[devices[0]]
    assert found["cpu:9999"].taps == 0
    with pytest.raises(AttributeError):
        found.seconds = 0.0  # type: ignore[misc]
    with pytest.raises(TypeError, match="3"):
        found[3]
    with pytest.raises(TypeError, match="unsupported operand"):
        found - 3  # type: ignore[operator]


def test_a_table_is_printed() -> None:
    source = """
import dataclasses
hcb.stats()
program = jax.pmap(lambda x: hcb.call(lambda v: v, hcb.id_tap(lambda v, t: None, x), result_shape=x))
jax.block_until_ready(program(jnp.ones((8, 300))))
hcb.barrier_wait()
found = dataclasses.replace(hcb.stats(), seconds=2.0, barriers=1, waited_in_barriers=0.25)
found.devices["cpu:0"] = dataclasses.replace(
    found["cpu:0"], taps=3, taps_run=2, calls={"call": 4, "io_callback": 1},
    most_queued=1234, most_queued_bytes=5 << 30, waited_for_room=0.5, failures=7)
for number in range(1, 7):
    del found.devices[f"cpu:{number}"]
found.devices["cpu:7"] = dataclasses.replace(found["cpu:7"], most_queued=1, most_queued_bytes=1200)
print(found)
"""
    assert [line.rstrip() for line in run_program(source).check().lines] == [
        "counted for 2.0 s; barriers: 1, for 0.250 s",
        "device  taps  run  calls    bytes   queued          at most  waited for room  failures",
        "cpu:0      3    2      5  2.3 KiB  0 (0 B)  1,234 (5.0 GiB)          0.500 s         7",
        "cpu:7      1    1      1  2.3 KiB  0 (0 B)      1 (1.2 KiB)          0.000 s         0",
        "calls of cpu:0: 4 x call, 1 x io_callback",
        "calls of cpu:7: 1 x call",
    ]
