"""Every element type: alone, beside others, in batches, at each run, over a mesh, at odd lengths, and bit for bit.

The last byte of a packed array of an odd length is not full. On a mesh a result of one device's callback reaches the
others by a collective, and arithmetic of the collective could change it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...oracle.verdicts import Stage
from ...spec.callbacks import VMAP_METHODS
from ..harness.case import Case, case
from ..harness.registry import EVERY_KIND, OF_ARRAYS, ONE_OF_EACH, WITH_RESULTS

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


@case("jit", OF_ARRAYS, "H1 H3 X2 X3 X4")
@case("jit", "dlpack_callback dlpack_callback_in_place", "D1")
def dtypes(case: Case) -> None:
    """Operands and results of each type arrive with their values.

    Types of less than a byte, which DLPack has not, come before and after leaves of other types, too.
    """
    operands = {
        name: np.array(numbers).astype(jnp.dtype(name)) for name, numbers in NUMBERS.items() if hasattr(jnp, name)
    }
    small = {name: operands.pop(name) for name in SMALL}
    case.together(operands, lambda parts: _arrive(case, parts))
    if case.callback.function != "dlpack_callback":
        # Callbacks of one program may run at once, and JAX before 0.12 hangs where all of the runtime's threads wait
        # and one reads such a type: docs/jax-bugs/pmap-small-operand.md.
        for name, values in small.items():
            case.together({name: values}, lambda parts: _arrive(case, parts))
        floats = np.arange(3, dtype=np.float32)
        beside = {name: [floats, np.asarray([0, 1, 1]).astype(each.dtype)] * 2 for name, each in small.items()}
        case.together(beside, lambda parts: _arrive(case, {"all": parts}))


def _arrive(case: Case, operands: Mapping[str, Any]) -> None:
    """A program calls back with each of these operands."""
    hosts = {name: case.host(name=name) for name in operands}
    program = case.compile(lambda given: {name: case.apply(hosts[name], each) for name, each in given.items()})
    case.gives(operands, program, operands)
    for name, operand in operands.items():
        case.saw(hosts[name], [operand])


@case("jit", "call pure_callback", "H8 X2")
def small_types_in_batches(case: Case) -> None:
    """Under vmap, by each method, operands and results of less than a byte keep type and values, beside others."""
    floats = np.arange(3, dtype=np.float32)
    small = {name: np.asarray([0, 1, 1]).astype(jnp.dtype(name)) for name in SMALL[:3]}

    def check(small: Mapping[str, Any], method: str) -> None:
        host = case.host(lambda given: [np.asarray(given[0]) * 2, jax.tree.map(np.asarray, given[1])])

        def element(*given: Any) -> Any:
            like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((), leaf.dtype), [*given])
            if case.callback.function == "pure_callback":
                return case.library.pure_callback(lambda *given: host(given), like, *given, vmap_method=method)
            return case.implementation.call(host, [*given], like, vmap_method=method)

        case.gives([floats * 2, small], jax.jit(jax.vmap(element)), floats, small)
        case.barrier()
        given = {leaf.dtype.name for event in case.history(host).events for leaf in event.leaves}
        case.same("result", Stage.CALLBACK, given, {"float32", *small}, "the types of operands")

    for method in filter(None, VMAP_METHODS):
        with case.part(f"by {method}"):
            case.together(small, functools.partial(check, method=method))


@case("jit", "id_tap call debug_callback", "H1 H24 X4")
@case("pjit", "debug_callback_partitioned", "X4", minimum_devices=2)
def small_types_at_each_run(case: Case) -> None:
    """Operands of less than a byte arrive at each of three runs, whole, and as parts on each device."""
    # Two devices: with as many as threads JAX before 0.12 hangs (docs/jax-bugs/pmap-small-operand.md).
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
    """Results of less than a byte have their values over a mesh, before and after others."""
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
                like = jax.ShapeDtypeStruct(value.shape, value.dtype)
                result = case.compile(lambda x, h=host, like=like: case.apply(h, x, like))(result)
            case.gives(np.full(case.operand.shape, number, value.dtype), np.asarray, result)
            case.saw(keep, [value])


def _x64() -> AbstractContextManager[Any]:
    """The public name of the setting's context is another one in older releases."""
    enable: Any = getattr(jax if hasattr(jax, "enable_x64") else jax.experimental, "enable_x64")  # noqa: B009
    return enable(True)


