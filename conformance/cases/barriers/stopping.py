"""Stopping the threads of callbacks: it waits for what was started before, and the next use starts them again."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import WHILE, Case, case
from ..harness.hosts import RELEASED_AFTER


@case("jit pmap", "id_tap", "H17")
def stops_and_starts(case: Case) -> None:
    """Stopping first runs pending callbacks, and the next use starts the threads again."""
    gate = threading.Event()
    ended: list[None] = []

    def host(operand: Any) -> None:
        gate.wait(RELEASED_AFTER)
        ended.append(None)

    program = case.compile(lambda x: case.apply(host, x))
    for number in range(1, 3):
        gate.clear()
        program(case.operand)
        # The taps may go on after the stop has begun.
        threading.Timer(WHILE, gate.set).start()
        case.implementation.stop()
        case.same("lost", Stage.BARRIER, len(ended), number * case.copies, f"taps that had run after stop {number}")
    gate.set()


@case("pmap", "id_tap", "H13 H17", minimum_devices=2)
def stops_after_programs(case: Case) -> None:
    """Stopping waits for programs that run, so their taps run before it returns."""
    tapped: list[None] = []
    at_the_end: list[int] = []

    def program_of(slow: Any, x: Any) -> Any:
        called = case.implementation.call(slow, x, jax.ShapeDtypeStruct(x.shape, np.float32))
        return case.implementation.tap(lambda *_: tapped.append(None), called)

    def run(slow: Any, x: Any) -> Any:
        result = case.compile(lambda x: program_of(slow, x))(x)
        case.implementation.stop()
        at_the_end.append(len(tapped))
        return result

    with case.held(run, case.operand):
        # One-sided: on a slow machine the stop begins after the call has ended.
        threading.Event().wait(WHILE)
    case.same("early stop", Stage.BARRIER, at_the_end, [len(case.devices)], "taps that had run when the stop returned")
