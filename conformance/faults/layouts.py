"""Fault cells of several results in one callback, with the memory layouts that NumPy's functions return."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..spec.callbacks import Callback
from .bench import Bench
from .checks import check_quiet_barrier, check_value
from .fault import planted

ROUNDS = 2


@planted("jit", "call pure_callback io_callback dlpack_callback", "H3 X2 X3 D1")
def strided_results_at_once(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Results that are not row-major, beside one that is."""
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    results = {
        "plain": matrix,
        "transposed": np.ascontiguousarray(matrix.T).T,
        "backwards": np.ascontiguousarray(matrix[::-1, ::-1])[::-1, ::-1],
        "every other": np.repeat(matrix, 2, axis=1)[:, ::2],
        "broadcast": np.broadcast_to(matrix[0], (3, 4)),
    }
    like = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in results.items()}
    compiled: Any = jax.jit(lambda x: bench.apply(callback, lambda _: results, x, like))
    anomalies: list[Anomaly] = []
    for _ in range(ROUNDS):
        found = compiled(bench.operand)
        for name, each in results.items():
            anomalies += check_value(f"a result {name}", lambda f=found[name]: f, np.array(each))  # type: ignore[misc]
    return anomalies[:3] + check_quiet_barrier(bench, "after several results of other layouts")
