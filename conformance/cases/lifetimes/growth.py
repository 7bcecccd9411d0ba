"""The objects of the process do not grow in number with the runs of a program."""

from __future__ import annotations

import gc
from typing import Any

import jax

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
