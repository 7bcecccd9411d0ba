"""Cases of a forked child beside its parent's queued values."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case

VALUES = 5
PATIENCE = 20.0
CHILD_SECONDS = 10
"""After these a child that hangs is ended."""


@case("jit", "id_tap", "H17")
def forks_beside_a_queue(case: Case) -> None:
    """A child has nothing of its parent's queue: its barrier returns, and the values run in the parent alone."""
    begun, gate = threading.Event(), threading.Event()
    gate.set()
    seen: list[float] = []

    def host(operand: Any) -> Any:
        begun.set()
        gate.wait(PATIENCE)
        seen.append(float(np.asarray(operand)))

    compiled = jax.jit(lambda x: jax.lax.fori_loop(0, VALUES, lambda _, carry: case.apply(host, carry) + 1, x))
    # A first value may take another way into the queue than those after it.
    for queued in ("from the first run", "all", "all"):
        case.gives(np.float32(VALUES), compiled, np.float32(0), what="the program")
        if queued == "all":
            begun.wait(PATIENCE)
            _check_child(case, seen, gate)
        case.barrier()
        case.same("lost", Stage.CALLBACK, seen, [float(number) for number in range(VALUES)], f"of {VALUES} values")
        seen.clear()
        begun.clear()
        gate.clear()


def _check_child(case: Case, seen: list[float], gate: threading.Event) -> None:
    """Fork while the queue has values; the parent's may run when the child has ended."""
    status = _status_of_child(lambda: case.drain() is None and not seen)
    gate.set()
    if status == 0:
        return
    how = {-signal.SIGALRM: "it waits for ever", 1: "it ran a value of its parent's, or its barrier failed"}
    case.wrong("stale value", Stage.BARRIER, f"in a forked child: {how.get(status, f'it ended with {status}')}")


def _status_of_child(run: Callable[[], bool]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        status = 0 if run() else 1
    finally:
        os._exit(status)


@case("pmap shard_map", "call io_callback", "H17", minimum_devices=2, functions="barrier_wait")
def forks_beside_a_program(case: Case) -> None:
    """A program that runs in the parent is not the child's: neither hostcb's barrier nor JAX's waits for it there."""
    release = threading.Event()

    def held(operand: Any) -> Any:
        release.wait(PATIENCE)
        return np.asarray(operand) + np.float32(1)

    result = case.program(held)(case.operand)

    def returns() -> bool:
        case.implementation.barrier()
        jax.effects_barrier()
        return True

    status = _status_of_child(returns)
    release.set()
    case.gives(case.expected, np.asarray, result, what="the program")
    case.same("barrier error", Stage.BARRIER, status, 0, "the child's barriers ended with")
    case.barrier()


@case("jit", "id_tap", "H17", functions="barrier_wait", isolated=True)
def child_taps_again(case: Case) -> None:
    """A program that the parent has run taps in a child as well, and the parent's goes on as before."""
    seen: list[float] = []
    compiled = case.program(lambda operand: seen.append(float(np.asarray(operand))))

    def taps() -> bool:
        seen.clear()
        for number in range(VALUES):
            compiled(np.float32(number))
        case.implementation.barrier()
        return seen == [float(number) for number in range(VALUES)]

    results = [taps(), _status_of_child(taps), taps()]
    case.same("lost", Stage.CALLBACK, results, [True, 0, True], "taps of the parent, status of the child, taps again")
