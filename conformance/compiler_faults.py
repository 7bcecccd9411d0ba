"""Fault cells for what the compiler makes of a token that has nothing beside it.

Found with JAX 0.12.0.1 in ordered callbacks of every kind; a library can only avoid it.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.bench import WIDTH, Bench
from conformance.callbacks import Callback
from conformance.checkers import Anomaly
from conformance.execution import summary
from conformance.fault_checks import error_of
from conformance.verdicts import Stage

TRIPS = 4


class _Counting:
    """A host function that counts its calls by the first number that it is given."""

    def __init__(self) -> None:
        self.calls: Counter[float] = Counter()
        self._lock = threading.Lock()

    def __call__(self, operand: Any) -> Any:
        with self._lock:
            self.calls[float(np.asarray(operand).ravel()[0])] += 1
        return np.asarray(operand)


def loop_without_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Devices run a loop that starts from constants: each of its callbacks runs once on each of them."""
    counting = _Counting()

    def step(index: Any, carry: Any) -> Any:
        result = bench.invoke(callback, counting, jnp.full((1, WIDTH), index, jnp.float32))
        return carry + jnp.sum(result)

    compiled = bench.compile(lambda x: jnp.zeros_like(x) + jax.lax.fori_loop(0, TRIPS, step, jnp.float32(0)))
    jax.block_until_ready(compiled(bench.operand))
    bench.implementation.barrier()
    wanted = {float(index): bench.callbacks_per_run for index in range(TRIPS)}
    return [
        Anomaly("wrong count", Stage.CALLBACK, f"step {step:.0f} called {counting.calls[step]} times, not {times}")
        for step, times in wanted.items()
        if counting.calls[step] != times
    ][:1]


def cond_without_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A cond that only calls back, and then a jitted function that does: both compile, and both call."""
    counting = _Counting()

    def calling(number: float) -> Any:
        bench.invoke(callback, counting, jnp.full((WIDTH,), number, jnp.float32))
        return None

    def computation(x: Any) -> Any:
        jax.lax.cond(x[1] > 0, lambda: calling(1.0), lambda: calling(2.0))
        jax.jit(lambda: calling(3.0))()
        return x

    compiled = bench.compile(computation)
    if error := error_of(lambda: jax.block_until_ready(compiled(bench.operand))):
        return [Anomaly("wrong error", Stage.COMPILE, f"the program does not compile: {summary(error)}")]
    bench.implementation.barrier()
    if counting.calls == {1.0: 1, 3.0: 1}:
        return []
    return [Anomaly("wrong count", Stage.CALLBACK, f"calls by number: {dict(counting.calls)}, not 1 and 3 once each")]
