"""Cases of compiled programs with a token and no other value, and with equal callbacks.

JAX 0.12.0.1 compiles the former wrongly, for ordered callbacks of every kind; a library can only avoid the bug.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.checkers import Anomaly
from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Callback
from ..harness.bench import WIDTH, Bench
from ..harness.checks import check_value, error_of
from ..harness.registry import bench_case

TRIPS = 4
EQUAL, RUNS = 3, 2


class Counting:
    """A host function that counts its calls by the first number of its operand."""

    def __init__(self) -> None:
        self.calls: Counter[float] = Counter()
        self._lock = threading.Lock()

    def __call__(self, operand: Any) -> Any:
        with self._lock:
            self.calls[float(np.asarray(operand).ravel()[0])] += 1
        return np.asarray(operand)


@bench_case("pmap shard_map", "io_callback_ordered", minimum_devices=2, isolated=True)
def loop_without_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Devices run a loop that starts from constants: each callback of the loop runs once on each device."""
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


@bench_case("jit", "id_tap io_callback_ordered debug_callback_ordered", "H4 X3 X4", isolated=True)
def equal_functions_without_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program calls a jitted function twice, which has no operands and an ordered callback of a constant."""
    counting = Counting()

    @jax.jit
    def call() -> None:
        bench.apply(callback, counting, jnp.full(WIDTH, 7, jnp.float32))

    def computation(x: Any) -> Any:
        call()
        call()
        return x

    jax.block_until_ready(bench.compile(computation)(bench.operand))
    bench.implementation.barrier()
    if counting.calls == {7.0: 2}:
        return []
    return [Anomaly("wrong count", Stage.CALLBACK, f"calls by number: {dict(counting.calls)}, not 7 twice")]


@bench_case("jit", "id_tap io_callback_ordered", "H4 X3", isolated=True)
def cond_without_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A branch without results, with operands or without, and then a jitted function without operands, and a loop."""
    counting = Counting()

    def calling(number: Any) -> None:
        bench.apply(callback, counting, jnp.full((WIDTH,), number, jnp.float32))

    def by_cond(x: Any) -> None:
        jax.lax.cond(x[1] > 0, lambda: calling(1.0), lambda: None)

    def by_cond_of_operand(x: Any) -> None:
        jax.lax.cond(x[1] > 0, lambda y: calling(y[1]), lambda y: None, x)

    def by_cond_of_operands(x: Any) -> None:
        jax.lax.cond(x[1] > 0, lambda y, z: calling(y[1] + z), lambda y, z: None, x, x[0])

    def by_switch(x: Any) -> None:
        jax.lax.switch(jnp.int32(x[1]), [lambda y: None, lambda y: calling(y[1]), lambda y: calling(9.0)], x)

    def without_operands() -> None:
        jax.jit(lambda: calling(3.0))()

    def again(_: Any, carry: Any) -> Any:
        without_operands()
        return carry

    def in_loop() -> None:
        jax.lax.fori_loop(0, 2, again, 0)

    anomalies: list[Anomaly] = []
    for branch in (by_cond, by_cond_of_operand, by_cond_of_operands, by_switch):
        # The function is called once: twice is `equal_functions_without_operands`.
        for then, times in ((without_operands, 1), (in_loop, 2)):
            counting.calls.clear()

            def computation(x: Any, branch: Any = branch, then: Any = then) -> Any:
                branch(x)
                then()
                return x

            label = f"{branch.__name__} and {then.__name__}"
            compiled = bench.compile(computation)
            if error := error_of(lambda run=compiled: jax.block_until_ready(run(bench.operand))):  # type: ignore[misc]
                witness = f"{label}: the program does not compile: {summary(error)}"
                anomalies.append(Anomaly("wrong error", Stage.COMPILE, witness))
                continue
            bench.implementation.barrier()
            if counting.calls != {1.0: 1, 3.0: times}:
                witness = f"{label}: calls by number {dict(counting.calls)}, expected 1 once and 3 {times} times"
                anomalies.append(Anomaly("wrong count", Stage.CALLBACK, witness))
    return anomalies


@bench_case("jit", "id_tap call", "H4")
@bench_case("jit", "io_callback io_callback_ordered debug_callback")
@bench_case("jit", "buffer_callback_side_effect", "B4")
def equal_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Equal callbacks run as often as the program has them: the compiler must not merge them or reuse a result."""
    counting = Counting()
    compiled = bench.compile(lambda x: sum(bench.apply(callback, counting, x) for _ in range(EQUAL)))
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    bench.implementation.barrier()
    count, wanted = counting.calls.total(), EQUAL * RUNS
    if count == wanted:
        return []
    witness = f"{RUNS} runs of {EQUAL} equal callbacks made {count} calls, not {wanted}"
    return [Anomaly("wrong count", Stage.CALLBACK, witness)]


@bench_case("jit shard_map", "io_callback debug_callback")
def reduces_its_result(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program returns an array and calls back with a number about it: large enough for a library's reduction."""
    counting = Counting()
    rows = len(bench.devices) if bench.layout == "shard_map" else 1
    operand = np.ones((64 * rows, 64), np.float32)

    def layer(x: Any) -> Any:
        y = x @ jnp.ones((64, 64), np.float32)
        bench.apply(callback, counting, jnp.max(y))
        return y

    anomalies = check_value("the layer", lambda: bench.compile(layer)(operand), operand * 64)
    bench.implementation.barrier()
    if anomalies or counting.calls == {64.0: bench.callbacks_per_run}:
        return anomalies
    return [Anomaly("wrong count", Stage.CALLBACK, f"calls by number: {dict(counting.calls)}")]
