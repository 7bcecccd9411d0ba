"""Callbacks beside other things: JAX's own effects, other threads, log handlers, memory that is used again."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding
from support import helpers
from support.subprocesses import run_program

import hostcb as hcb


@pytest.mark.contract("H3")
@pytest.mark.parametrize("place", ["uncommitted", "committed", "mesh"])
def test_a_callback_may_use_the_memory_of_its_result_again(place: str) -> None:
    changed = []
    for n in range(24):
        buffer = np.zeros(1000 + 8 * n, np.float32)
        x = jnp.zeros(buffer.shape)
        if place != "uncommitted":
            mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
            whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            x = jax.device_put(x, jax.devices()[0] if place == "committed" else whole)
        y = hcb.call(lambda value, buffer=buffer: buffer, x, result_shape=x)
        buffer[:] = 1
        changed.append(bool(np.asarray(y).any()))
        assert place == "uncommitted" or y.sharding == x.sharding, "the result is where the operand is"
    assert not any(changed), f"{sum(changed)} of 24 results changed with the callback's memory"


@pytest.mark.contract("H4")
@pytest.mark.parametrize("kind", ["print", "io"])
@pytest.mark.parametrize("layout", [jax.jit, jax.pmap], ids=["jit", "pmap"])
def test_beside_ordered_effects_of_jax(layout: Any, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    if kind == "print" and layout is jax.pmap:
        pytest.skip("JAX refuses ordered debug callbacks on several devices (jax-ml/jax#17418)")
    seen: list[Any] = []

    def program(x):
        def step(_, x):
            if kind == "print":
                jax.debug.print("{x}", x=x, ordered=True)
            else:
                x = io_callback(lambda value: np.asarray(value), x, x, ordered=True)
            return hcb.call(lambda value: value + 1, hcb.id_tap(lambda v, t: seen.append(v.item()), x), result_shape=x)

        return jax.lax.fori_loop(0, 3, step, x)

    operand = np.float32(0) if layout is jax.jit else np.zeros(2, np.float32)
    out = layout(program)(operand)
    np.testing.assert_array_equal(np.asarray(out), operand + 3)
    hcb.barrier_wait()
    assert sorted(seen) == sorted([0.0, 1.0, 2.0] * operand.size), f"tapped {seen}"


@pytest.mark.contract("H14")
def test_a_log_handler_that_raises_costs_nothing() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no log today")

    def failing(value, transforms):
        raise ValueError("the reason")

    seen: list[float] = []
    handler = Broken()
    logging.getLogger("hostcb").addHandler(handler)
    try:
        hcb.id_tap(failing, 1.0)
        hcb.id_tap(lambda value, transforms: seen.append(value.item()), 2.0)
        with pytest.raises(hcb.CallbackException) as caught:
            hcb.barrier_wait()
    finally:
        logging.getLogger("hostcb").removeHandler(handler)
    assert seen == [2.0], "the tap after the failed one runs"
    assert [str(failure.exception) for failure in caught.value.failures] == ["the reason", "no log today"]


@pytest.mark.contract("H5")
def test_one_function_inside_a_callback_and_beside_it() -> None:
    """The tap of the program beside stays behind what its device has queued."""
    seen: list[Any] = []
    inside, go_on = threading.Event(), threading.Event()

    def record(value, transforms):
        seen.append(value.item())

    def slowly(value):
        if value == 100:
            inside.set()
            assert go_on.wait(helpers.DEADLINE)
        return value

    shared = jax.jit(lambda x: hcb.call(slowly, hcb.id_tap(record, x), result_shape=x))
    shared(jnp.float32(0))
    hcb.barrier_wait()
    seen.clear()

    def outer(value, transforms):
        shared(jnp.float32(100))
        seen.append("outer")

    hcb.id_tap(outer, 1.0)
    assert inside.wait(helpers.DEADLINE)
    hcb.id_tap(record, 2.0)
    beside = threading.Thread(target=lambda: shared(jnp.float32(3)))
    beside.start()
    go_on.set()
    beside.join(helpers.DEADLINE)
    hcb.barrier_wait()
    assert seen == [100.0, "outer", 2.0, 3.0], f"order on the device: {seen}"


@pytest.mark.contract("H16")
def test_the_queue_size_can_be_changed_at_any_time() -> None:
    from hostcb._runtime.queue.queues import queues

    hcb.id_tap(lambda value, transforms: None, 1.0)
    hcb.barrier_wait()
    jax.config.update("jax_host_callback_max_queue_byte_size", 100)
    try:
        budgets = {queue.budget for queue in queues.all()}
        assert budgets == {100}, f"budgets of the queues that exist: {budgets}"
    finally:
        jax.config.update("jax_host_callback_max_queue_byte_size", None)


@pytest.mark.contract("H18")
def test_failures_are_let_go_after_the_barrier() -> None:
    kept: list[weakref.ref[Any]] = []

    def failing(value):
        local = np.zeros(1000)
        kept.append(weakref.ref(local))
        raise ValueError("the reason")

    program = jax.pmap(lambda x: hcb.call(failing, x, result_shape=x))
    with pytest.raises(jax.errors.JaxRuntimeError):
        program(np.zeros(2, np.float32)).block_until_ready()
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    gc.collect()
    alive = [ref for ref in kept if ref() is not None]
    assert len(kept) == 2 and not alive, f"{len(alive)} of {len(kept)} arrays of failed functions are alive"


MANY_WAIT = """
first, seen = threading.Event(), []

