"""Fault cells of conditions of loops: with a mutable array, of which JAX gives the value from before, and in lanes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import planted
from .traces import library


@planted("jit", "debug_callback", "X4", functions="barrier_wait")
def condition_of_lanes_that_differ(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A debug callback in the condition of a while_loop whose lanes end at different steps: it runs, and all end."""
    seen: list[int] = []

    def lane(count: Any) -> Any:
        def condition(carry: Any) -> Any:
            library(bench).debug.callback(lambda step: seen.append(int(step)), carry[0])
            return carry[0] < count

        return jax.lax.while_loop(condition, lambda carry: (carry[0] + 1, carry[1] * 2), (0, np.float32(1)))

    counts = np.array([1, 3], np.int32)
    steps, powers = jax.jit(jax.vmap(lane))(counts)
    anomalies = check_quiet_barrier(bench, "after lanes that end at different steps")
    found = np.asarray(steps).tolist(), np.asarray(powers).tolist()
    if found != ([1, 3], [2.0, 8.0]):
        anomalies.append(Anomaly("result", Stage.RESULT, f"the lanes ended with {found}"))
    if {*range(4)} - {*seen}:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"the condition of steps 0 to 3 called back for {seen}"))
    return anomalies
