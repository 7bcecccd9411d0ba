"""Cases of types narrower than a byte at odd lengths: the last byte of a packed array is not full."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.registry import EVERY_KIND, ONE_OF_EACH, WITH_SIDE_EFFECT
from ..values.element_types import NUMBERS

LENGTHS = (1, 3, 5, 7)
PACKED = ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")
PACKED_ON_A_MESH = ("int2", "uint4")
REFUSING = ("buffer_callback", "dlpack_callback")
"""Functions of device memory may refuse these types: no protocol of buffers has them."""


@case("jit", f"{EVERY_KIND} debug_callback_ordered {WITH_SIDE_EFFECT}", also="B2")
@case("pjit", ONE_OF_EACH)
@case("shard_map", "call io_callback debug_callback buffer_callback", also="B2")
def odd_lengths(case: Case) -> None:
    """Operands and results of odd lengths in a tree: whole ones, and parts on several devices."""
    # Two devices: JAX 0.10.2 hangs where all of the runtime's threads wait and a callback reads such a type.
    case.use(case.devices[:2])
    packed = PACKED if case.layout == "jit" else PACKED_ON_A_MESH
    # Older releases have fewer types.
    for dtype in (getattr(jnp, name) for name in packed if hasattr(jnp, name)):
        values = NUMBERS[np.dtype(dtype).name]
        rows = 1 if case.layout == "jit" else len(case.devices)
        operands = {
            length: np.resize(np.asarray(values, np.float32), (rows, length)).astype(dtype) for length in LENGTHS
        }
        _check(case, operands, np.dtype(dtype).name)
    case.barrier()


def _check(case: Case, operands: dict[int, Any], dtype: str) -> None:
    seen: list[dict[int, Any]] = []

    def host(operand: Any) -> Any:
        seen.append({length: np.asarray(value) for length, value in operand.items()})
        return seen[-1]

    def computation(x: Any) -> Any:
        wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), x)
        return case.call_back(host, x, wanted)

    compiled = case.compile(computation)
    try:
        results = jax.block_until_ready(compiled(operands))
        case.implementation.barrier()
    except Exception as error:
        case.drain()
        if (
            case.callback.function in REFUSING
            and isinstance(error, TypeError | NotImplementedError)
            and dtype in str(error)
        ):
            return
        case.wrong("error", stage_of(error), f"with {dtype}: {summary(error)}")
        return
    if len(seen) < case.copies:
        case.wrong("lost", Stage.CALLBACK, f"{len(seen)} of {case.copies} callbacks ran with {dtype}")
        return
    for length, operand in operands.items():
        wanted = sorted(map(_numbers, operand)) if case.copies > 1 else [_numbers(operand)]
        found = sorted({_numbers(each[length]) for each in seen})
        if found != sorted({*wanted}) or any(each[length].dtype != operand.dtype for each in seen):
            witness = f"{length} elements of {dtype}: the callback saw {found}, expected {wanted}"
            case.wrong("wrong operand", Stage.CALLBACK, witness)
        result = np.asarray(results[length])
        if result.dtype != operand.dtype or _numbers(result) != _numbers(operand):
            witness = f"{length} elements of {dtype}: the result is {_numbers(result)}, expected {_numbers(operand)}"
            case.wrong("result", Stage.RESULT, witness)


def _numbers(array: Any) -> tuple[float, ...]:
    # The unused bits of a byte may have any value; a conversion ignores them.
    return tuple(np.asarray(array).astype(np.float32).ravel().tolist())
