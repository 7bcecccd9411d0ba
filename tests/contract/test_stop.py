"""`stop_outfeed_receiver`: it runs what was tapped, and the next use starts again (H11, H17)."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest
from support import helpers
from support.helpers import DEADLINE, Record
from support.subprocesses import run_program

import hostcb as hcb

X = np.arange(8, dtype=np.float32)


@pytest.mark.contract("H17")
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_stop_drains_and_the_next_use_starts_again(layout: helpers.Layout) -> None:
    record = Record()
    compiled = layout.compile(lambda x: hcb.id_tap(record.tap, x))
    for n in range(3):
        for _ in range(20):
            compiled(layout.same(X))
        hcb.stop_outfeed_receiver()
        wanted = 20 * (n + 1) * len(layout.callers)
        assert len(record.all) == wanted, f"{len(record.all)} taps had run after stop {n}, but should {wanted}"
        ours = [thread for thread in threading.enumerate() if thread.name.startswith("hostcb")]
        [thread.join(5.0) for thread in ours]
        assert not any(thread.is_alive() for thread in ours), f"threads still there after the stop: {ours}"
    hcb.stop_outfeed_receiver()
    hcb.stop_outfeed_receiver()


@pytest.mark.contract("H13", "H17")
def test_a_stop_waits_for_a_program_that_runs(devices: list[jax.Device]) -> None:
    began, gate, seen, at_the_end = threading.Event(), threading.Event(), [], []

    def held(value: Any) -> Any:
        began.set()
        gate.wait(DEADLINE)
        return value

    def tap(arg: Any, transforms: Any) -> None:
        seen.append(arg)

    program = jax.pmap(lambda x: hcb.id_tap(tap, hcb.call(held, x, result_shape=x)), devices=devices[:2])

    def run() -> None:
        program(X[:2])
        hcb.stop_outfeed_receiver()
        at_the_end.append(len(seen))

    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(DEADLINE)
    # One-sided: a stop that has not begun yet only hides a fault.
    thread.join(0.2)
    gate.set()
    thread.join(DEADLINE)
    assert at_the_end == [2], "taps that had run when the stop returned"


@pytest.mark.contract("H17")
def test_stop_keeps_failures_for_the_barrier() -> None:
    def bad(arg: Any, transforms: Any) -> None:
        raise ValueError("kept")

    hcb.id_tap(bad, 1.0)
    hcb.stop_outfeed_receiver()
    with pytest.raises(hcb.CallbackException, match="kept"):
        hcb.barrier_wait()


@pytest.mark.contract("H17")
def test_stop_while_others_tap_loses_nothing() -> None:
    record = Record()
    step = jax.jit(lambda x: hcb.id_tap(record.tap, x))
    workers = [threading.Thread(target=lambda: [step(1.0) for _ in range(200)]) for _ in range(3)]
    [worker.start() for worker in workers]
    for _ in range(20):
        hcb.stop_outfeed_receiver()
    [worker.join(DEADLINE) for worker in workers]
    hcb.barrier_wait()
    assert len(record.all) == 600, f"{len(record.all)} of 600 taps ran"


@pytest.mark.contract("H11", "H17")
def test_a_stop_just_after_a_tap_ends_its_thread() -> None:
    """The thread waits for the next tap then; no barrier wakes it."""
    ran = threading.Event()
    program = jax.jit(lambda x: hcb.id_tap(lambda *_: ran.set(), x))
    for _ in range(12):
        for _ in range(3):
            ran.clear()
            program(1.0)
            assert ran.wait(DEADLINE), "a tap runs without a barrier"
        hcb.stop_outfeed_receiver()
        names = {f"hostcb-{device}" for device in jax.devices()}
        assert not [thread for thread in threading.enumerate() if thread.name in names]


@pytest.mark.contract("H11", "H17")
def test_taps_behind_one_that_runs_a_program_run_without_a_barrier_after_each_stop() -> None:
    source = f"""
order, behind, ran = [], threading.Event(), threading.Event()
inner = jax.jit(lambda x: hcb.id_tap(lambda v, t: order.append("inner"), x))
def first(v, t):
    behind.wait({DEADLINE})
    inner(v).block_until_ready()
    order.append("first")
for _ in range(3):
    behind.clear(), ran.clear()
    hcb.id_tap(first, 1.0)
    hcb.id_tap(lambda v, t: (order.append("behind"), ran.set()), 1.0)
    behind.set()
    assert ran.wait({DEADLINE})
    hcb.stop_outfeed_receiver()
print(*order)
"""
    assert run_program(source, devices=1).check().lines == ["inner first behind " * 2 + "inner first behind"]


@pytest.mark.contract("H11", "H17")
@pytest.mark.parametrize("staged", [jax.jit, lambda function: function], ids=["jit", "eager"])
def test_what_is_tapped_while_a_stop_waits_runs_without_a_barrier(staged: Any) -> None:
    order: list[str] = []
    held = {name: threading.Event() for name in ("before", "while", "after")}
    began = {name: threading.Event() for name in held}

    def tapped(name: str) -> None:
        def host(arg: Any, transforms: Any) -> None:
            began[name].set()
            held[name].wait(DEADLINE)
            order.append(name)

        staged(lambda x: hcb.id_tap(host, x))(1.0)

    tapped("before")
    assert began["before"].wait(DEADLINE)
    stop = threading.Thread(target=hcb.stop_outfeed_receiver)
    stop.start()
    # One-sided: a stop that has not begun yet only hides a fault.
    stop.join(0.05)
    tapped("while")
    held["before"].set()
    assert began["while"].wait(DEADLINE)
    tapped("after")
    held["while"].set(), held["after"].set()
    assert began["after"].wait(DEADLINE)
    stop.join(DEADLINE)
    hcb.barrier_wait()
    assert order == [*held]
