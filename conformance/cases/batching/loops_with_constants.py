"""Cases of loops under vmap that have constants, arrays in the carry, and a name for the axis of the batch elements.

The predicate may differ between batch elements by way of a constant alone. What is the same for
all of them stays so in the loop.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ..batching.predicates import ELEMENTS, REFUSED_UNDER_PREDICATES, WITHOUT_PREDICATE, calling, check_refused_batch
from ..harness.case import Case, case

AXIS = "batch"
VECTORS = np.stack([ELEMENTS, ELEMENTS + 1], axis=1)
MARK = np.float32(7)
"""A constant of the body."""

OF_ELEMENTS, OF_ALL = np.array([2.0, 5.0, 9.0], np.float32), np.float32(3)


def _run(limits: Any, steps: Any) -> tuple[Any, list[float], int]:
    """The vectors at the end, what the condition sees of them, and how often the body runs."""
    numbers, vectors, rounds = np.zeros_like(ELEMENTS), VECTORS, 0
    seen = [*vectors.ravel().tolist()]
    while (going := numbers < limits).any():
        numbers = np.where(going, numbers + steps, numbers)
        vectors = np.where(going[:, None], vectors * 2, vectors)
        seen += vectors.ravel().tolist()
        rounds += 1
    return vectors, seen, rounds


@case("jit", f"{WITHOUT_PREDICATE} {REFUSED_UNDER_PREDICATES}", "H4 H7 H8 X3 X4 B4")
def predicate_through_constants(case: Case) -> None:
    """The predicate differs by a constant of the condition, or of the body, or by the element's number alone."""
    for label, limit, step, numbered in (
        ("a limit of each batch element", ELEMENTS, OF_ALL, False),
        ("a step of each batch element", MARK, OF_ELEMENTS, False),
        ("steps by the number of the batch element", MARK, OF_ALL, True),
    ):
        seen: list[float] = []
        marks: list[float] = []
        look, note = calling(case, seen), calling(case, marks)

        def one(vector: Any, limit: Any, step: Any, mark: Any, numbered: bool = numbered) -> Any:
            def condition(carry: Any) -> Any:
                number, vector = carry
                look(vector)  # noqa: B023 - the loop is traced in this round
                return number < limit

            def body(carry: Any) -> Any:
                number, vector = carry
                note(mark)  # noqa: B023
                return number + step + (jax.lax.axis_index(AXIS) if numbered else 0), vector * 2

            return jax.lax.while_loop(condition, body, (jnp.float32(0), vector))[1]

        axes = (0, *(0 if np.ndim(each) else None for each in (limit, step)), None)

        def batch(vectors: Any, one: Any = one, axes: Any = axes, limit: Any = limit, step: Any = step) -> Any:
            return jax.vmap(one, in_axes=axes, axis_name=AXIS)(vectors, limit, step, jnp.float32(MARK))

        if case.callback.refusals.batched_predicate or case.callback.refusals.vmap:
            check_refused_batch(case, label, batch, VECTORS, [])
            continue
        wanted, seen_by_condition, rounds = _run(limit, step + (np.arange(len(ELEMENTS)) if numbered else 0))
        case.gives(wanted, jax.jit(batch), VECTORS, what=label)
        case.barrier()
        if case.callback.ordered:
            case.same("wrong operand", Stage.CALLBACK, seen, seen_by_condition, f"{label}: the condition saw")
        case.same("wrong operand", Stage.CALLBACK, marks, [float(MARK)] * rounds, f"{label}: the body saw")
