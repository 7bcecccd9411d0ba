"""What programs leave behind that have run and whose results are gone."""

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

ELEMENTS = 1 << 18
"""Of float32: a MiB for each value."""
VALUES = 32
ROUNDS = 8
MOST_GROWTH = VALUES * ROUNDS // 2
"""In MiB: half of what all values have together, and four times as much as those that are on their way."""

_RESIDENT = Path("/proc/self/statm")


@case("jit", "call pure_callback io_callback debug_callback", "H3 H18 X2 X3 X4")
def runs_leave_nothing(case: Case) -> None:
    """The objects of the process do not grow in number with the runs of a program, also before the next barrier."""

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


@case("pmap shard_map", "id_tap call io_callback_ordered", "H3 H18 X3", minimum_devices=2)
def unawaited_runs_leave_nothing(case: Case) -> None:
    """As `runs_leave_nothing`, of programs on several devices that nobody waits for until the barrier."""
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


@case("jit", "id_tap", "H11 H12")
def gives_memory_back(case: Case) -> None:
    """The memory of large values, whose functions have ended, does not add up."""
    ran: list[None] = []

    def step(_: Any, carry: Any) -> Any:
        # Several operands, each with memory of its own.
        half = jnp.full(ELEMENTS // 2, carry)
        return case.implementation.tap(lambda *_: ran.append(None), (half, half + 1))[0][0] + 1

    program = jax.jit(lambda x: jax.lax.fori_loop(0, VALUES, step, x))
    before = 0.0
    # What the process needs once does not count.
    for number in range(ROUNDS + 1):
        case.gives(np.float32(VALUES), program, jnp.float32(0))
        case.barrier()
        before = before if number else _resident()
    grown = _resident() - before
    case.same("lost", Stage.CALLBACK, len(ran), VALUES * (ROUNDS + 1), "values")
    case.check(grown <= MOST_GROWTH, "leak", Stage.CALLBACK, f"after values of 1 MiB the process has {grown:.0f} more")


def _resident() -> float:
    """The MiB that the process has in memory; 0 where the system does not say."""
    if not _RESIDENT.exists():
        return 0.0
    return int(_RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
