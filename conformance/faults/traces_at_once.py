"""Fault cells of traces of callbacks that run at the same time, and of a file that cannot be written any more."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .checks import check_quiet_barrier, check_value
from .fault import planted
from .traces import library

PATIENCE = 20.0
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
