"""Fault cells of traces of callbacks that run at the same time, and of how their files end."""

from __future__ import annotations

import json
import os
import signal
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
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import planted
from .traces import library

PATIENCE = 20.0
SOON_SECONDS = 0.5
"""For a callback that may run beside another, and need not."""
STEPS = 400
"""More events than a trace keeps before it writes them."""


@planted("jit", "call", "H22")
def runs_at_once_are_traced(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: two functions that run on one device at the same time have a track each, named for the device.

    Pure callbacks may do so, and calls may not. JAX has pure callbacks, too, but no traces and no calls.
    """
    both = threading.Barrier(2)

    def host(operand: Any) -> Any:
        if float(operand[0]) >= 0:
            both.wait(PATIENCE)
        return np.asarray(operand)

    hostcb = library(bench)
    shape = jax.ShapeDtypeStruct(bench.operand.shape, bench.operand.dtype)
    compiled = jax.jit(lambda x: hostcb.pure_callback(host, shape, x))
    jax.block_until_ready(compiled(bench.operand - 100))
    threads = [threading.Thread(target=lambda: jax.block_until_ready(compiled(bench.operand))) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with hostcb.trace(file):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        events = json.loads(file.read_text())
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found = sorted(str(names.get(event["tid"])) for event in events if event["ph"] == "X")
    device = f"{bench.devices[0].platform}:{bench.devices[0].id}"
    if found != [device, f"{device} (2)"]:
        witness = f"two runs at the same time are on the tracks {found}, of {sorted(names.values())}"
        return [Anomaly("trace", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after two runs at the same time")


@planted("jit", "id_tap", "H22")
def lanes_after_inner_runs(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: a track has one thread's runs at a time, also when a function goes on whose inner programs have ended."""
    inside, beside = threading.Event(), threading.Event()
    hostcb = library(bench)
    shape = jax.ShapeDtypeStruct((), np.float32)
    inner = jax.jit(lambda x: hostcb.io_callback(lambda operand: np.asarray(operand), shape, x))

    def other_host(operand: Any) -> Any:
        beside.set()
        return np.asarray(operand)

    other = jax.jit(lambda x: hostcb.io_callback(other_host, shape, x))

    def outer(operand: Any, transforms: Any) -> None:
        jax.block_until_ready(inner(np.float32(1)))
        inside.set()
        # An unordered callback may run beside a tap, and need not.
        beside.wait(SOON_SECONDS)

    jax.block_until_ready((inner(np.float32(0)), other(np.float32(0))))
    bench.implementation.barrier()
    beside.clear()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with hostcb.trace(file):
            bench.implementation.tap(outer, np.float32(1))
            inside.wait(PATIENCE)
            thread = threading.Thread(target=lambda: jax.block_until_ready(other(np.float32(1))))
            thread.start()
            thread.join()
            bench.implementation.barrier()
        events = json.loads(file.read_text())
    anomalies: list[Anomaly] = []
    runs = [event for event in events if event["ph"] == "X" and event["cat"] != "hand-over"]
    if len(runs) != 3:
        anomalies.append(Anomaly("trace", Stage.CALLBACK, f"of 3 runs it has {[run['name'] for run in runs]}"))
    for one in runs:
        for two in runs:
            same = one["tid"] == two["tid"] and one["args"]["thread_id"] < two["args"]["thread_id"]
            if same and one["ts"] < two["ts"] + two["dur"] and two["ts"] < one["ts"] + one["dur"]:
                witness = f"runs of two threads, {one['name']} and {two['name']}, are at one time on one track"
                anomalies.append(Anomaly("trace", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after runs inside of others")


@planted("jit", "id_tap", "H22")
def threads_on_tracks(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: a thread that hands a value over has a track of its name, whatever the name is."""
    hostcb = library(bench)
    names = ('a "quoted" one', "a back\\slash", "line\nbreak\t", "naïve 日本")
    anomalies: list[Anomaly] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with hostcb.trace(file):
            for name in names:
                thread = threading.Thread(target=lambda: bench.implementation.tap(lambda *_: None, np.float32(1)))
                thread.name = name
                thread.start()
                thread.join()
        text = file.read_text()
    try:
        events = json.loads(text)
    except ValueError as error:
        return [Anomaly("trace", Stage.CALLBACK, f"with threads that are called {names}: {error}")]
    runs = [event for event in events if event["ph"] == "X" and event["cat"] != "hand-over"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    if len(runs) != len(names) or not {*names} <= tracks:
        witness = f"of {len(names)} runs it has {len(runs)}, and the threads {sorted(tracks)} of {names}"
        anomalies.append(Anomaly("trace", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after taps of threads")


@planted("jit", "id_tap call", "H22")
def begun_before_the_trace(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: an inner trace has no run that began before it, although the outer one has, and no time before its begin."""
    entered, release = threading.Event(), threading.Event()
    hostcb = library(bench)

    def held(operand: Any) -> Any:
        entered.set()
        release.wait(2 * PATIENCE)
        return np.asarray(operand)

    compiled = bench.applying(callback, held)
    thread = threading.Thread(target=lambda: jax.block_until_ready(compiled(bench.operand)))
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.json" for name in ("outer", "inner")}
        with hostcb.trace(files["outer"]):
            thread.start()
            entered.wait(PATIENCE)
            try:
                # Its end waits for the function that is held.
                with hostcb.trace(files["inner"]):
                    release.set()
                    thread.join()
                    bench.implementation.barrier()
                    jax.block_until_ready(compiled(bench.operand))
            finally:
                release.set()
        for name, file in files.items():
            found[name] = json.loads(file.read_text())
    anomalies: list[Anomaly] = []
    for name, wanted in (("outer", 2), ("inner", 1)):
        runs = [event for event in found[name] if event["ph"] == "X" and event["cat"] != "hand-over"]
        early = [event["name"] for event in found[name] if event.get("ts", 0) < 0]
        if len(runs) != wanted or early:
            witness = f"the {name} trace has {len(runs)} runs, expected {wanted}, and before its begin {early}"
            anomalies.append(Anomaly("trace", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after traces")


@planted("jit", "id_tap call", "H22")
def trace_breaks_off(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: if the file cannot be written any more, the callbacks run all the same, and the end of the block says so."""
    seen: list[float] = []

    def host(operand: Any) -> Any:
        seen.append(float(operand))
        return np.asarray(operand)

    compiled = jax.jit(
        lambda x: jax.lax.fori_loop(0, STEPS, lambda _, carry: bench.apply(callback, host, carry) + 1, x)
    )
    anomalies: list[Anomaly] = []
    with tempfile.TemporaryDirectory() as folder:
        # A pipe whose reader goes away, as a disk that becomes full.
        pipe = Path(folder) / "trace.json"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            with library(bench).trace(pipe):
                os.close(reader)
                wanted = np.float32(STEPS)
                anomalies += check_value("the program", lambda: compiled(np.float32(0)), wanted)
                anomalies += check_quiet_barrier(bench, "in a trace that cannot be written")
        except OSError as error:
            said = "could not be written" in str(error)
        else:
            said = False
    if not said:
        anomalies.append(Anomaly("swallowed error", Stage.EXIT, "the end of the block did not raise that events lack"))
    if seen != [float(number) for number in range(STEPS)]:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"{len(seen)} of {STEPS} callbacks ran"))
    return anomalies[:3]


@planted("jit", "id_tap", "H22")
def trace_of_an_interrupted_wait(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: a signal handler raises while the end of the block waits: the file is whole, closed, and free again."""

    def interrupt(*_: Any) -> None:
        raise InterruptedError(PLANTED)

    release = threading.Event()
    compiled = bench.compile(lambda x: bench.implementation.tap(lambda *_: release.wait(PATIENCE), x))
    release.set()
    compiled(bench.operand)
    bench.implementation.barrier()
    opened = _descriptors()
    main = threading.get_ident()
    anomalies: list[Anomaly] = []
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            for _ in range(2):
                release.clear()
                # One-sided: on a slow machine the handler may raise in the block.
                timer = threading.Timer(SOON_SECONDS / 2, signal.pthread_kill, (main, signal.SIGALRM))
                timer.start()
                error = error_of(lambda: _traced(bench, file, lambda: compiled(bench.operand)))
                timer.join()
                release.set()
                bench.implementation.barrier()
                if PLANTED not in str(error):
                    anomalies.append(Anomaly("error", Stage.EXIT, f"an interrupted trace came to {error!r}"))
                try:
                    json.loads(file.read_text())
                except ValueError as unreadable:
                    anomalies.append(Anomaly("trace", Stage.EXIT, f"after an interrupted wait: {unreadable}"))
    finally:
        release.set()
        signal.signal(signal.SIGALRM, before)
    left = _descriptors() - opened
    if left > 0:
        anomalies.append(Anomaly("leak", Stage.EXIT, f"two traces have left {left} descriptors open"))
    return anomalies + check_quiet_barrier(bench, "after an interrupted trace")


def _traced(bench: Bench, file: Path, run: Callable[[], Any]) -> None:
    with library(bench).trace(file):
        run()


def _descriptors() -> int:
    """How many descriptors of the process are open, where the system tells."""
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0
