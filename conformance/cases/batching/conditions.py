"""Conditions of loops under vmap."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case


@case("jit", "debug_callback", "X4", functions="barrier_wait")
def condition_of_elements_that_differ(case: Case) -> None:
    """A debug callback in the condition of a while_loop whose elements end at different steps: it runs, and all end."""
    seen: list[int] = []

    def one(count: Any) -> Any:
        def condition(carry: Any) -> Any:
            case.library.debug.callback(lambda step: seen.append(int(step)), carry[0])
            return carry[0] < count

        return jax.lax.while_loop(condition, lambda carry: (carry[0] + 1, carry[1] * 2), (0, np.float32(1)))

    counts = np.array([1, 3], np.int32)
    steps, powers = jax.jit(jax.vmap(one))(counts)
    case.barrier()
    found = np.asarray(steps).tolist(), np.asarray(powers).tolist()
    case.same("result", Stage.RESULT, found, ([1, 3], [2.0, 8.0]), "the batch elements ended with")
    case.check({*seen} >= {*range(4)}, "lost", Stage.CALLBACK, f"the condition of steps 0 to 3 called back for {seen}")
