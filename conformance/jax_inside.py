"""Fault cells of callbacks that use JAX themselves: on one device, on all by pmap or over a mesh, with callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.bench import Bench
from conformance.callbacks import Callback
from conformance.checkers import Anomaly
from conformance.fault_checks import check_quiet_barrier, check_value
from conformance.verdicts import Stage

SIDE = 64


def runs_on_one_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each callback makes arrays on a device and computes with them."""

    @jax.jit
    def inner(operand: Any) -> Any:
        square = jnp.full((SIDE, SIDE), operand.ravel()[0])
        return jnp.trace(square @ jnp.eye(SIDE)) / SIDE

    return _check_inside(bench, callback, lambda operand: inner(jnp.asarray(operand)))


def runs_pmap(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each callback runs a program on all devices, by pmap."""
    inner = jax.pmap(lambda x: x + 0, devices=bench.devices)
    count = len(bench.devices)
    return _check_inside(bench, callback, lambda operand: inner(np.full((count, 1), operand.ravel()[0]))[count - 1, 0])


def runs_mesh(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each callback runs one program over a mesh of all devices, with a collective in it."""
    count = len(bench.devices)
    inner = jax.jit(lambda x: x.sum() / count, in_shardings=bench.split)
    return _check_inside(bench, callback, lambda operand: inner(np.full((count, 1), operand.ravel()[0])))


def starts_others(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each callback runs a program that has a callback of the same kind."""
    seen: list[Any] = []

    def recording(operand: Any) -> Any:
        seen.append(np.asarray(operand))
        return np.asarray(operand) + np.float32(1)

    inner = jax.jit(lambda x: bench.apply(callback, recording, x))
    results: list[Any] = []

    def host(operand: Any) -> Any:
        results.append(np.asarray(inner(np.asarray(operand))))
        return results[-1]

    compiled = bench.applying(callback, host)
    wanted = bench.expected(callback, bench.operand)
    anomalies = check_value("the outer program", lambda: compiled(bench.operand), wanted)
    anomalies += check_quiet_barrier(bench, "after callbacks that started others")
    for what, arrays, each in (("operands", seen, bench.operand), ("results", results, wanted)):
        if not arrays or any(not np.array_equal(array, each) for array in arrays):
            witness = f"the inner program's {what} are {arrays}, expected {each}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


def _check_inside(bench: Bench, callback: Callback, inner: Callable[[Any], Any]) -> list[Anomaly]:
    """The host finds the first number of its operand again by running a program."""
    # Compiled beforehand: that takes longer than anything that is waited for.
    inner(bench.operand)
    found: list[tuple[float, float]] = []

    def host(operand: Any) -> Any:
        array = np.asarray(operand)
        found.append((float(array.ravel()[0]), float(inner(array))))
        return array + np.float32(1)

    compiled = bench.applying(callback, host)
    anomalies = check_value("the program", lambda: compiled(bench.operand), bench.expected(callback, bench.operand))
    anomalies += check_quiet_barrier(bench, "after callbacks that ran JAX")
    if len(found) < bench.callbacks_per_run:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"{len(found)} callbacks ran"))
    for first, again in found:
        if first != again:
            witness = f"JAX inside a callback computed {again}, expected {first}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies
