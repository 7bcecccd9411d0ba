"""Cases of callbacks that count as pure."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case


@case("jit", "pure_callback buffer_callback dlpack_callback", "X2 B4")
def has_no_effect(case: Case) -> None:
    """A callback without a side effect leaves the program without one, so JAX may drop, repeat and move it."""
    effects = jax.make_jaxpr(lambda x: case.call_back(np.asarray, x))(case.operand).effects
    if effects:
        case.wrong("side effect", Stage.TRACE, f"the program has the effects {effects}")


@case("jit", "io_callback", "X3")
def unused_after_a_pure_one(case: Case) -> None:
    """X3: an io_callback whose result nothing uses runs, though a pure callback of the same shapes comes before it."""
    seen: list[float] = []
    like = jax.ShapeDtypeStruct((), np.float32)
    namespace: Any = case.implementation.namespace  # type: ignore[attr-defined]

    def note(operand: Any) -> Any:
        seen.append(float(operand))
        return np.asarray(operand)

    def body(carry: Any, _: Any) -> tuple[Any, None]:
        result = namespace.pure_callback(lambda x: np.asarray(x) + np.float32(1), like, carry)
        case.call_back(note, result, like)
        return result, None

    program = jax.jit(lambda x: jax.lax.scan(body, x, None, length=2)[0])
    case.value("a scan of both", lambda: program(np.float32(1)), np.float32(3))
    case.barrier()
    if sorted(seen) != [2.0, 3.0]:
        case.wrong("lost", Stage.CALLBACK, f"the io_callback saw {seen}, expected 2 and 3")
