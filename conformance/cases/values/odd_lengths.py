"""Cases of types narrower than a byte at odd lengths: the last byte of a packed array is not full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
