"""Cases of results that reach the program bit for bit: signs of zero, denormals, NaN, both parts.

On a mesh a result of one device's callback reaches the others by a collective, and arithmetic of the collective could
change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..harness.case import Case, case
from ..harness.registry import WITH_RESULTS

INEXACT = ("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "complex64")

NUMBERS = (-0.0, 0.0, 1.5, -448.0, float("nan"))
"""All of these types have them, but for float4_e2m1fn, which has the nearest ones."""


def _values(name: str) -> Any:
    dtype = np.dtype(jnp.dtype(name))
    real = np.dtype(f"float{dtype.itemsize * 4}") if dtype.kind == "c" else dtype
    least = np.ones(1, f"uint{real.itemsize * 8}").view(real)
    numbers = np.concatenate([np.array(NUMBERS, np.float32).astype(real), least, -least])
    if dtype.kind != "c":
        return numbers
    return np.stack([numbers, numbers[::-1]], axis=-1).reshape(-1).view(dtype)


@case("pjit", WITH_RESULTS, also="H10", minimum_devices=2)
def exact_results(case: Case) -> None:
    """Each device of a mesh has the bits that the function returned: XLA spreads a result by adding zeros to it."""
    # Two devices: JAX 0.10.2 hangs where all of the runtime's threads wait and a callback reads a float4_e2m1fn.
    case = case.over(case.devices[:2])
    whole = NamedSharding(case.mesh, PartitionSpec())
    # Older releases have fewer types.
    values = {name: _values(name) for name in INEXACT if hasattr(jnp, name)}

    def check(values: Mapping[str, Any]) -> None:
        program = jax.jit(
            lambda x: case.apply(lambda _: values, x, values), in_shardings=case.split, out_shardings=whole
        )
        results = program(np.full(2, -0.0, np.float32))
        for name, expected in values.items():
            for shard in results[name].addressable_shards:
                case.gives(expected, np.asarray, shard.data, what=str(shard.device))

    case.together(values, check)
