"""Fault cells of callbacks that count as pure."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted


@planted("jit", "pure_callback buffer_callback dlpack_callback", "X2 B4")
def has_no_effect(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback without a side effect leaves the program without one, so JAX may drop, repeat and move it."""
    effects = jax.make_jaxpr(lambda x: bench.apply(callback, np.asarray, x))(bench.operand).effects
    return [Anomaly("side effect", Stage.TRACE, f"the program has the effects {effects}")] if effects else []


@planted("jit", "io_callback", "X3")
def unused_after_a_pure_one(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X3: an io_callback whose result nothing uses runs, though a pure callback of the same shapes comes before it."""
    seen: list[float] = []
    like = jax.ShapeDtypeStruct((), np.float32)
    namespace: Any = bench.implementation.namespace  # type: ignore[attr-defined]

    def note(operand: Any) -> Any:
        seen.append(float(operand))
        return np.asarray(operand)

    def body(carry: Any, _: Any) -> tuple[Any, None]:
        result = namespace.pure_callback(lambda x: np.asarray(x) + np.float32(1), like, carry)
        bench.apply(callback, note, result, like)
        return result, None

    program = jax.jit(lambda x: jax.lax.scan(body, x, None, length=2)[0])
    anomalies = check_value("a scan of both", lambda: program(np.float32(1)), np.float32(3))
    anomalies += check_quiet_barrier(bench, "after a pure callback and one with an effect")
    if sorted(seen) != [2.0, 3.0]:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"the io_callback saw {seen}, expected 2 and 3"))
    return anomalies