LENGTHS = (1, 3, 5, 7)
PACKED = ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")
PACKED_ON_A_MESH = ("int2", "uint4")
REFUSING = ("buffer_callback", "dlpack_callback")
"""Functions of device memory may refuse these types: no protocol of buffers has them."""


@case("jit", f"{EVERY_KIND} dlpack_callback", also="B2")
@case("pjit", ONE_OF_EACH)
@case("shard_map", "call io_callback debug_callback buffer_callback", also="B2")
def odd_lengths(case: Case) -> None:
    """Operands and results of odd lengths in a tree arrive: whole ones, and parts on several devices."""
    # Two devices: JAX 0.10.2 hangs where all of the runtime's threads wait and a callback reads such a type.
    case = case.over(case.devices[:2])
    rows = 1 if case.layout == "jit" else len(case.devices)
    # Older releases have fewer types.
    operands = {}
    for name in PACKED if case.layout == "jit" else PACKED_ON_A_MESH:
        if hasattr(jnp, name):
            values = np.asarray(NUMBERS[name], np.float32)
            operands[name] = [np.resize(values, (rows, size)).astype(jnp.dtype(name)) for size in LENGTHS]
    # A refusal names one type.
    by_type = [{name: each} for name, each in operands.items()]
    for parts in by_type if case.callback.function in REFUSING else [operands]:
        case.together(parts, lambda parts: _check(case, parts))


def _check(case: Case, operand: Mapping[str, Any]) -> None:
    host = case.host(lambda given: jax.tree.map(np.asarray, given))
    program = case.program(host)
    errors = (TypeError, NotImplementedError) if case.callback.function in REFUSING else ()
    if (result := case.or_refused(lambda: program(operand), errors, [*operand])) is not None:
        case.gives(operand, lambda: result)
        case.saw_parts(host, operand)


INEXACT = ("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "complex64")

EXACT_NUMBERS = (-0.0, 0.0, 1.5, -448.0)
"""All of these types have them, but for float4_e2m1fn, which has the nearest ones."""


def _values(name: str, *further: float) -> Any:
    dtype = np.dtype(jnp.dtype(name))
    real = np.dtype(f"float{dtype.itemsize * 4}") if dtype.kind == "c" else dtype
    least = np.ones(1, f"uint{real.itemsize * 8}").view(real)
    numbers = np.concatenate([np.array((*EXACT_NUMBERS, *further), np.float32).astype(real), least, -least])
    if dtype.kind == "c":
        numbers = np.stack([numbers, numbers[::-1]], axis=-1).reshape(-1).view(dtype)
    # A row for each device.
    return np.stack([numbers, numbers[::-1]])


@case("pjit", WITH_RESULTS, also="H10", minimum_devices=2)
def exact_results(case: Case) -> None:
    """The function gets the bits of the parts of its operand, and each device has those that the function returned.

    XLA spreads a result over a mesh by adding zeros to it.
    """
    # Two devices: JAX 0.10.2 hangs where all of the runtime's threads wait and a callback reads a float4_e2m1fn.
    case = case.over(case.devices[:2])
    whole = NamedSharding(case.mesh, PartitionSpec())
    # Older releases have fewer types.
    values = {name: _values(name, np.nan) for name in INEXACT if hasattr(jnp, name)}

    def check(values: Mapping[str, Any]) -> None:
        host = case.host(returns=[values])
        program = jax.jit(lambda x: case.apply(host, x, values), in_shardings=case.split, out_shardings=whole)
        # Without NaN: XLA may join parts in a wider type, and that changes the bits of a NaN.
        operand = {name: _values(name) for name in values}
        results = program(operand)
        for name, expected in values.items():
            for shard in results[name].addressable_shards:
                case.gives(expected, np.asarray, shard.data, what=str(shard.device))
        case.saw(host, [operand])

    case.together(values, check)
