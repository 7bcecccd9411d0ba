"""Fault cells of dispatches and barriers that raise: what waits afterwards must not wait for them."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import EARLY_SECONDS, PATIENCE
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, error_of
from .harness.registry import planted
from .traces import library

RUNS = 3


@planted("jit", "id_tap call", "H13", functions="barrier_wait")
def raised_dispatch_has_ended(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A dispatch that JAX refuses has ended, although the function that made it goes on: no barrier waits for it."""

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def both(x: Any, y: Any) -> Any:
        return bench.apply(callback, lambda operand: np.asarray(operand) + np.float32(1), x) + y, y

    returned: list[bool] = []

    def wait() -> None:
        library(bench).barrier_wait()
        returned.append(True)

    refused: Exception | None = None
    # One line of this function dispatches, at first right, and at last with the same array for two donated ones.
    for number in range(RUNS + 1):
        first = jnp.full(3, number, np.float32)
        second = first if number == RUNS else first + 1
        try:
            both(first, second)
        except Exception as error:
            refused = error
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if refused is None or not returned:
        witness = f"a dispatch that raised {refused!r} holds a barrier of another thread up"
        return [Anomaly("lost", Stage.BARRIER, witness)]
    return check_quiet_barrier(bench, "after a dispatch that raised")


@planted("jit pmap", "id_tap", "H13", functions="barrier_wait")
def barrier_inside_jaxs(bench: Bench, callback: Callback) -> list[Anomaly]:
    """From inside JAX's own callback, in a program with a tap or on several devices, a barrier refuses to wait."""
    found: list[type | None] = []

    def own(operand: Any) -> Any:
        # With a timeout, so that a barrier that is not refused does not wait for ever.
        found.append(type(error_of(lambda: library(bench).barrier_wait(timeout=EARLY_SECONDS))))
        return np.asarray(operand)

    def computation(x: Any) -> Any:
        y = jax.pure_callback(own, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return bench.implementation.tap(lambda *_: None, y) if bench.layout == "jit" else y

    compiled = bench.compile(computation)
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    error_of(bench.implementation.barrier)
    runs = RUNS * (len(bench.devices) if bench.layout == "pmap" else 1)
    if found != [RuntimeError] * runs:
        witness = f"barriers inside JAX's own callback must raise RuntimeError {runs} times, came {found}"
        return [Anomaly("swallowed error", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after barriers that were refused")


@planted("jit", "buffer_callback dlpack_callback", "B1 D1", functions="barrier_wait")
def without_jit(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Under `jax.disable_jit` a callback that needs a program has one of its own, alone and in another function."""
    operand = jnp.arange(3, dtype=np.float32)

    def program(x: Any) -> Any:
        return bench.apply(callback, lambda given: np.asarray(given) + np.float32(1), x) * 2

    with jax.disable_jit():
        results = [np.asarray(run(operand)).tolist() for run in (program, jax.jit(program))]
    if results != [[2.0, 4.0, 6.0]] * 2:
        return [Anomaly("result", Stage.RESULT, f"without jit it gave {results}")]
    return check_quiet_barrier(bench, "after callbacks without jit")
