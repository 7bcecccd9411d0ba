"""Fault cells of stopping hostcb's threads, whatever they are about."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import EARLY_SECONDS
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import planted

ROUNDS = 12
TAPS = 3
LATEST = 10.0


@planted("jit", "id_tap", "H17")
def stops_at_once(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Stopping just after a tap has run, when its thread waits for the next one, ends that thread."""
    ran = threading.Event()

    def host(operand: Any) -> None:
        ran.set()

    compiled = bench.applying(callback, host)
    compiled(bench.operand)
    bench.implementation.barrier()
    for number in range(ROUNDS):
        # Several in a short time, without a barrier, which would wake the thread.
        for _ in range(TAPS):
            ran.clear()
            compiled(bench.operand)
            if not ran.wait(LATEST):
                return [Anomaly("lost", Stage.CALLBACK, f"a tap of round {number} did not run without a barrier")]
        bench.implementation.stop()
    # Earlier taps of the process have used the same threads.
    served = {f"hostcb-{device}" for device in bench.devices}
    left = [each.name for each in threading.enumerate() if each.name in served]
    if left:
        return [Anomaly("leak", Stage.EXIT, f"after a stop there are the threads {left}")]
    return check_quiet_barrier(bench, "after having been stopped")


@planted("pmap", "id_tap", "H13 H17", minimum_devices=2)
def stops_after_programs(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Stopping waits for programs that run, so their taps run before it returns."""
    entered, release = threading.Event(), threading.Event()
    seen: list[None] = []

    def slow(operand: Any) -> Any:
        entered.set()
        release.wait(2 * LATEST)
        return np.asarray(operand)

    def program(x: Any) -> Any:
        called = bench.implementation.call(slow, x, jax.ShapeDtypeStruct(x.shape, x.dtype))
        return bench.implementation.tap(lambda *_: seen.append(None), called)

    compiled = bench.compile(program)
    at_the_end: list[int] = []

    def run() -> None:
        compiled(bench.operand)
        bench.implementation.stop()
        at_the_end.append(len(seen))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        if not entered.wait(LATEST):
            return [Anomaly("lost", Stage.CALLBACK, "no call began")]
        # One-sided: a slow machine can only miss the fault.
        thread.join(EARLY_SECONDS)
    finally:
        release.set()
    thread.join(LATEST)
    anomalies = check_quiet_barrier(bench, "after having been stopped")
    if at_the_end != [len(bench.devices)]:
        witness = f"of {len(bench.devices)} taps of a running program, {at_the_end} had run when the stop returned"
        anomalies.append(Anomaly("early stop", Stage.BARRIER, witness))
    return anomalies


@planted("jit", "id_tap", "H11 H17", functions="barrier_wait", isolated=True)
def goes_on_without_a_barrier(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H11: taps behind one that runs the process's first jitted tap run without a barrier, and so after each stop."""
    behind, ran = threading.Event(), threading.Event()
    order: list[str] = []

    def note(name: str) -> Any:
        def host(operand: Any, transforms: Any) -> None:
            order.append(name)
            if name == "behind":
                ran.set()

        return host

    inner = jax.jit(lambda x: bench.implementation.tap(note("inner"), x))

    def first(operand: Any, transforms: Any) -> None:
        behind.wait(LATEST)
        jax.block_until_ready(inner(np.float32(1)))
        order.append("first")

    for number in range(TAPS):
        behind.clear()
        ran.clear()
        order.clear()
        bench.implementation.tap(first, np.float32(1))
        bench.implementation.tap(note("behind"), np.float32(1))
        behind.set()
        if not ran.wait(LATEST) or order != ["inner", "first", "behind"]:
            witness = f"after {number} stops, without a barrier, of a tap that runs another and of one behind: {order}"
            return [Anomaly("lost", Stage.CALLBACK, witness)]
        bench.implementation.stop()
    return check_quiet_barrier(bench, "after having been stopped")


@planted("jit", "id_tap", "H11 H17", functions="barrier_wait", isolated=True)
def taps_while_stopped(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H17: what another thread taps while a stop waits runs without a barrier, in jit and outside of it."""
    for way in ("outside jit", "in jit"):
        order: list[str] = []
        held = {name: threading.Event() for name in ("before", "while", "later", "last")}
        begun = {name: threading.Event() for name in held}

        def run(name: str, way: str = way, held: Any = held, begun: Any = begun, order: Any = order) -> None:
            def host(operand: Any, transforms: Any) -> None:
                begun[name].set()
                held[name].wait(LATEST)
                order.append(name)

            tap = bench.implementation.tap
            (jax.jit(lambda x: tap(host, x)) if way == "in jit" else lambda x: tap(host, x))(np.float32(1))

        run("before")
        begun["before"].wait(LATEST)
        stop = threading.Thread(target=bench.implementation.stop)
        stop.start()
        # One-sided: a stop that is late misses what comes while it waits.
        stop.join(EARLY_SECONDS)
        run("while")
        held["before"].set()
        begun["while"].wait(LATEST)
        stop.join(EARLY_SECONDS)
        run("later")
        run("last")
        held["while"].set()
        stop.join(EARLY_SECONDS)
        for name in ("later", "last"):
            held[name].set()
        found = begun["last"].wait(LATEST)
        stop.join(LATEST)
        anomalies = check_quiet_barrier(bench, "after taps beside a stop")
        if not found or order != [*held]:
            witness = f"{way}, of taps around a stop ran, without a barrier: {found}, and in the end {order}"
            return [*anomalies, Anomaly("lost", Stage.CALLBACK, witness)]
    return anomalies
