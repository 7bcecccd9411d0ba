"""One device of a program is held up: what waits for it, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import BEGINS_WITHIN, Case, case

RUNS = 2


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
