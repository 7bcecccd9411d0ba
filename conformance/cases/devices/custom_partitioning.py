"""Callbacks in functions under custom_partitioning, which the compiler partitions apart."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.programs import Function


def partitioned(function: Function, part: Function) -> Function:
    """`function` under custom_partitioning, which runs `part` on each device."""
    held = custom_partitioning(lambda x: function(x))
    held.def_partition(
        infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
        partition=lambda mesh, operands, result: (mesh, part, operands[0].sharding, (operands[0].sharding,)),
        sharding_rule="i -> i",
    )
    return held


@case(
    "shard_map",
    "id_tap call pure_callback io_callback debug_callback",
    "H4 H9 X2 X3 X4",
    minimum_devices=2,
    needs="shard_map",
)
def held_in_shard_map(case: Case) -> None:
    """In a shard_map over all axes nothing is left to partition: each device calls back from the held function."""
    count = len(case.devices)
    operand = np.arange(count, dtype=np.float32)
    for shape in ((count,), (count, 1), *([(count // 2, 2)] if count % 2 == 0 else [])):
        host = case.host(add_one)

        def calls(x: Any, host: Any = host) -> Any:
            return case.apply(host, x)

        names = ("x", "y")[: len(shape)]
        mesh, rows = Mesh(np.asarray(case.devices).reshape(shape), names), PartitionSpec(names)
        held = partitioned(calls, calls)
        program = jax.jit(jax.shard_map(held, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
        given = jax.device_put(operand, NamedSharding(mesh, rows))
        case.gives(case.expected_of(operand), program, given)
        case.saw_parts(host, operand)
