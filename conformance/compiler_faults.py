"""Fault cells for what the compiler makes of a token that has nothing beside it, and of callbacks that look alike.

The former was found with JAX 0.12.0.1 in ordered callbacks of every kind; a library can only avoid it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
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
EQUAL, RUNS = 3, 2


class Counting:
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
    counting = Counting()

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
    counting = Counting()

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


def equal_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Callbacks that nothing tells apart are as many as the program has: nothing may merge or remember them."""
    counting = Counting()
    compiled = bench.compile(lambda x: sum(bench.invoke(callback, counting, x) for _ in range(EQUAL)))
    return check_count(bench, counting, compiled)


def check_count(bench: Bench, counting: Counting, compiled: Callable[[Any], Any]) -> list[Anomaly]:
    """A program with a number of equal callbacks makes them all, each time that it is run."""
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    bench.implementation.barrier()
    count, wanted = counting.calls.total(), EQUAL * RUNS
    if count == wanted:
        return []
    witness = f"{RUNS} runs of {EQUAL} equal callbacks made {count} calls, not {wanted}"
    return [Anomaly("wrong count", Stage.CALLBACK, witness)]
