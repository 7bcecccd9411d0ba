"""One device of a program is held up: what waits for it, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import BEGINS_WITHIN, Case, case
from .covers import EARLY_SECONDS

RUNS = 2
STALL_SECONDS = 0.1


@case("pmap shard_map", "call io_callback_ordered", "H5 H13", minimum_devices=2, functions="barrier_wait")
def goes_on_beside_a_slow_device(case: Case) -> None:
    """H5: what comes on a device after a program waits for that device alone, and JAX's barrier for its own thread."""
    case = case.over(case.devices[:2])
    release = threading.Event()
    late: list[str] = []
    way = ""

    def held(operand: Any) -> Any:
        # The program of another thread is held up on both devices.
        slow = way.startswith("JAX") or np.ravel(operand)[0] > 0
        if slow and not release.wait(BEGINS_WITHIN):
            late.append(way)
        return np.asarray(operand)

    program = case.program(held)
    first = jax.device_put(np.float32(0), case.devices[0])
    tap = case.implementation.tap
    releasing = jax.jit(lambda x: tap(lambda *_: release.set(), x))
    beside = jax.jit(lambda x: tap(lambda *_: None, x))

    def then(run: Callable[[Any], Any]) -> list[Any]:
        return [program(case.operand), run(first)]

    def in_another_thread() -> list[Any]:
        results = [beside(first)]
        thread = threading.Thread(target=lambda: results.append(program(case.operand)))
        thread.start()
        thread.join()
        # What this thread has started is `beside` alone.
        jax.effects_barrier()
        release.set()
        return results

    for way, run in (
        ("a program", lambda: then(releasing)),
        ("a tap outside jit", lambda: then(lambda x: tap(lambda *_: release.set(), x))),
        ("JAX's barrier of another thread", in_another_thread),
    ):
        for each in range(RUNS + 1):
            # Nothing is held up in the first run, which compiles.
            (release.clear if each else release.set)()
            jax.block_until_ready(run())
            case.barrier()
            if late:
                case.wrong("stuck", Stage.DISPATCH, f"{way} waited for another device than its own")
                return


class _Beside:
    """A program on two devices that a tap starts, and that another thread starts too.

    A pure callback, for which each device waits, comes before the callback under test.
    """

    def __init__(self, case: Case, length: int) -> None:
        self.case, self.length = case, length
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.stalls = threading.Event()
        self.host = case.host(self.answer)
        self.operands = [jax.device_put(np.full((2, length), number, np.float32), case.split) for number in range(2)]
        self.program = case.compile(lambda x: case.apply(self.host, case.library.pure_callback(self.slow, x, x)))
        jax.block_until_ready(self.program(self.operands[0]))
        case.barrier()
        self.begun, self.go, self.nested = (threading.Event() for _ in range(3))
        self.go.set()

    def slow(self, operand: Any) -> Any:
        self.goes_on.wait(BEGINS_WITHIN)
        return np.asarray(operand)

    def answer(self, operand: Any) -> Any:
        if self.stalls.is_set():
            # Long enough for a barrier that does not wait for it, and no more than that.
            threading.Event().wait(STALL_SECONDS)
        return np.asarray(operand)

    def outer(self, operand: Any, transforms: Any) -> None:
        self.begun.set()
        self.go.wait(BEGINS_WITHIN)
        result = self.program(self.operands[1])
        self.nested.set()
        jax.block_until_ready(result)

    def forget(self) -> None:
        self.case.forget()
        for event in (self.begun, self.go, self.nested, self.goes_on):
            event.clear()

    def seen(self) -> list[float]:
        return sorted(float(event.leaves[0].ravel()[0]) for event in self.case.events)


@case(
    "shard_map",
    "id_tap io_callback_ordered",
    "H5 H12",
    minimum_devices=2,
    functions="barrier_wait",
    isolated=True,
    deadline=60.0,
)
def started_in_a_queue_and_beside(case: Case) -> None:
    """H12: a queued function waits for a program that another thread runs, too: neither waits for the other's queue.

    The values are small or large, and the queue has no room for them. And the barrier waits for all of them.
    """
    case = case.over(case.devices[:2])
    for length in (200, 40_000):
        both = _Beside(case, length)
        value = np.zeros(length // 2, np.float32)

        def run(both: _Beside = both, value: Any = value) -> None:
            case.implementation.tap(both.outer, value)
            case.barrier()
            both.forget()
            case.implementation.tap(both.outer, value)
            both.begun.wait(BEGINS_WITHIN)
            result = both.program(both.operands[0])
            both.go.set()
            both.nested.wait(BEGINS_WITHIN)
            both.goes_on.set()
            jax.block_until_ready(result)
            case.barrier()

        # The queue has room for the value of `outer`, and for none beside it.
        with case.implementation.queue_of(length * 5 // 2), case.in_thread(run):
            pass
        case.same("lost", Stage.CALLBACK, both.seen(), [0.0, 0.0, 1.0, 1.0], f"values of {4 * length} bytes")


@case("shard_map", "id_tap", "H13", minimum_devices=2, functions="barrier_wait", isolated=True, deadline=60.0)
def barrier_covers_nested_and_queued(case: Case) -> None:
    """H13: the barrier waits for the queued taps of a program that a callback has started before another thread did."""
    case = case.over(case.devices[:2])
    both = _Beside(case, 1)

    def beside() -> Any:
        both.nested.wait(BEGINS_WITHIN)
        result = both.program(both.operands[0])
        both.goes_on.set()
        return result

    case.implementation.tap(both.outer, np.float32(1))
    case.barrier()
    both.stalls.set()
    for _ in range(RUNS):
        both.forget()
        with case.in_thread(beside):
            case.implementation.tap(both.outer, np.float32(1))
            both.begun.wait(BEGINS_WITHIN)
            # One-sided: a barrier that is late finds the program that has been started.
            threading.Timer(EARLY_SECONDS, both.go.set).start()
            case.barrier()
            case.same("early barrier", Stage.BARRIER, both.seen().count(1.0), 2, "taps of the nested program")
        case.barrier()
        case.same("early barrier", Stage.BARRIER, both.seen(), [0.0, 0.0, 1.0, 1.0], "taps of both programs")
