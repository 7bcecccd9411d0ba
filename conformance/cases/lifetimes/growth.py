"""The process does not grow with the runs of a program: neither its objects in number nor its memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ...spec.external_callbacks import callback_named
from ..harness.case import Case, case
from ..harness.hosts import add_one

WARM_UP = 5
RUNS = 60
"""Fewer than the executions of which an implementation may keep those that have ended."""
MANY_RUNS = 600
"""Many more than those."""


@case("jit", "call pure_callback io_callback debug_callback", "H3 H18 X2 X3 X4")
def runs_leave_nothing(case: Case) -> None:
    """Sixty runs leave fewer than 120 objects in the process, also before the next barrier: under two for each run."""

    def through(x: Any) -> Any:
        result = case.apply(add_one, x)
        # A callback without an effect comes last: the program has one all the same.
        pure = callback_named("pure_callback")
        return case.apply(add_one, result, by=pure) if case.callback.runs is Runs.ONCE else result

    program = case.compile(through)

    def run(times: int) -> int:
        for _ in range(times):
            jax.block_until_ready(program(case.operand))
        gc.collect()
        return len(gc.get_objects())

    run(WARM_UP)
    before = run(WARM_UP)
    grown = run(RUNS) - before
    case.check(grown < 2 * RUNS, "leak", Stage.EXIT, f"{RUNS} runs left {grown} objects")


@case("pmap", "id_tap call io_callback_ordered", "H3 H18 X3", minimum_devices=2)
def unawaited_runs_leave_nothing(case: Case) -> None:
    """Of 600 runs on several devices that nobody waits for, the barrier leaves less than an object for each run.

    An implementation may keep some that have ended, and not more with more runs.
    """
    program = case.compile(lambda x: case.apply(add_one, x))

    def run(times: int) -> int:
        for _ in range(times):
            program(case.operand)
        case.barrier()
        gc.collect()
        return len(gc.get_objects())

    # It may keep so many that have ended, and not more with more runs.
    before = run(RUNS)
    grown = run(MANY_RUNS) - before
    case.check(grown < MANY_RUNS, "leak", Stage.EXIT, f"{MANY_RUNS} runs left {grown} objects")


ELEMENTS = 1 << 18
"""Of float32: a MiB for each operand."""
STEPS = 32
ROUNDS = 8
MOST_GROWTH = ROUNDS * STEPS // 2
"""In MiB: half of what all operands have together, and four times as much as those of one run."""

_RESIDENT = Path("/proc/self/statm")


@case("jit", "id_tap call pure_callback io_callback debug_callback", "H11 H12 X2 X3 X4")
def gives_memory_back(case: Case) -> None:
    """The memory of large operands, whose functions have ended, is given back: half of it at the least."""
    runs: list[None] = []

    def host(operands: Any) -> Any:
        runs.append(None)
        return np.asarray(operands[0])[0] + np.float32(1)

    def step(_: Any, carry: Any) -> Any:
        # Two operands, each with memory of its own.
        half = jnp.full(ELEMENTS // 2, carry)
        result = case.apply(host, (half, half + 1), carry)
        return result if case.callback.returns_new_value else result[1][0]

    program = jax.jit(lambda x: jax.lax.fori_loop(0, STEPS, step, x))
    before = 0.0
    for number in range(1 + ROUNDS):
        case.gives(np.float32(STEPS), program, np.float32(0))
        case.barrier()
        # What the process needs once does not count.
        before = before or _resident()
        case.check(len(runs) >= STEPS * (1 + number), "lost", Stage.CALLBACK, f"{len(runs)} runs of the function")
    grown = _resident() - before
    case.check(grown < MOST_GROWTH, "leak", Stage.EXIT, f"{ROUNDS * STEPS} MiB of operands left {grown:.0f} MiB")


def _resident() -> float:
    """The MiB that the process has in memory; 0 where the system does not tell."""
    if not _RESIDENT.exists():
        return 0.0
    return int(_RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
