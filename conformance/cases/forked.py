"""Fault cells of a forked child beside its parent's queued values."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import HeldTap
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import planted
from .traces import library

VALUES = 5
PATIENCE = 20.0
MANY = 300
"""So many events that a child would write some of them into its parent's file."""
LARGE = 50_000
CHILD_SECONDS = 10
"""After these a child that hangs is ended."""


@planted("jit", "id_tap", "H17")
def forks_beside_a_queue(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A child has nothing of its parent's queue: its barrier returns, and the values run in the parent alone."""
    begun, gate = threading.Event(), threading.Event()
    gate.set()
    seen: list[float] = []

    def host(operand: Any) -> Any:
        begun.set()
        gate.wait(PATIENCE)
        seen.append(float(np.asarray(operand)))

    compiled = jax.jit(
        lambda x: jax.lax.fori_loop(0, VALUES, lambda _, carry: bench.apply(callback, host, carry) + 1, x)
    )
    anomalies: list[Anomaly] = []
    # A first value may take another way into the queue than those after it.
    for queued in ("from the first run", "all", "all"):
        anomalies += check_value("the program", lambda: compiled(np.float32(0)), np.float32(VALUES))
        if queued == "all":
            begun.wait(PATIENCE)
            anomalies += _check_child(bench, seen, gate)
        anomalies += check_quiet_barrier(bench, "in the parent")
        if seen != [float(number) for number in range(VALUES)]:
            anomalies.append(Anomaly("lost", Stage.CALLBACK, f"of {VALUES} values, {seen} ran in the parent"))
        seen.clear()
        begun.clear()
        gate.clear()
    return anomalies[:3]


def _check_child(bench: Bench, seen: list[float], gate: threading.Event) -> list[Anomaly]:
    """Fork while the queue has values; the parent's may run when the child has ended."""
    status = _status_of_child(lambda: _is_left_alone(bench, seen))
    gate.set()
    if status == 0:
        return []
    how = {-signal.SIGALRM: "it waits for ever", 1: "it ran a value of its parent's, or its barrier failed"}
    return [Anomaly("stale value", Stage.BARRIER, f"in a forked child: {how.get(status, f'it ended with {status}')}")]


def _is_left_alone(bench: Bench, seen: list[float]) -> bool:
    bench.implementation.barrier()
    return not seen


def _status_of_child(run: Callable[[], bool]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        status = 0 if run() else 1
    finally:
        os._exit(status)


@planted("jit", "id_tap", "H17 H22")
def forks_while_traced(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A child's callbacks are not in the trace that its parent writes, and its own has nothing of its parent's."""
    held = HeldTap()
    device = f"{bench.devices[0].platform}:{bench.devices[0].id}"

    def run_in_child() -> bool:
        for number in range(MANY):
            bench.implementation.tap(lambda *_: None, np.float32(number))
        bench.implementation.barrier()
        with library(bench).trace(own):
            bench.implementation.tap(lambda *_: None, np.float32(0))
        events = json.loads(own.read_text())
        tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        return [tracks[event["tid"]] for event in events if event.get("cat") == "id_tap"] == [device]

    with tempfile.TemporaryDirectory() as folder:
        file, own = Path(folder) / "trace.json", Path(folder) / "own.json"
        with library(bench).trace(file):
            # The parent has not written this run yet when it forks.
            bench.implementation.tap(lambda *_: None, np.float32(0))
            bench.implementation.barrier()
            bench.implementation.tap(held, np.float32(0))
            # It runs while the process forks.
            held.entered.wait(PATIENCE)
            status = _status_of_child(run_in_child)
            held.release.set()
        events = json.loads(file.read_text())
    runs = sum(event.get("cat") == "id_tap" for event in events)
    if (status, runs) != (0, 2):
        witness = f"the child ended with {status}, and the parent's trace has {runs} runs, expected 2"
        return [Anomaly("trace", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after a forked child")


@planted("jit", "id_tap", "H17 H22")
def child_leaves_the_trace(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A child that leaves the block does not end the trace of its parent, which goes on."""
    parent = os.getpid()
    status = 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        try:
            with library(bench).trace(file):
                bench.implementation.tap(lambda *_: None, np.float32(0))
                bench.implementation.barrier()
                if child := os.fork():
                    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                    bench.implementation.tap(lambda *_: None, np.float32(0))
                else:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(CHILD_SECONDS)
        finally:
            if os.getpid() != parent:
                os._exit(1 if sys.exc_info()[1] else 0)
        text = file.read_text()
    try:
        events = json.loads(text)
    except ValueError as error:
        return [Anomaly("trace", Stage.CALLBACK, f"the parent's trace cannot be read after the child: {error}")]
    runs = [event["pid"] for event in events if event.get("cat") == "id_tap"]
    if (status, runs) != (0, [parent, parent]):
        witness = f"the child ended with {status}, and the trace of process {parent} has runs of {runs}, expected two"
        return [Anomaly("trace", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after a child that left the block")


@planted("jit", "id_tap", "H17", functions="barrier_wait")
def forks_after_a_failure(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A failure of the parent is not one of its child: each barrier reports those of its own process."""

    def host(operand: Any) -> Any:
        raise ValueError(PLANTED)

    bench.applying(callback, host)(bench.operand)
    # It waits, and reports nothing.
    jax.effects_barrier()
    status = _status_of_child(lambda: error_of(bench.implementation.barrier) is None)
    reported = error_of(bench.implementation.barrier)
    if status != 0 or not isinstance(reported, bench.implementation.callback_exception):
        witness = f"the child's barrier ended with {status}, and the parent's with {reported!r}"
        return [Anomaly("stale error", Stage.BARRIER, witness)]
    return check_quiet_barrier(bench, "after a forked child")


@planted("pmap shard_map", "call io_callback", "H17", minimum_devices=2, functions="barrier_wait")
def forks_beside_a_program(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program that runs in the parent is not the child's: neither hostcb's barrier nor JAX's waits for it there."""
    release = threading.Event()

    def held(operand: Any) -> Any:
        release.wait(PATIENCE)
        return np.asarray(operand) + np.float32(1)

    result = bench.applying(callback, held)(bench.operand)

    def returns() -> bool:
        bench.implementation.barrier()
        jax.effects_barrier()
        return True

    status = _status_of_child(returns)
    release.set()
    anomalies = check_value("the program", lambda: result, bench.expected(callback, bench.operand))
    if status != 0:
        anomalies.append(Anomaly("barrier error", Stage.BARRIER, f"the child's barriers ended with {status}"))
    return anomalies + check_quiet_barrier(bench, "after a forked child")


@planted("jit", "id_tap", "H17", functions="barrier_wait", isolated=True)
def child_taps_again(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program that the parent has run taps in a child as well, and the parent's goes on as before."""
    seen: list[float] = []
    compiled = bench.applying(callback, lambda operand: seen.append(float(np.asarray(operand))))

    def taps() -> bool:
        seen.clear()
        for number in range(VALUES):
            compiled(np.float32(number))
        bench.implementation.barrier()
        return seen == [float(number) for number in range(VALUES)]

    results = [taps(), _status_of_child(taps), taps()]
    if results != [True, 0, True]:
        witness = f"whether the parent's taps ran, the child's status, and the parent's again: {results}"
        return [Anomaly("lost", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after a forked child")


@planted("jit", "id_tap", "H17", functions="barrier_wait", isolated=True)
def child_taps_large(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As above, of large values, which have memory of their own."""
    seen: list[float] = []
    # No thread of the runtime is in the child, to move what is large.
    operands = [jax.block_until_ready(jax.device_put(np.full(LARGE, number, np.float32))) for number in range(VALUES)]
    compiled = jax.jit(
        lambda x: bench.apply(callback, lambda each: seen.append(float(each[0]) + float(each[-1])), x)[0]
    )

    def taps() -> bool:
        seen.clear()
        for operand in operands:
            compiled(operand)
        bench.implementation.barrier()
        return seen == [2.0 * number for number in range(VALUES)]

    results = [taps(), taps(), _status_of_child(taps), taps()]
    if results != [True, True, 0, True]:
        witness = f"whether the parent's taps ran, twice, the child's status, and the parent's again: {results}"
        return [Anomaly("lost", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after a forked child")


@planted("jit", "id_tap", "H17 H29", functions="stats", isolated=True)
def forks_while_counted(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The statistics of a child begin anew, and its callbacks are not in those of its parent."""
    compiled = bench.applying(callback, lambda operand: np.asarray(operand) + np.float32(1))

    held = HeldTap()

    def counted() -> int:
        return sum(of.taps_run for of in library(bench).stats().devices.values())

    def in_child() -> bool:
        before = counted()
        bench.implementation.tap(lambda *_: None, np.float32(1))
        bench.implementation.barrier()
        found = [(of.taps, of.taps_run, of.queued, of.queued_bytes) for of in library(bench).stats().devices.values()]
        return (before, found) == (0, [(1, 1, 0, 0)])

    # What this compiles the child would have to compile: no thread of the compiler is in it.
    bench.implementation.tap(lambda *_: None, np.float32(0))
    bench.implementation.barrier()
    counted()
    for _ in range(VALUES):
        jax.block_until_ready(compiled(bench.operand))
    bench.implementation.barrier()
    # These wait in the parent's queue.
    for _ in range(VALUES):
        bench.implementation.tap(held, np.float32(2))
    held.entered.wait(PATIENCE)
    status, found = _status_of_child(in_child), counted()
    held.release.set()
    if (status, found) != (0, VALUES):
        witness = f"the child ended with {status}, and its parent counted {found} taps of {VALUES}"
        return [Anomaly("count", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after a forked child")
