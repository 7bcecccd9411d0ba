"""Fault cells of values that come while the functions of earlier ones still run.

hostcb's library in C writes the values of taps into a ring, and goes back to the begin of its memory at the end. A ring
that is empty begins there anyway. So only values that come while others wait are written around the end.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.thresholds import THRESHOLDS
from .barriers import PATIENCE
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import planted
from .traces import library

ELEMENTS = 1 << 14
OTHER_ELEMENTS = ELEMENTS - 1000
"""Of the values that come first: where their operands were, the ring ends for the others."""
IN_A_RING = THRESHOLDS["ring"].value // (4 * ELEMENTS)
BEFORE, HELD, AFTER = IN_A_RING * 12 // 16, IN_A_RING * 8 // 16, IN_A_RING * 11 // 16
"""So many values come, the function of that one waits, and so many more come meanwhile: past the end of the ring."""

# Where a device waits for functions, the second program ends only after these seconds.
LONGEST_WAIT = 10.0


# A process that has once asked for statistics counts to its end.
@planted("jit", "id_tap", "H5 H11 H12 H29", functions="stats", isolated=True)
def values_around_the_end(bench: Bench, callback: Callback) -> list[Anomaly]:
    """All values come once, whole and in order, and count once each."""
    seen: list[tuple[float, bool]] = []
    # The first value of a call site binds it to the ring: the one after it.
    held_at = 2
    reached, gate = threading.Event(), threading.Event()

    def host(operand: Any) -> None:
        array = np.asarray(operand)
        seen.append((float(array[0]), bool((array == array[0]).all())))
        if len(seen) == held_at:
            reached.set()
            gate.wait(LONGEST_WAIT)

    def computation(x: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, carry: bench.apply(callback, host, carry) + 1, x)

    compiled = jax.jit(computation)
    filling = IN_A_RING * ELEMENTS // OTHER_ELEMENTS
    for elements, count in ((OTHER_ELEMENTS, 1), (OTHER_ELEMENTS, filling), (ELEMENTS, 1)):
        jax.block_until_ready(compiled(np.ones(elements, np.float32), count))
        if count == filling:
            gate.set()
    anomalies = check_quiet_barrier(bench, "after the first values")
    seen.clear()
    reached.clear()
    gate.clear()
    held_at = HELD
    before = library(bench).stats()
    between = compiled(np.zeros(ELEMENTS, np.float32), BEFORE)
    if not reached.wait(PATIENCE):
        return [Anomaly("lost", Stage.CALLBACK, f"the function of the value {HELD} did not run: {len(seen)} came")]
    jax.block_until_ready(compiled(between, AFTER))
    gate.set()
    anomalies += check_quiet_barrier(bench, "after all values")
    count = BEFORE + AFTER
    if seen != [(float(number), True) for number in range(count)]:
        first = next((each for each in enumerate(seen) if each[1] != (float(each[0]), True)), None)
        witness = f"of {count} values {len(seen)} came; the first that is wrong or at the wrong place: {first}"
        anomalies.append(Anomaly("lost", Stage.CALLBACK, witness))
    of = (library(bench).stats() - before)[bench.devices[0]]
    counted = (of.taps, of.taps_run, of.bytes, of.queued, of.queued_bytes)
    if counted != (count, count, 4 * ELEMENTS * count, 0, 0):
        witness = f"taps, those that ran, bytes, queued, queued bytes are {counted}, expected those of {count} values"
        anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    return anomalies
