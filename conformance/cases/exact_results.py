"""Fault cells of results that reach the program bit for bit: signs of zero, denormals, NaN, both parts, any strides.

On a mesh a result of one device's callback reaches the others by a collective, and arithmetic of the collective could
change it.
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
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value, error_of
from .harness.registry import WITH_RESULTS, planted

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


def _forms(name: str) -> dict[str, Any]:
    """The same matrix, as NumPy may have it in memory."""
    matrix = np.arange(6).reshape(2, 3).astype(np.dtype(jnp.dtype(name)))
    return {
        "in Fortran's order": np.asfortranarray(matrix),
        "with negative strides": matrix[::-1, ::-1].copy()[::-1, ::-1],
        "with elements between": np.repeat(matrix, 2, axis=1)[:, ::2],
        "of a masked array without a mask": np.ma.masked_array(matrix, mask=np.zeros(matrix.shape, bool)),
    }


@planted("jit pjit", WITH_RESULTS, "H3 H10 X2 X3")
def forms_of_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function returns an array of any strides, and its elements are where they belong."""
    anomalies = []
    for name in ("int32", "float32", "complex64", "int4"):
        for form, array in _forms(name).items():
            wanted = np.array(array)

            def host(_: Any, array: Any = array) -> Any:
                return array

            def function(x: Any, host: Any = host, like: Any = wanted) -> Any:
                return bench.apply(callback, host, x, jax.ShapeDtypeStruct(like.shape, like.dtype))

            program = jax.jit(function, in_shardings=bench.split) if bench.layout == "pjit" else jax.jit(function)
            anomalies += check_value(f"{name} {form}", lambda p=program: p(bench.operand), wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after results of many forms")
