"""Every element type: alone, beside others, in batches, at each run, and over a mesh."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.registry import OF_ARRAYS

NUMBERS: dict[str, tuple[complex, ...]] = {
    "bool": (0, 1),
    "int2": tuple(range(-2, 2)),
    "uint2": tuple(range(4)),
    "int4": tuple(range(-8, 8)),
    "uint4": tuple(range(16)),
    "int8": (-128, -1, 127),
    "uint8": (0, 128, 255),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "float4_e2m1fn": (-6, -4, -3, -2, -1.5, -1, -0.5, -0.0, 0, 0.5, 1, 1.5, 2, 3, 4, 6),
    "float8_e4m3fn": (-448, -1.5, -(2**-9), -0.0, 2**-9, 448),
    "float8_e4m3fnuz": (-240, 0, 240),
    "float8_e4m3b11fnuz": (-30, 0, 30),
    "float8_e5m2": (-57344, -1.5, -(2**-16), -0.0, 2**-16, 57344),
    "float8_e5m2fnuz": (-57344, 0, 57344),
    "float16": (-65504, -0.0, 65504),
    "bfloat16": (-(2.0**127), -0.0, 2.0**127),
    "float32": (-(2.0**127), -0.0, 1 + 2**-23),
    "complex64": (1.5 - 2.5j, -0.0),
}
"""The types of every platform without 64 bits: all numbers of a small one, or some that no narrower type holds."""

# Older releases of JAX have fewer types.
SMALL = [name for name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn") if hasattr(jnp, name)]
"""Types of less than a byte."""

WIDE: dict[str, complex] = {
    "int64": -(2**62) - 1,
    "uint64": 2**63 + 1,
    "float64": 1 + 2**-40,
    "complex128": complex(1 + 2**-40, -2 - 2**-39),
}
"""A number of each type that no type of 32 bits, or of 32 bits for each part, has."""

METHODS = "sequential", "sequential_unrolled", "expand_dims", "broadcast_all"


@case("jit", OF_ARRAYS, "H1 H3 X2 X3 X4")
@case("jit", "dlpack_callback dlpack_callback_in_place", "D1")
def dtypes(case: Case) -> None:
    """Each type alone; those of less than a byte, which DLPack has not, also before and after leaves of other types."""
    floats = np.arange(3, dtype=np.float32)
    of_arrays = case.callback.function != "dlpack_callback"
    for name, numbers in NUMBERS.items():
        if hasattr(jnp, name) and (of_arrays or name not in SMALL):
            arrives(case, name, np.array(numbers).astype(jnp.dtype(name)))
    for name in SMALL if of_arrays else ():
        small = np.asarray([0, 1, 1]).astype(jnp.dtype(name))
        for tree in ({"a": floats, "b": small}, {"a": small, "b": floats, "c": small}):
            arrives(case, name, tree)


def arrives(case: Case, name: str, operand: Any) -> None:
    with case.part(name):
        host = case.host()
        for result in case.runs(lambda x: case.apply(host, x), operand, times=1):
            case.gave(result, operand)
            case.saw(host, [operand])


@case("jit", "call pure_callback", "H8 X2")
def small_types_in_batches(case: Case) -> None:
    """Under vmap, by each method, operands and results of less than a byte beside others."""
    floats = np.arange(3, dtype=np.float32)
    for name in SMALL[:3]:
        small = np.asarray([0, 1, 1]).astype(jnp.dtype(name))
        for method in METHODS:
            host = case.host(lambda both: (np.asarray(both[0]) * 2, np.asarray(both[1])))

            def element(x: Any, n: Any, host: Any = host, method: str = method) -> Any:
                like = jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct((), n.dtype)
                if case.callback.function == "pure_callback":
                    return case.library.pure_callback(lambda *both: host(both), like, x, n, vmap_method=method)
                return case.implementation.call(host, (x, n), like, vmap_method=method)

            with case.part(f"{name} by {method}"):
                case.gives((floats * 2, small), jax.jit(jax.vmap(element)), floats, small)
                case.barrier()
                given = {leaf.dtype.name for event in case.history(host).events for leaf in event.leaves}
                case.same("result", Stage.CALLBACK, given, {"float32", name}, "the types of operands")


@case("jit", "id_tap call debug_callback", "H1 H24 X4")
@case("pjit", "debug_callback_partitioned", "X4", minimum_devices=2)
def small_types_at_each_run(case: Case) -> None:
    """Alone at each of three runs, and as parts on each device."""
    # Two devices: JAX 0.10.2 hangs where all of the runtime's threads wait and a callback reads such a type.
    case = case.over(case.devices[: 2 if case.layout == "pjit" else 1])
    parts = len(case.devices) if case.layout == "pjit" else 1
    for name in SMALL:
        host = case.host(lambda _: np.float32(1))

        def program(x: Any, host: Any = host, name: str = name) -> Any:
            case.apply(host, x.astype(jnp.dtype(name)), np.float32(1))
            return x

        part = np.ones(np.divide(case.operand.shape, (parts, 1)[-case.operand.ndim :]).astype(int), jnp.dtype(name))
        with case.part(name):
            for _ in case.runs(program, np.ones_like(case.operand), times=3):
                case.saw(host, [part] * parts)


@case("pjit", "call pure_callback io_callback", "H3 X2 X3", minimum_devices=2)
def small_results_beside_others(case: Case) -> None:
    """Results over a mesh with elements of less than a byte, before and after others."""
    small = [np.asarray([0, 1, 1]).astype(jnp.dtype(name)) for name in SMALL]
    others: list[Any] = [np.int32(-7), np.complex64(1 - 2j), np.float32(-0.0)]
    operand = jax.device_put(case.operand, case.split)
    for results in ((*small, *others), (*others, *small)):
        host = case.host(returns=[results])
        case.gives(results, jax.jit(lambda x, h=host, r=results: case.apply(h, x, r)), operand)


# In jit over a mesh JAX's own callbacks would hang: docs/jax-bugs/x64-of-one-thread.md.
@case("pjit", "call", "H3 H10")
# JAX's own callbacks fail here, and JAX raises their failures again at later barriers: in a process of their own.
@case("shard_map pmap", "call pure_callback io_callback", "H3 H10 X2 X3", isolated=True)
@case("jit", "call pure_callback io_callback", "H3 H10 X2 X3")
def all_64_bits(case: Case) -> None:
    """Numbers of 64 bits come from one callback and reach the next, on one device and over a mesh, with all bits."""
    with _x64():
        for name, number in WIDE.items():
            value = np.full(case.callback_shape, number, np.dtype(name))
            make, keep = case.host(returns=[value]), case.host()
            result: Any = case.operand
            for host in (make, keep):
                program = case.compile(lambda x, h=host, v=value: case.apply(h, x, _like(x, v)))
                result = program(result)
            case.gives(np.full(case.operand.shape, number, value.dtype), np.asarray, result)
            case.saw(keep, [value])


def _like(x: Any, value: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, value.dtype)


def _x64() -> AbstractContextManager[Any]:
    """The public name of the setting's context is another one in older releases."""
    enable: Any = getattr(jax if hasattr(jax, "enable_x64") else jax.experimental, "enable_x64")  # noqa: B009
    context: AbstractContextManager[Any] = enable(True)
    return context
