"""From its second run on JAX may dispatch a program in another way: its results and callbacks are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...oracle.verdicts import Stage
from ...spec.jax_versions import shard_map
from ...spec.thresholds import FAST_BYTES, FAST_OPERATIONS, around
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.registry import EVERY_KIND

RUNS = 3


@case("jit", EVERY_KIND, "H3 H5 X2 X3 X4 B1 D1")
def fast_dispatch(case: Case) -> None:
    """At its first run and later a program calls back in order, with the right operands, and its result is right.

    It has several callbacks in a row, or one on more elements with other operations around it.
    """
    added = 0 if case.callback.returns_new_value else 1
    for count in around(FAST_OPERATIONS):
        host = case.host(add_one)

        def chain(x: Any, host: Any = host, count: int = count) -> Any:
            for _ in range(count):
                x = case.apply(host, x) + added
            return x

        program = jax.jit(chain)
        for start in range(RUNS):
            case.forget()
            case.gives(np.float32(start + count), program, np.float32(start))
            case.saw(host, [np.float32(start + number) for number in range(count)])
    # The compiler's instructions are counted at 16 bytes an element.
    elements = FAST_BYTES // 16
    host = case.host(add_one)
    program = jax.jit(lambda x: jnp.flip(case.apply(host, jnp.flip(x) * 2)))
    for count in (elements - 1, elements, elements + 1):
        for start in range(RUNS):
            operand = np.arange(count, dtype=np.float32) + np.float32(start)
            case.gives(case.expected_of(operand * 2), program, operand)


DISPATCHES = 4


def _kind_of(array: Any) -> list[Any]:
    """Its type, its values on each device, and whether the devices were chosen."""
    parts = sorted(
        (part.device.id, str(part.index), np.asarray(part.data).tolist()) for part in array.addressable_shards
    )
    return [array.dtype.name, array.weak_type, array.shape, array.committed, parts]


def _program(case: Case, through: Callable[[Any], Any]) -> Callable[..., Any]:
    """A program that uses all of its operands but the first, and whose results are of several types and places."""

    def program(unused: Any, whole: Any, half: Any, rows: Any) -> Any:
        return whole * 2, through(rows), half * through(2.0), jnp.asarray(rows[..., :2], np.int32)

    if case.layout == "jit":
        return jax.jit(program)
    whole, rows = PartitionSpec(), case.split.spec
    return jax.jit(
        shard_map(program, mesh=case.mesh, in_specs=(whole, whole, whole, rows), out_specs=(whole, rows, whole, rows))
    )


@case("jit", EVERY_KIND, "H1 H3 X2 X3 X4 B1")
@case("shard_map", "id_tap call io_callback_ordered", "H1 H3 X3")
def same_at_each_run(case: Case) -> None:
    """Later runs of a program give results of the types, values and devices of the first one.

    It has an operand that it does not use, and results of several types, on several devices.
    """
    host = case.host(add_one)

    def through(x: Any) -> Any:
        return x if case.callback.returns_new_value and not np.ndim(x) else case.apply(host, x)

    rows, half = case.operand, np.ones(2, jnp.bfloat16)
    free = (np.arange(5), np.float32(3), half, rows)
    results = (np.float32(6), case.expected_of(rows), half + half, rows[..., :2].astype(np.int32))
    if case.layout == "jit":
        chosen, there = (jax.device_put(each, case.devices[0]) for each in (free, results))
        here = tuple(map(jnp.asarray, results))
    else:
        everywhere = NamedSharding(case.mesh, PartitionSpec())
        chosen = jax.device_put(free, (everywhere, everywhere, everywhere, case.split))
        here = there = jax.device_put(results, (everywhere, case.split, everywhere, case.split))
    for what, operands, expected in (("free operands", free, here), ("operands on chosen devices", chosen, there)):
        program = _program(case, through)
        wanted = [_kind_of(each) for each in expected]
        for run in range(DISPATCHES):
            actual = [_kind_of(each) for each in jax.block_until_ready(program(*operands))]
            case.same("result", Stage.RESULT, actual, wanted, f"run {run} on {what}")
