"""Fault cells of executables of the runtime, which a user takes out of a program and runs without JAX's dispatch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted

ROUNDS = 2


@planted("jit pjit", "pure_callback", "H10 X2")
def runs_without_dispatch(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The runtime's executable of a program calls back, although JAX tells nobody of its runs."""
    compiled: Any = bench.applying(callback, lambda operand: np.asarray(operand) + np.float32(1))
    split = bench.split if bench.layout == "pjit" else jax.sharding.SingleDeviceSharding(bench.devices[0])
    executable = compiled.lower(bench.operand).compile().runtime_executable()
    operand = jax.device_put(bench.operand, split)

    def run() -> Any:
        (parts,) = executable.execute_sharded([operand]).disassemble_into_single_device_arrays()
        return np.concatenate([np.asarray(part) for part in parts])

    anomalies: list[Anomaly] = []
    for _ in range(ROUNDS):
        anomalies += check_value("the executable", run, bench.expected(callback, bench.operand))
    return anomalies + check_quiet_barrier(bench, "after an executable of the runtime")
