"""Fault cells of taps and calls: the reports of the barrier, the flags, and stopping hostcb's threads."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value
from .harness.child_processes import run_victim
from .harness.registry import planted

TAPS = 3


@planted("pmap shard_map", "id_tap", "H13")
def several_fail(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Every second device fails in each of several taps: the barrier reports each failure, by device and in order."""
    failing = {float(row[0]) for row in bench.operand[::2]}

    def raising(step: int) -> Any:
        def host(operand: Any) -> Any:
            first = float(operand.ravel()[0])
            if first in failing:
                raise ValueError(f"{PLANTED} {step} of {first:.0f}")
            return operand + np.float32(1)

        return host

    def computation(x: Any) -> Any:
        for step in range(TAPS):
            x = bench.apply(callback, raising(step), x)
        return x

    anomalies = check_value("the program", lambda: bench.compile(computation)(bench.operand), bench.operand)
    expected = bench.implementation.callback_exception
    try:
        bench.implementation.barrier()
    except expected as error:
        anomalies += _check_failures(bench, getattr(error, "failures", ()))
    else:
        anomalies.append(
            Anomaly("swallowed error", Stage.BARRIER, "several taps failed, and the barrier raised nothing")
        )
    return anomalies + check_quiet_barrier(bench, "for a second time")


def _check_failures(bench: Bench, failures: Any) -> list[Anomaly]:
    anomalies = []
    for device, row in list(zip(bench.devices, bench.operand, strict=True))[::2]:
        wanted = [f"{PLANTED} {step} of {row[0]:.0f}" for step in range(TAPS)]
        found = [str(failure.exception) for failure in failures if failure.device == device]
        if found != wanted:
            anomalies.append(Anomaly("wrong failures", Stage.BARRIER, f"of {device} are told {found}, not {wanted}"))
    if not anomalies and len(failures) != TAPS * len(bench.devices[::2]):
        anomalies.append(Anomaly("wrong failures", Stage.BARRIER, f"{len(failures)} failures are told"))
    return anomalies


@planted("jit pmap", "id_tap")
def fails_before_calls(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A tap raises, and calls follow in this program and in the next: they run, and the barrier reports it once."""
    operands: list[float] = []
    armed = [True]

    def raising(operand: Any) -> None:
        if armed:
            raise ValueError(PLANTED)

    def answer(operand: Any) -> Any:
        operands.append(float(operand.ravel()[0]))
        return operand + np.float32(1)

    def computation(x: Any) -> Any:
        tapped = bench.apply(callback, raising, x)
        wanted = jax.ShapeDtypeStruct(jnp.shape(x), np.float32)
        return bench.implementation.call(answer, bench.implementation.call(answer, tapped, wanted), wanted)

    compiled = bench.compile(computation)
    anomalies = check_value("the calls after the tap", lambda: compiled(bench.operand), bench.operand + 2)
    anomalies += check_value("the next program", lambda: compiled(bench.operand), bench.operand + 2)
    try:
        bench.implementation.barrier()
    except bench.implementation.callback_exception as error:
        if PLANTED not in str(error):
            anomalies.append(Anomaly("poor error", Stage.BARRIER, f"the barrier says nothing of it: {summary(error)}"))
    else:
        anomalies.append(Anomaly("swallowed error", Stage.BARRIER, "a tap raised, and the barrier did not"))
    armed.clear()
    anomalies += check_value("a clean program", lambda: compiled(bench.operand), bench.operand + 2)
    if len(operands) != 6 * bench.callbacks_per_run:
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"{len(operands)} calls ran"))
    return anomalies + check_quiet_barrier(bench, "after clean computations")


@planted("jit pmap", "id_tap", "H17")
def stops_and_starts(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Stopping first runs pending callbacks, and the next use starts the threads again."""
    seen: list[float] = []
    gate = threading.Event()

    def host(operand: Any) -> None:
        gate.wait(10.0)
        seen.append(float(np.asarray(operand).ravel()[0]))

    compiled = bench.applying(callback, host)
    count = bench.callbacks_per_run
    anomalies = []
    for number in range(1, 3):
        gate.clear()
        compiled(bench.operand)
        # The taps may go on after the stop has begun.
        threading.Timer(0.2, gate.set).start()
        bench.implementation.stop()
        if len(seen) != number * count:
            witness = f"after stop number {number} {len(seen)} of {number * count} taps had run"
            anomalies.append(Anomaly("lost", Stage.BARRIER, witness))
    gate.set()
    return anomalies + check_quiet_barrier(bench, "after having been stopped")


@planted("jit", "id_tap", "H16")
def flags(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Flags of the environment: taps outside of programs run in the caller's thread, and derivatives are tapped."""
    environment = {"JAX_HOST_CALLBACK_INLINE": "1", "JAX_HOST_CALLBACK_AD_TRANSFORMS": "1"}
    ended = run_victim(bench, "flags", environment=environment)
    ended.check()
    in_caller, transforms = ended.said
    anomalies = []
    if in_caller != [True, False]:
        witness = f"with the inline flag, and when the program had taken it back, taps ran {in_caller} in the caller"
        anomalies.append(Anomaly("flag ignored", Stage.CALLBACK, witness))
    if ["jvp", "transpose"] not in transforms:
        witness = f"with the flag for derivatives taps were told the transforms {transforms}"
        anomalies.append(Anomaly("flag ignored", Stage.CALLBACK, witness))
    return anomalies
