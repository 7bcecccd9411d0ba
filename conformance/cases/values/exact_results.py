"""Cases of results that reach the program bit for bit: signs of zero, denormals, NaN, both parts, any strides.

On a mesh a result of one device's callback reaches the others by a collective, and arithmetic of the collective could
change it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
    pairs = np.stack([numbers, numbers[::-1]], axis=-1)
    return pairs.reshape(-1).view(dtype)


@case("pjit", WITH_RESULTS, also="H10", minimum_devices=2)
def exact_results(case: Case) -> None:
    """Each device of a mesh has the bits that the function returned: XLA spreads a result by adding zeros to it."""
    # Two devices: JAX 0.10.2 hangs where all of the runtime's threads wait and a callback reads a float4_e2m1fn.
    mesh = Mesh(case.bench.mesh.devices.flat[:2], "d")
    split, whole = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())
    # Older releases have fewer types.
    for name in (each for each in INEXACT if hasattr(jnp, each)):
        values = _values(name)
        host = case.host(returns=[values])
        program = jax.jit(
            lambda x, h=host, v=values: case.apply(h, x, v),
            in_shardings=split,
            out_shardings=whole,
        )
        with case.part(name):
            for shard in program(np.full(2, -0.0, values.dtype)).addressable_shards:
                case.gives(values, np.asarray, shard.data)


def _forms(name: str) -> dict[str, Any]:
    """The same matrix, as NumPy may have it in memory."""
    matrix = np.arange(6).reshape(2, 3).astype(np.dtype(jnp.dtype(name)))
    return {
        "in Fortran's order": np.asfortranarray(matrix),
        "with negative strides": matrix[::-1, ::-1].copy()[::-1, ::-1],
        "with elements between": np.repeat(matrix, 2, axis=1)[:, ::2],
        "of a masked array without a mask": np.ma.masked_array(matrix, mask=np.zeros(matrix.shape, bool)),
    }


@case("jit pjit", WITH_RESULTS, "H3 H10 X2 X3")
def forms_of_results(case: Case) -> None:
    """A function returns an array of any strides, and its elements are where they belong."""
    for name in ("int32", "float32", "complex64", "int4"):
        for form, array in _forms(name).items():
            wanted = np.array(array)

            def host(_: Any, array: Any = array) -> Any:
                return array

            def function(x: Any, host: Any = host, like: Any = wanted) -> Any:
                return case.call_back(host, x, jax.ShapeDtypeStruct(like.shape, like.dtype))

            program = jax.jit(function, in_shardings=case.bench.split) if case.layout == "pjit" else jax.jit(function)
            case.value(f"{name} {form}", lambda p=program: p(case.operand), wanted)  # type: ignore[misc]
    case.barrier()
