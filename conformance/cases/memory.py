"""Fault cells of the memory of large values: it comes back when their callbacks have ended, and not before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted

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

    def host(operands: Any) -> Any:
        seen.append(float(operands[0][0]))

    def step(_: Any, carry: Any) -> Any:
        # Several operands, each with memory of its own.
        half = jnp.full(ELEMENTS // 2, carry)
        return bench.apply(callback, host, (half, half + 1))[0][0] + 1

    def computation(x: Any) -> Any:
        return jax.lax.fori_loop(0, VALUES, step, x)

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


ODD_BYTES = (65_537, 65_536 + 4_097, 100_003, (1 << 20) + 1, (5 << 20) + 5)
KEPT = 6


@planted("jit", "id_tap", "H1 H11 H12", isolated=True)
def large_of_odd_sizes(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H1, H11: each large value arrives to its last byte, whatever its size is, and stays so while it is kept."""
    anomalies: list[Anomaly] = []
    for size in ODD_BYTES:
        kept: list[Any] = []
        values = [((np.arange(size) + 7 * number) % 251 + 1).astype(np.uint8) for number in range(KEPT)]
        operands = jax.block_until_ready([jax.device_put(each) for each in values])
        compiled = jax.jit(lambda x, kept=kept: bench.apply(callback, kept.append, x)[0])
        for operand in operands:
            compiled(operand)
        anomalies += check_quiet_barrier(bench, f"after values of {size} bytes")
        wrong = [
            number
            for number, value in enumerate(values)
            if number >= len(kept) or not np.array_equal(np.asarray(kept[number]), value)
        ]
        if wrong:
            places = [np.flatnonzero(np.asarray(each) != value)[:3] for each, value in zip(kept, values, strict=False)]
            witness = f"of {KEPT} values of {size} bytes those of the numbers {wrong} are wrong, at {places}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies[:3]
