"""Cases of callbacks that count as pure."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.external_callbacks import callback_named
from ..harness.case import Case, case
from ..harness.hosts import add_one


@case("jit", "pure_callback buffer_callback dlpack_callback", "X2 B4", not_of="hostcb")
def has_no_effect(case: Case) -> None:
    """A callback without a side effect leaves the program without one, so JAX may drop, repeat and move it."""
    effects = jax.make_jaxpr(lambda x: case.apply(np.asarray, x))(case.operand).effects
    case.check(not effects, "side effect", Stage.TRACE, f"the program has the effects {effects}")


@case("jit", "io_callback", "X3")
def unused_after_a_pure_one(case: Case) -> None:
    """X3: an io_callback whose result nothing uses runs, though a pure callback of the same shapes comes before it."""
    host = case.host()

    def body(carry: Any, _: Any) -> tuple[Any, None]:
        result = case.apply(add_one, carry, by=callback_named("pure_callback"))
        case.apply(host, result)
        return result, None

    program = jax.jit(lambda x: jax.lax.scan(body, x, None, length=2)[0])
    case.gives(np.float32(3), program, np.float32(1), what="a scan of both")
    case.saw(host, [np.float32(2), np.float32(3)])
