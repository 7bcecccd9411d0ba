"""Fault cells of callbacks that the runtime runs in threads of its own, and of what they leave in these threads."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import planted

SIDE = 100
BRANCHES = 8
ROUNDS = 4
RUNS = 20

PROGRAMS = 64
"""Twice as many as the CPU runtime lets wait on a device; the thread that starts one more waits."""

MANY_ELEMENTS = 1 << 21

WHILE = 0.5
"""Seconds for what may not come."""


@planted("jit", "call", "H15")
def fails_in_a_wide_program(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The runtime spreads a program of many independent operations over threads, and the error has its cause still."""

    def host(operand: Any) -> Any:
        raise ValueError(PLANTED)

    def wide(x: Any) -> Any:
        sums = []
        for number in range(BRANCHES):
            branch = jax.lax.sort(jnp.linalg.qr(jnp.sin(x @ x + number))[0] @ x)
            branch += jax.lax.fori_loop(0, 3, lambda _, carry: jnp.sort(carry @ x, axis=0), branch)
            sums.append((bench.apply(callback, host, branch[0]) if number == 1 else branch).sum())
        return sum(sums)

    compiled = jax.jit(wide)
    anomalies = []
    for _ in range(ROUNDS):
        error = error_of(lambda: compiled(np.ones((SIDE, SIDE), np.float32)))
        error_of(bench.implementation.barrier)
        cause = error and error.__cause__
        if not isinstance(cause, ValueError) or str(cause) != PLANTED:
            witness = f"the error's cause is {cause!r}, not the callback's exception"
            anomalies.append(Anomaly("poor error", Stage.DISPATCH, witness))
    return anomalies + check_quiet_barrier(bench, "after failures in a wide program")


@planted("jit", "pure_callback call", "H15 X2", functions="barrier_wait")
def fails_in_a_large_program(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H15: a function fails after runs that did not, between operations on values of many sizes."""
    fails = [False]

    def host(operand: Any) -> Any:
        if fails[0]:
            raise OSError(PLANTED)
        return np.asarray(operand)

    anomalies: list[Anomaly] = []
    for elements in (1 << 8, 1 << 12, MANY_ELEMENTS):
        compiled = jax.jit(lambda x: jnp.cos(bench.apply(callback, host, jnp.sin(x) * 2)) + 1)
        operand = np.ones((8, elements // 8), np.float32)
        for run in range(2 * ROUNDS):
            fails[0] = run >= ROUNDS
            error = error_of(lambda: jax.block_until_ready(compiled(operand)))  # noqa: B023
            error_of(bench.implementation.barrier)
            right = error is None
            if fails[0]:
                # The error of a program that ran in another thread has no cause.
                right = isinstance(error, jax.errors.JaxRuntimeError) and PLANTED in str(error)
                right &= isinstance(error and error.__cause__, OSError if elements < MANY_ELEMENTS else OSError | None)
            if not right:
                witness = f"run {run} on {elements} elements came to {error!r:.200} of {error and error.__cause__!r}"
                anomalies.append(Anomaly("poor error", Stage.DISPATCH, witness))
    return anomalies[:3] + check_quiet_barrier(bench, "after failures in a large program")


@planted("pmap", "id_tap", "H11 H12", minimum_devices=2)
def starts_programs_below_many(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A tap starts programs on a device for which as many programs wait as it takes: there is room for that."""
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    many = threading.Event()
    seen: list[float] = []

    def host(operand: Any) -> None:
        many.wait()
        seen.append(float(jnp.float32(1) + jnp.sum(jnp.asarray(operand))))

    def waiting(x: Any) -> Any:
        # The call comes after the tap, so the program waits for the tap.
        tapped = bench.apply(callback, host, x)
        return bench.implementation.call(np.asarray, tapped, jax.ShapeDtypeStruct(x.shape, x.dtype))

    compiled = bench.compile(waiting)
    # The thread that starts the programs may have to wait as well, before there are so many.
    threading.Timer(WHILE, many.set).start()
    for _ in range(PROGRAMS):
        result = compiled(bench.operand)
    anomalies = check_value("the last of many programs", lambda: result, bench.operand)
    anomalies += check_quiet_barrier(bench, "after taps that started programs")
    if len(seen) != 2 * PROGRAMS:
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"{len(seen)} of {2 * PROGRAMS} taps ran"))
    return anomalies


@planted("pmap", "call", "H5 H9 H15", minimum_devices=2, isolated=True)
def refused_and_started_again(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program that was refused inside a callback leaves nothing in that thread: started again, it keeps its order."""
    seen: list[tuple[str, float]] = []
    gate = threading.Event()

    def tapping(name: str, wait: bool) -> Any:
        def host(operand: Any, transforms: Any) -> None:
            if wait:
                gate.wait()
            seen.append((name, float(operand.ravel()[0])))

        return bench.compile(lambda v: bench.implementation.tap(host, v))

    first, second = tapping("first", True), tapping("second", False)
    gate.set()
    for program in (first, second, first, second):
        program(bench.operand)

    def inside(operand: Any) -> Any:
        second(bench.operand)
        return operand

    error = error_of(lambda: bench.calling(inside, shape=bench.callback_shape)(bench.operand))
    error_of(bench.implementation.barrier)
    if error is None:
        # An implementation may be able to run it.
        return []
    for _ in range(ROUNDS):
        seen.clear()
        gate.clear()
        jax.block_until_ready(first(bench.operand))
        jax.block_until_ready(second(bench.operand))
        gate.set()
        bench.implementation.barrier()
        for row in bench.operand:
            names = [name for name, number in seen if number == row[0]]
            if names != ["first", "second"]:
                witness = f"after a refusal, on the device of {row[0]:g} the taps ran as {names}"
                return [Anomaly("order", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after a refused program was started again")


@planted("pmap", "call io_callback", "H1 H3 X3", minimum_devices=2, functions="barrier_wait")
def locals_of_each_thread(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The state of a thread of the runtime stays there from one callback to the next, in each of several threads."""
    local = threading.local()
    seen: dict[int, None] = {}
    lost: list[int] = []

    def host(operand: Any) -> Any:
        this = threading.get_native_id()
        if this in seen and not hasattr(local, "mark"):
            lost.append(this)
        seen[this] = local.mark = None
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    if lost:
        witness = f"of {len(seen)} threads these lost their state, once or more often: {sorted({*lost})}"
        return [Anomaly("lost", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after callbacks in several threads")