def tap(arg, transforms):
    assert first.wait(30)
    # These are programs on the same device.
    seen.append(float(jnp.float32(1) + jnp.sum(jnp.asarray(arg))))

program = jax.pmap(lambda x: hcb.call(lambda v: v, hcb.id_tap(tap, x), result_shape=x))
x = np.zeros((2, 3), np.float32)
threading.Timer(0.5, first.set).start()
for _ in range(100):
    program(x)
hcb.barrier_wait()
print(json.dumps(len(seen)))
"""


@pytest.mark.contract("H11")
def test_a_tap_runs_programs_on_a_device_for_which_many_programs_wait() -> None:
    assert run_program(MANY_WAIT, devices=2, timeout=60).json() == 200


def filling(context: Any, out: Any, x: Any) -> None:
    np.asarray(out)[...] = np.asarray(x)


GUARDED = {
    "tap": lambda x: hcb.id_tap(lambda *_: None, x),
    "call": lambda x: hcb.call(np.asarray, x, result_shape=x),
    "pure": lambda x: hcb.pure_callback(np.asarray, x, x),
    "io": lambda x: hcb.io_callback(np.asarray, x, x),
    "ordered": lambda x: hcb.io_callback(np.asarray, x, x, ordered=True),
    "debug": lambda x: (hcb.debug.callback(lambda _: None, x), x)[1],
    "buffer": lambda x: hcb.buffer_callback(filling, x)(x),
    "dlpack": lambda x: hcb.dlpack_callback(np.asarray, x)(x),
}


@pytest.mark.contract("H4", "X2", "X3", "X4", "B1", "D1")
@pytest.mark.parametrize("kind", GUARDED)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rows", "columns"])
def test_outside_jit_callbacks_make_no_implicit_transfers(order: tuple[int, int], kind: str) -> None:
    """NumPy reads rows in the memory of a CPU device. JAX transfers columns to it, as any array of another platform."""
    layout = Format(Layout(order), SingleDeviceSharding(jax.devices()[0]))
    make = jax.jit(lambda: jnp.arange(6.0).reshape(2, 3), out_shardings=layout)
    # In-place callbacks need a program, which is compiled at the first of these. JAX keeps what NumPy has read.
    GUARDED[kind](make())
    x = make()
    with jax.transfer_guard("disallow"):
        result = jax.block_until_ready(GUARDED[kind](x))
    hcb.barrier_wait()
    assert result.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.contract("H4", "X4")
@pytest.mark.parametrize("value", [2.0, 3, True, np.float32(4), np.arange(5, 7)[1:], {"a": 7.0, "b": 8}], ids=repr)
def test_numbers_that_are_shown_need_not_go_to_a_device(value: Any) -> None:
    seen: list[Any] = []
    with jax.transfer_guard("disallow"):
        hcb.id_tap(lambda arg, _: seen.append(arg), value)
        hcb.debug.callback(seen.append, value)
    hcb.barrier_wait()
    for each in seen:
        assert jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), each) == jax.tree.map(
            lambda leaf: np.asarray(leaf).tolist(), value
        )
    assert len(seen) == 2
