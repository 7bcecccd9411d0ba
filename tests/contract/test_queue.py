"""H11 and H12: taps do not block the device, what they hand over is the callback's own, and the queue is bounded."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import Record
from support.subprocesses import run_program

import hostcb as hcb

X = np.arange(8, dtype=np.float32)
BUDGET = "JAX_HOST_CALLBACK_MAX_QUEUE_BYTE_SIZE"


@pytest.mark.contract("H11")
@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_the_result_is_there_before_the_tap_has_run(layout: helpers.Layout, count: int) -> None:
    gate, ended = threading.Event(), []

    def tap(arg: Any, transforms: Any) -> None:
        ended.append(gate.wait(helpers.DEADLINE))

    def program(x):
        for _ in range(count):
            x = hcb.id_tap(tap, x + 1)
        return x

    try:
        outs = layout.run(program, layout.same(X))
        ran = len(ended)
    finally:
        gate.set()
    hcb.barrier_wait()
    assert ran == 0, f"the computation waited for {ran} taps"
    assert ended == [True] * (count * len(layout.callers)), f"{len(ended)} taps ran"
    for out in outs:
        helpers.equal(out, X + count, "result")


@pytest.mark.contract("H11")
def test_a_blocked_device_does_not_block_the_others(devices: list[jax.Device]) -> None:
    gate, free, record = threading.Event(), threading.Event(), Record()
    hcb.id_tap(lambda arg, transforms: gate.wait(helpers.DEADLINE), jax.device_put(1.0, devices[0]))

    def tap(arg: Any, transforms: Any) -> None:
        record.add(arg)
        free.set()

    hcb.id_tap(tap, jax.device_put(2.0, devices[1]))
    ran = free.wait(5.0)
    gate.set()
    assert ran, "a tap on device 1 waited for a tap on device 0"
    hcb.barrier_wait()


@pytest.mark.contract("H11")
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
@pytest.mark.parametrize("kind", ["tap", "call", "call_no_result", "pure_callback"])
def test_operands_are_the_callbacks_own(kind: str, layout: helpers.Layout) -> None:
    """Overwriting the received values changes nothing on the device, and what was kept stays as it was."""
    kept: list[tuple[np.ndarray, np.ndarray]] = []

    def function(arg: Any, transforms: Any = None) -> Any:
        copy = arg.copy()
        arg[...] = -1  # raises where the array is read-only
        # Both at once: other devices call in other threads.
        kept.append((copy, arg))
        return np.float32(0) if kind in ("call", "pure_callback") else None

    def program(x):
        if kind == "tap":
            y = hcb.id_tap(function, x)
        elif kind == "call":
            y = x + hcb.call(function, x, result_shape=1.0)
        elif kind == "pure_callback":
            y = x + hcb.pure_callback(function, jax.ShapeDtypeStruct((), np.float32), x)
        else:
            hcb.call(function, x)
            y = x
        return y + x

    compiled, outs = layout.compile(program), []
    for n in range(10):
        outs.append(compiled(layout.same(X + 10 * n)))
    helpers.finish(outs)
    for n, out in enumerate(outs):
        for got in layout.split(out):
            helpers.equal(got, 2 * (X + 10 * n), "result of a program whose callback overwrites its operand")
    firsts = sorted(copy[0] for copy, _ in kept)
    assert firsts == sorted([10.0 * n for n in range(10)] * len(layout.callers)), f"operands seen: {firsts}"
    assert all((array == -1).all() for _, array in kept), "a kept array was changed later"


@pytest.mark.contract("H11")
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_results_that_are_changed_after_return(layout: helpers.Layout) -> None:
    """One buffer used again for each result, as a callback that wants to spare allocations would."""
    buffers: dict[int, np.ndarray] = {}

    def function(arg: Any, device: Any) -> Any:
        buffer = buffers.setdefault(device.id, np.zeros(4096, np.float32))
        buffer[:] = arg[0]
        return buffer

    shape = jax.ShapeDtypeStruct((4096,), np.float32)
    compiled = layout.compile(lambda x: hcb.call(function, x, result_shape=shape, call_with_device=True))
    outs = [compiled(layout.same(X + n)) for n in range(10)]
    for n, out in enumerate(outs):
        for got in layout.split(out):
            assert (got == n).all(), f"result {n} was changed by a later one: {np.unique(got)}"
    for buffer in buffers.values():
        buffer[:] = -7
    assert all((got == n).all() for n, out in enumerate(outs) for got in layout.split(out)), "results share memory"


@pytest.mark.contract("H11")
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_operand_returned_and_kept(layout: helpers.Layout) -> None:
    kept: list[np.ndarray] = []
    shape = jax.ShapeDtypeStruct((8,), np.float32)
    compiled = layout.compile(lambda x: hcb.call(lambda a: (kept.append(a), a)[1], x, result_shape=shape) + 1)
    outs = [compiled(layout.same(X + n)) for n in range(5)]
    jax.block_until_ready(outs)
    for array in kept:
        array[...] = -1
    for n, out in enumerate(outs):
        for got in layout.split(out):
            helpers.equal(got, X + n + 1, "result made from a returned operand")


@pytest.mark.contract("H11")
def test_kept_arrays_survive_donation_and_reuse() -> None:
    record = Record()
    step = jax.jit(lambda x: hcb.id_tap(record.tap, x) + 1, donate_argnums=0)
    x = jnp.zeros(100_000)
    for _ in range(30):
        x = step(x)
    helpers.finish(x)
    assert [float(arg[0]) for arg in record.args] == list(range(30))
    assert all((arg == arg[0]).all() for arg in record.args), "a kept array was overwritten"


MB = 2**18  # float32 elements

# The gate stays shut until the device has stopped by itself, or has plainly not.
BOUNDED = """
import resource
gate, seen, handed = threading.Event(), [], []
def tap(a, t):
    gate.wait(60)
    assert (a == a[0]).all()
    seen.append(int(a[0]))
