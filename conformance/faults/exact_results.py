"""Fault cells of results that reach all devices of a mesh bit for bit: signs of zero, denormals, NaN and both parts.

A result of one device's callback reaches the others by a collective, and arithmetic of the collective could change it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .checks import check_quiet_barrier, error_of
from .fault import planted

INEXACT = ("float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2")

NUMBERS = (-0.0, 0.0, 1.5, -448.0, float("nan"))
"""All of these types have them."""


def _values(name: str) -> Any:
    dtype = np.dtype(jnp.dtype(name))
    real = np.dtype(f"float{dtype.itemsize * 4}") if dtype.kind == "c" else dtype
    least = np.ones(1, f"uint{real.itemsize * 8}").view(real)
    numbers = np.concatenate([np.array(NUMBERS, np.float32).astype(real), least, -least])
    if dtype.kind != "c":
        return numbers
    pairs = np.stack([numbers, numbers[::-1]], axis=-1)
    return pairs.reshape(-1).view(dtype)


@planted("pjit", "call", "H10", minimum_devices=2)
def exact_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each device of the mesh has the bits that the function returned."""
    anomalies = []
    for name in INEXACT:
        values = _values(name)

        def host(_: Any, values: Any = values) -> Any:
            return values

        like = jax.ShapeDtypeStruct(values.shape, values.dtype)
        program = jax.jit(
            lambda x, host=host, like=like: bench.apply(callback, host, x, like), in_shardings=bench.split
        )
        try:
            result = jax.block_until_ready(program(bench.operand))
        except Exception as error:
            error_of(bench.implementation.barrier)
            anomalies.append(Anomaly("error", stage_of(error), f"a result of {name}: {summary(error)}"))
            continue
        for shard in result.addressable_shards:
            found = np.asarray(shard.data)
            if found.dtype != values.dtype or found.tobytes() != values.tobytes():
                witness = f"{name} on {shard.device}: {found}, expected {values}"
                anomalies.append(Anomaly("result", Stage.RESULT, witness))
                break
    return anomalies + check_quiet_barrier(bench, "after results on a mesh")
