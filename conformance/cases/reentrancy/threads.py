"""Callbacks that wait, programs of several threads, and programs that the runtime runs in threads of its own."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import BEGINS_WITHIN, Case, case
from ..harness.hosts import PLANTED, Held, add_one, fail
from ..harness.registry import EVERY_KIND

ROUNDS = 5
RUNS = 2
SIDE = 100
BRANCHES = 8

PROGRAMS = 64
"""Twice as many as the CPU runtime lets wait on a device; the thread that starts one more waits."""

LARGE = 1 << 20


@case("jit", EVERY_KIND)
@case("pmap", "id_tap call io_callback")
def blocks_until_released(case: Case) -> None:
    """A callback waits for an event outside the program: the process goes on meanwhile, and then the callback ends."""
    held, ended = Held(add_one), threading.Event()
    host = case.host(held)
    program, alone = case.program(host), jax.jit(lambda x: x * 2)
    case.gives(case.operand * 2, alone, case.operand)

    def run() -> None:
        case.gives(case.expected, program, case.operand)
        ended.set()

    with case.in_thread(run):
        case.check(held.entered.wait(BEGINS_WITHIN), "lost", Stage.CALLBACK, "the callback did not begin")
        if case.layout == "jit":
            # XLA:CPU runs only one program over several devices at a time, with or without callbacks.
            case.gives(case.operand * 2, alone, case.operand)
        if case.callback.function == "id_tap":
            in_time = ended.wait(BEGINS_WITHIN / 2)
            case.check(in_time, "waits", Stage.RESULT, "the device waits for the function of a tap")
        held.release.set()
    case.saw_parts(host, case.operand)


@case("jit", EVERY_KIND)
@case("pmap", "id_tap call io_callback_ordered")
def two_threads(case: Case) -> None:
    """Two threads start programs at once: each gets its own results, and its callbacks in its own order."""
    together = threading.Barrier(2)
    # Operands differ between threads, rounds and devices, so that each callback and each result is known.
    operands = [[case.operand + np.float32(500 * thread + 1000 * each) for each in range(ROUNDS)] for thread in (0, 1)]
    hosts = [case.host(add_one) for _ in operands]
    programs = [case.program(host) for host in hosts]

    def run(thread: int) -> None:
        together.wait(BEGINS_WITHIN)
        for operand in operands[thread]:
            case.gives(case.expected_of(operand), programs[thread], operand)

    with case.in_thread(lambda: run(0)), case.in_thread(lambda: run(1)):
        pass
    for host, of_thread in zip(hosts, operands, strict=True):
        case.saw_parts(host, *of_thread)


@case("jit", "pure_callback call", "H15 X2")
def fails_in_a_large_program(case: Case) -> None:
    """A function that fails after runs that did not ends each run with its error, whose cause is the exception.

    It is between operations on values of many sizes, or beside many others.
    """
    answers: Any = np.asarray
    host = case.host(lambda operand: answers(operand))

    def between(x: Any) -> Any:
        return jnp.cos(case.apply(host, jnp.sin(x) * 2)) + 1

    def wide(x: Any) -> Any:
        """The runtime spreads independent operations over threads."""
        sums = []
        for number in range(BRANCHES):
            branch = jax.lax.sort(jnp.linalg.qr(jnp.sin(x @ x + number))[0] @ x)
            branch += jax.lax.fori_loop(0, 3, lambda _, carry: jnp.sort(carry @ x, axis=0), branch)
            sums.append((case.apply(host, branch[0]) if number == 1 else branch).sum())
        return sum(sums)

    small, larger, large = (np.ones((8, elements // 8), np.float32) for elements in (1 << 8, 1 << 12, LARGE))
    square = np.ones((SIDE, SIDE), np.float32)
    for function, operand in ((between, small), (between, larger), (between, large), (wide, square)):
        program = functools.partial(jax.jit(function), operand)
        answers = np.asarray
        for _ in range(RUNS):
            jax.block_until_ready(program())
        answers = fail
        for _ in range(RUNS):
            error = case.raises(program, PLANTED, of=jax.errors.JaxRuntimeError)
            # The error of a program that ran in another thread has no cause.
            causes = ValueError | None if operand is large else ValueError
            case.check(
                isinstance(error and error.__cause__, causes), "poor error", Stage.DISPATCH, f"{error!r} has no cause"
            )
            case.drain()


@case("pmap", "id_tap", "H11 H12", minimum_devices=2)
def starts_programs_below_many(case: Case) -> None:
    """A tap starts programs on a device for which as many programs wait as it takes: there is room for that."""
    case = case.over(case.devices[:2])
    held = Held(lambda operand: float(jnp.float32(1) + jnp.sum(jnp.asarray(operand))))
    host = case.host(held)
    # The call comes after the tap, so the program waits for the tap.
    program = case.compile(lambda x: case.implementation.call(np.asarray, case.apply(host, x), x))
    # The thread that starts the programs may have to wait as well, before there are so many.
    threading.Timer(0.5, held.release.set).start()
    results = [program(case.operand) for _ in range(PROGRAMS)]
    case.gives(case.operand, np.asarray, results[-1])
    case.saw_parts(host, *[case.operand] * PROGRAMS)
