"""Fault cells of memory that must come back: that of large values whose callbacks have ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .checks import check_quiet_barrier, check_value
from .fault import planted

ELEMENTS = 1 << 18
"""Of float32: a MiB for each value."""

VALUES = 32
ROUNDS = 8
MOST_GROWTH = VALUES * ROUNDS // 2
"""In MiB: half of what all values have together, and four times as much as those that are on their way."""

_RESIDENT = Path("/proc/self/statm")


@planted("jit", "id_tap", "H11 H12")
def gives_memory_back(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The memory of large values, whose functions have ended, does not add up."""
    seen: list[float] = []

    def host(operand: Any) -> Any:
        seen.append(float(operand[0]))

    def computation(x: Any) -> Any:
        return jax.lax.fori_loop(
            0, VALUES, lambda _, carry: bench.apply(callback, host, jnp.full(ELEMENTS, carry))[0] + 1, x
        )

    compiled = jax.jit(computation)
    anomalies: list[Anomaly] = []
    wanted = jnp.float32(VALUES)
    # What the process needs once does not count.
    for number in range(ROUNDS + 1):
        anomalies += check_value("the program", lambda: compiled(jnp.float32(0)), wanted)
        anomalies += check_quiet_barrier(bench, "after large values")
        if number == 0:
            before = _resident()
    grown = _resident() - before
    if len(seen) != VALUES * (ROUNDS + 1):
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"{len(seen)} of {VALUES * (ROUNDS + 1)} values came"))
    if grown > MOST_GROWTH:
        witness = f"{VALUES * ROUNDS} values of 1 MiB have run, and the process has grown by {grown:.0f} MiB"
        anomalies.append(Anomaly("leak", Stage.CALLBACK, witness))
    return anomalies[:3]


def _resident() -> float:
    """The MiB that the process has in memory; 0 where the system does not tell."""
    if not _RESIDENT.exists():
        return 0.0
    return int(_RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