N = 100
LAYOUT_SETUP
def dispatch():
    PROGRAM
    finished.set()
finished = threading.Event()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
thread = threading.Thread(target=dispatch, daemon=True)
thread.start()
waited = not finished.wait(1.0)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
gate.set()
thread.join(60)
hcb.barrier_wait()
print(json.dumps(dict(waited=waited, grown=grown / 1024, seen=seen)))
"""
ONE = """
@jax.jit
def program(x):
    return jax.lax.fori_loop(0, N, lambda i, x: hcb.id_tap(tap, x) + 1, x)
jax.block_until_ready(jax.jit(lambda x: jax.lax.fori_loop(0, N, lambda i, x: x + 1, x))(jnp.zeros(2**18)))
"""
EAGERLY = """
x = jnp.zeros(2**18)
jax.block_until_ready(x + 1)
"""
PMAPPED = """
N = 20
program = jax.pmap(lambda x: jax.lax.fori_loop(0, N, lambda i, x: hcb.id_tap(tap, x) + 1, x))
xs = jnp.zeros((8, 2**18))
"""
SETUPS = {
    "loop": (ONE, "jax.block_until_ready(program(jnp.zeros(2**18)))", 1, 100),
    "many_programs": (
        ONE.replace("N, lambda", "1, lambda"),
        "[jax.block_until_ready(program(jnp.zeros(2**18) + n)) for n in range(N)]",
        1,
        100,
    ),
    "eager": (EAGERLY, "[hcb.id_tap(tap, x + n) for n in range(N)]", 1, 100),
    "pmap": (PMAPPED, "jax.block_until_ready(program(xs))", 8, 20),
}  # fmt: skip


@pytest.mark.contract("H12")
@pytest.mark.parametrize("name", SETUPS)
def test_a_full_queue_makes_the_device_wait_and_drops_nothing(name: str) -> None:
    """Megabytes into a queue of four, with a callback that does not go on: the memory stays bounded."""
    setup, program, callers, count = SETUPS[name]
    source = BOUNDED.replace("LAYOUT_SETUP", setup).replace("PROGRAM", program)
    report = run_program(source, env={BUDGET: str(4 * 2**20)}).json()
    assert report["waited"], "the device did not wait although the queue was full"
    assert report["grown"] < 40 * callers, f"memory grew by {report['grown']:.0f} MB with a budget of 4 MB a device"
    assert sorted(report["seen"]) == sorted(list(range(count)) * callers), f"taps seen: {report['seen'][:40]}"
    if callers == 1:
        assert report["seen"] == list(range(count)), f"order: {report['seen']}"


@pytest.mark.contract("H12")
@pytest.mark.parametrize("budget", ["0", "1000", "1e6"])
def test_items_larger_than_the_whole_budget(budget: str) -> None:
    source = """
seen = []
def tap(a, t):
    assert (a == a[0]).all()
    seen.append(int(a[0]))
body = lambda i, x: hcb.call(lambda a: a, hcb.id_tap(tap, x), result_shape=x) + 1
program = jax.jit(lambda x: jax.lax.fori_loop(0, 20, body, x))
jax.block_until_ready(program(jnp.zeros(2**19)))
jax.block_until_ready(jax.pmap(lambda x: hcb.id_tap(tap, x + 20))(jnp.zeros((8, 2**19))))
hcb.barrier_wait()
assert seen == list(range(20)) + [20] * 8, seen
print("done")
"""
    assert run_program(source, env={BUDGET: budget}).check().lines == ["done"]


STRESS = """
lock, seen = threading.Lock(), {}
def tap(a, t, device):
    with lock:
        seen.setdefault(device.id, []).append(int(a[0]))
def function(a, device):
    with lock:
        seen.setdefault(device.id, []).append(-int(a[0]))
    return a
def program(x):
    for n in range(1, 9):
        x = hcb.id_tap(tap, x * 0 + n, tap_with_device=True)
        if n % 4 == 0:
            x = hcb.call(function, x, result_shape=x, call_with_device=True)
    return jax.lax.psum(x, "d")
mapped = jax.pmap(program, "d")
outs = [mapped(jnp.ones((8, 10_000))) for _ in range(5)]
jax.block_until_ready(outs)
hcb.barrier_wait()
wanted = [1, 2, 3, 4, -4, 5, 6, 7, 8, -8] * 5
assert sorted(seen) == list(range(8)) and all(one == wanted for one in seen.values()), seen
print("done")
"""


@pytest.mark.contract("H12")
@pytest.mark.parametrize("budget", ["0", "50000"])
def test_eight_devices_taps_calls_and_collectives_on_a_small_budget(budget: str) -> None:
    assert run_program(STRESS, env={BUDGET: budget}).check().lines == ["done"]


NESTED = """
inner, outer = [], []
jitted = jax.jit(lambda x: hcb.id_tap(lambda a, t: inner.append(float(a[0])), x * 2))
def tap(a, t):
    outer.append(float(a[0]))
    for _ in range(3):
        INSIDE
ones = jnp.ones(50_000)
LAYOUT
hcb.barrier_wait()  # then the outer taps have run, and what they started has been started
hcb.barrier_wait()
assert len(outer) == COUNT and len(inner) == 3 * COUNT, (len(outer), len(inner))
print("done")
"""
INSIDE = {
    "eager": "hcb.id_tap(lambda b, t: inner.append(float(b[0])), a)",
    "jit": "jitted(a)",
    "call": "jax.block_until_ready(hcb.call(lambda b: (inner.append(float(b[0])), b)[1], a, result_shape=a))",
}
OUTER = {
    "jit": (
        "jax.block_until_ready(jax.jit(lambda x: jax.lax.fori_loop(0, 12, lambda i, x: hcb.id_tap(tap, x), x))(ones))",
        "12",
    ),
    "pmap": (
        "jax.block_until_ready(jax.pmap(lambda x: hcb.id_tap(tap, hcb.id_tap(tap, x)))(jnp.stack([ones] * 8)))",
        "16",
    ),
    "eager": ("[hcb.id_tap(tap, ones) for _ in range(8)]", "8"),
}  # fmt: skip


@pytest.mark.contract("H12")
@pytest.mark.parametrize(
    ("outer", "inside"), [("jit", "eager"), ("jit", "jit"), ("pmap", "jit"), ("pmap", "call"), ("eager", "call")]
)
def test_callbacks_that_tap_while_the_queue_is_full(outer: str, inside: str) -> None:
    layout, count = OUTER[outer]
    source = NESTED.replace("INSIDE", INSIDE[inside]).replace("LAYOUT", layout).replace("COUNT", count)
    assert run_program(source, env={BUDGET: "100000"}, timeout=60).check().lines == ["done"]


@pytest.mark.contract("H12")
def test_a_waiting_device_is_woken_by_its_own_callback_alone() -> None:
    """One device's full queue, and the others' programs go on to their end."""
    source = """
gate, free = threading.Event(), []
slow = lambda a, t: gate.wait(60)
many = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda i, x: hcb.id_tap(slow, x), x))
blocked = threading.Thread(target=lambda: many(jax.device_put(np.ones(1000, np.float32), jax.devices()[0])))
blocked.start()
for device in jax.devices()[1:]:
    x = jax.device_put(np.ones(1000, np.float32), device)
    for _ in range(10):
        x = jax.block_until_ready(jax.jit(lambda x: hcb.id_tap(lambda a, t: free.append(0), x))(x))
still = blocked.is_alive()
gate.set()
blocked.join(60)
hcb.barrier_wait()
assert still and len(free) == 70, (still, len(free))
print("done")
"""
    assert run_program(source, env={BUDGET: "10000"}).check().lines == ["done"]
