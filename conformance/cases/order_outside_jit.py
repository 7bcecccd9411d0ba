"""Fault cells of ordered callbacks outside jit, while a program runs on their device, which is not the first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.jax_versions import shard_map
from .barriers import EARLY_SECONDS, PATIENCE
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import planted
from .traces import library

NUMBER = jax.ShapeDtypeStruct((), np.float32)


@planted(
    "pjit",
    "id_tap id_print call io_callback_ordered debug_callback_ordered debug_print_ordered",
    "H5 H10 X5",
    minimum_devices=3,
    functions="barrier_wait",
)
def outside_jit_after_its_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback outside jit runs after that of the program on its device, whatever other devices its operand has."""
    last = bench.devices[-1]
    whole, turned = (
        NamedSharding(Mesh(np.asarray(devices), ("devices",)), PartitionSpec())
        for devices in (bench.devices, [*bench.devices[::-1]])
    )
    ways: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
        "on that device": (lambda host, x: bench.apply(callback, host, x, NUMBER), last),
        "on a mesh that begins with it": (lambda host, x: bench.apply(callback, host, x, NUMBER), turned),
    }
    named = _on_the_device(bench, callback, len(bench.devices) - 1, last)
    if named is not None:
        ways["on a mesh that ends with it, by name"] = (named, whole)
    anomalies: list[Anomaly] = []
    for what, (through, place) in ways.items():
        operand = jax.block_until_ready(jax.device_put(np.float32(2), place))
        anomalies += _overtakes(bench, what, lambda host, t=through, x=operand: t(host, x))  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after a callback {what}")
    return anomalies


def _on_the_device(bench: Bench, callback: Callback, index: int, device: Any) -> Callable[[Any, Any], Any] | None:
    """The callback on a device of its operand's mesh, if it can be chosen."""
    hostcb = library(bench)
    ways: dict[str, Callable[[Any, Any], Any]] = {
        "id_tap": lambda host, x: hostcb.id_tap(lambda operand, _: host(operand), x, device_index=index),
        "call": lambda host, x: hostcb.call(host, x, result_shape=NUMBER, device_index=index),
        "io_callback": lambda host, x: hostcb.io_callback(
            host, NUMBER, x, ordered=True, sharding=SingleDeviceSharding(device)
        ),
    }
    return ways.get(callback.function)


def _overtakes(bench: Bench, what: str, through: Callable[[Any], Any]) -> list[Anomaly]:
    """Hold up a program on the last two devices, and look whether the callback runs meanwhile."""
    entered, release, ran, dispatched = (threading.Event() for _ in range(4))
    seen: list[str] = []

    def held(operand: Any) -> Any:
        if float(np.asarray(operand).ravel()[0]) == 1.0:
            entered.set()
            release.wait(2 * PATIENCE)
            seen.append("in the program")
        return np.asarray(operand)

    def quick(operand: Any) -> Any:
        seen.append("outside jit")
        ran.set()
        return np.float32(1)

    rows, like = PartitionSpec("devices"), jax.ShapeDtypeStruct((1,), np.float32)
    mesh = Mesh(np.asarray(bench.devices[-2:]), ("devices",))
    # A program of one device may run in the thread that dispatches it, and it has not started for others then.
    program = jax.jit(
        shard_map(lambda x: bench.implementation.call(held, x, like), mesh=mesh, in_specs=rows, out_specs=rows)
    )
    placed = jax.device_put(np.arange(2, dtype=np.float32), NamedSharding(mesh, rows))

    def dispatch() -> None:
        result = program(placed)
        dispatched.set()
        jax.block_until_ready(result)

    running = threading.Thread(target=dispatch, daemon=True)
    waiting = threading.Thread(target=lambda: through(quick), daemon=True)
    running.start()
    try:
        if not entered.wait(PATIENCE) or not dispatched.wait(PATIENCE):
            return [Anomaly("lost", Stage.DISPATCH, "a program on two devices did not begin, or was not dispatched")]
        waiting.start()
        # One-sided: a slow machine can only miss the fault.
        ran.wait(EARLY_SECONDS)
    finally:
        release.set()
    running.join(PATIENCE)
    waiting.join(PATIENCE)
    if running.is_alive() or waiting.is_alive() or not ran.wait(PATIENCE):
        return [Anomaly("stuck", Stage.DISPATCH, f"a callback {what} did not run after the program had ended")]
    if seen != ["in the program", "outside jit"]:
        return [Anomaly("order", Stage.CALLBACK, f"{what}, a callback of an earlier program and one ran as {seen}")]
    return []
