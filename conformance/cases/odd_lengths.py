"""Fault cells of types narrower than a byte at odd lengths: the last byte of a packed array is not full."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, error_of
from .harness.registry import EVERY_KIND, ONE_OF_EACH, WITH_SIDE_EFFECT, planted
from .values.element_types import NARROW

LENGTHS = (1, 3, 5, 7)
PACKED = ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")
PACKED_ON_A_MESH = ("int2", "uint4")
REFUSING = ("buffer_callback", "dlpack_callback")
"""Functions of device memory may refuse these types: no protocol of buffers has them."""


@planted("jit", f"{EVERY_KIND} debug_callback_ordered {WITH_SIDE_EFFECT}", also="B2")
@planted("pjit", ONE_OF_EACH)
@planted("shard_map", "call io_callback debug_callback buffer_callback", also="B2")
def odd_lengths(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Operands and results of odd lengths in a tree: whole ones, and parts on several devices."""
    # Two devices: JAX 0.10.2 hangs where all of the runtime's threads wait and a callback reads such a type.
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    anomalies: list[Anomaly] = []
    packed = PACKED if bench.layout == "jit" else PACKED_ON_A_MESH
    # Older releases have fewer types.
    for dtype in (getattr(jnp, name) for name in packed if hasattr(jnp, name)):
        values = NARROW[np.dtype(dtype).name]
        rows = 1 if bench.layout == "jit" else len(bench.devices)
        operands = {
            length: np.resize(np.asarray(values, np.float32), (rows, length)).astype(dtype) for length in LENGTHS
        }
        anomalies += _check(bench, callback, operands, np.dtype(dtype).name)
    return anomalies + check_quiet_barrier(bench, "after types narrower than a byte")


def _check(bench: Bench, callback: Callback, operands: dict[int, Any], dtype: str) -> list[Anomaly]:
    seen: list[dict[int, Any]] = []

    def host(operand: Any) -> Any:
        seen.append({length: np.asarray(value) for length, value in operand.items()})
        return seen[-1]

    def computation(x: Any) -> Any:
        wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), x)
        return bench.apply(callback, host, x, wanted)

    compiled = bench.compile(computation)
    try:
        results = jax.block_until_ready(compiled(operands))
        bench.implementation.barrier()
    except Exception as error:
        error_of(bench.implementation.barrier)
        if callback.function in REFUSING and isinstance(error, TypeError | NotImplementedError) and dtype in str(error):
            return []
        return [Anomaly("error", stage_of(error), f"with {dtype}: {summary(error)}")]
    if len(seen) < bench.callbacks_per_run:
        return [Anomaly("lost", Stage.CALLBACK, f"{len(seen)} of {bench.callbacks_per_run} callbacks ran with {dtype}")]
    anomalies = []
    for length, operand in operands.items():
        wanted = sorted(map(_numbers, operand)) if bench.callbacks_per_run > 1 else [_numbers(operand)]
        found = sorted({_numbers(each[length]) for each in seen})
        if found != sorted({*wanted}) or any(each[length].dtype != operand.dtype for each in seen):
            witness = f"{length} elements of {dtype}: the callback saw {found}, expected {wanted}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
        result = np.asarray(results[length])
        if result.dtype != operand.dtype or _numbers(result) != _numbers(operand):
            witness = f"{length} elements of {dtype}: the result is {_numbers(result)}, expected {_numbers(operand)}"
            anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies


def _numbers(array: Any) -> tuple[float, ...]:
    # The unused bits of a byte may have any value; a conversion ignores them.
    return tuple(np.asarray(array).astype(np.float32).ravel().tolist())
