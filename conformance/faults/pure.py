"""Fault cells of callbacks that count as pure."""

from __future__ import annotations

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .fault import planted


@planted("jit", "pure_callback buffer_callback dlpack_callback", "X2 B4")
def has_no_effect(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback without a side effect leaves the program without one, so JAX may drop, repeat and move it."""
    effects = jax.make_jaxpr(lambda x: bench.apply(callback, np.asarray, x))(bench.operand).effects
    return [Anomaly("side effect", Stage.TRACE, f"the program has the effects {effects}")] if effects else []
