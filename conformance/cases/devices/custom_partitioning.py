"""Callbacks in functions that the compiler partitions apart, by custom_partitioning."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.checks import error_of
from ..harness.hosts import add_one
from ..harness.programs import Function
from ..harness.registry import EVERY_KIND


def partitioned(function: Function, part: Function) -> Function:
    """`function` under custom_partitioning, which runs `part` on each device."""
    held = custom_partitioning(lambda x: function(x))
    held.def_partition(
        infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
        partition=lambda mesh, operands, result: (mesh, part, operands[0].sharding, (operands[0].sharding,)),
        sharding_rule="i -> i",
    )
    program: Function = held
    return program


# A callback that is not refused there may end the process.
@case(
    "pjit",
    EVERY_KIND,
    "H4 X2 X3 X4 B5 D1",
    minimum_devices=2,
    functions="barrier_wait",
    isolated=True,
    deadline=40.0,
)
def refused_in_parts(case: Case) -> None:
    """On several devices, a callback in a function or in its part is refused with an error, and is not called."""
    host = case.host(np.asarray)

    def calls(x: Any) -> Any:
        return case.apply(host, x)

    def calls_and_drops(x: Any) -> Any:
        case.apply(host, x)
        return x + 1

    def plain(x: Any) -> Any:
        return x + 1

    operand = jax.device_put(np.arange(len(case.devices), dtype=np.float32), case.split)
    pairs = [(calls, calls), (calls, plain), (plain, calls), (plain, calls_and_drops)]
    # A pure callback whose result is dropped need not be there at all.
    for function, part in pairs[:3] if case.callback.name == "pure_callback" else pairs:
        what = f"{function.__name__} with the part {part.__name__}"
        error = error_of(jax.jit(partitioned(function, part)), operand)
        if error is None:
            case.wrong("not refused", Stage.COMPILE, f"in {what} a callback was not refused")
        # Behind the partitioner's own words where the part is lowered.
        elif "custom_partitioning" not in str(error):
            case.wrong("wrong refusal", Stage.COMPILE, f"in {what}: {summary(error)}")
    case.same("not refused", Stage.CALLBACK, host.count, 0, "runs of what was refused")


@case(
    "shard_map",
    "id_tap call pure_callback io_callback debug_callback",
    "H4 H9 X2 X3 X4",
    minimum_devices=2,
    needs="shard_map",
    functions="barrier_wait",
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
