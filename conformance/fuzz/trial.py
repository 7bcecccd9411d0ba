"""One program tried: expected, run, compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from ..implementations import Implementation
from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from .description import Program
from .expected import UnjudgedError
from .inputs import devices_apart
from .matching import ONE_ORDER, ORDERS_OF_JAX, judge
from .oracle import expect
from .running import Running

ROUNDS = (1, 1, 2)
"""The runs of each round: one alone, one again, and two of which the second does not wait for the first."""


@dataclass(frozen=True)
class Tried:
    anomalies: tuple[Anomaly, ...] = ()
    unjudged: str = ""
    """Why the program was not run."""


def try_program(program: Program, implementation: Implementation, devices: Sequence[jax.Device]) -> Tried:
    try:
        expected = expect(program)
    except UnjudgedError as error:
        return Tried(unjudged=str(error))
    orders = ORDERS_OF_JAX if getattr(implementation, "name", "") == "jax" else ONE_ORDER
    try:
        running = Running(program, implementation, devices)
        for runs in ROUNDS:
            ran = running.round(runs)
            apart = devices_apart(program) > 1
            if found := judge(expected, ran.results, ran.events, orders, apart):
                return Tried(tuple(found))
    except Exception as error:
        return Tried((Anomaly("error", stage_of(error), f"{type(error).__name__}: {summary(error)}"),))
    return Tried()
