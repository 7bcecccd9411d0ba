"""Buffer callbacks in a `shard_map` that leaves axes of the mesh to the compiler (H9, H27, B5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.pairwise import in_turns

import hostcb as hcb

NUMBERS = np.arange(32, dtype=np.float32).reshape(8, 4)


def fill(context: Any, out: Any, value: Any) -> None:
    np.asarray(out)[...] = np.asarray(value) + np.float32(1)


def like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


KINDS: dict[str, Callable[[Any], Any]] = {
    "jax's buffer_callback": lambda x: buffer_callback(fill, like(x))(x),
    "buffer_callback": lambda x: hcb.buffer_callback(fill, like(x))(x),
    "aliased": lambda x: hcb.buffer_callback(fill, like(x), input_output_aliases={0: 0})(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(lambda v: np.asarray(np.from_dlpack(v) + 1, np.float32), like(x))(
        x
    ),
}
CONSTRUCTS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "alone": lambda add: add,
    "in a cond": lambda add: lambda x: jax.lax.cond(x.sum() >= 0, add, lambda x: x, x),
    "in a map": lambda add: lambda x: jax.lax.map(add, x),
    "in a checkpoint": lambda add: lambda x: jax.checkpoint(add)(x),
    "in a nested shard_map": lambda add: (
        lambda x: jax.shard_map(add, in_specs=P(None, "b"), out_specs=P(None, "b"), axis_names={"b"}, check_vma=False)(
            x
        )
    ),
}


def partly(function: Any, kind: AxisType = AxisType.Auto) -> tuple[Any, Any]:
    """A program that is manual over one of three axes, and its operand, which is spread over two others as well."""
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(kind,) * 3)
    part = jax.shard_map(function, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}, check_vma=False)
    return jax.jit(part), jax.device_put(NUMBERS, NamedSharding(mesh, P("a", ("b", "c"))))


@pytest.mark.contract("H9", "H27", "B5")
@pytest.mark.parametrize("axes", [AxisType.Auto, AxisType.Explicit], ids=["automatic", "explicit"])
@in_turns(("construct", "name"), CONSTRUCTS, KINDS, times=3)
def test_a_pure_one_gets_the_whole_part_on_each_device(name: str, construct: str, axes: AxisType) -> None:
    if axes is AxisType.Explicit and construct in ("in a cond", "in a nested shard_map"):
        pytest.skip("the type of the result says nothing of explicit axes, also that of JAX's own: JAX refuses these")
    with hcb.installed():
        program, operand = partly(CONSTRUCTS[construct](KINDS[name]), axes)
        result = program(operand)
    for shard in result.addressable_shards:
        assert np.array_equal(shard.data, NUMBERS[shard.index] + 1), shard


@pytest.mark.contract("H9", "B5")
@pytest.mark.parametrize("name", ["buffer_callback", "dlpack_callback"])
def test_one_with_side_effects_is_refused(name: str) -> None:
    binds = {
        "buffer_callback": lambda x: hcb.buffer_callback(fill, like(x), has_side_effect=True)(x),
        "dlpack_callback": lambda x: hcb.dlpack_callback(np.from_dlpack, like(x), has_side_effect=True)(x),
    }
    program, operand = partly(binds[name])
    with pytest.raises(NotImplementedError, match=r"Make \['b', 'c'\] manual too"):
        program.trace(operand)


@pytest.mark.contract("H9", "B5")
def test_with_gspmd_a_pure_one_is_refused() -> None:
    """Lowered and not compiled: the compiler would end this process."""
    before = jax.config.jax_use_shardy_partitioner  # type: ignore[attr-defined]
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        program, operand = partly(KINDS["buffer_callback"])
        with pytest.raises(NotImplementedError, match=r"Make \['b', 'c'\] manual too"):
            program.lower(operand)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


@pytest.mark.contract("H15", "B5")
def test_a_failure_ends_the_program() -> None:
    def fail(context: Any, out: Any, value: Any) -> None:
        raise ValueError("no")

    program, operand = partly(lambda x: hcb.buffer_callback(fail, like(x))(x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="raised ValueError: no"):
        jax.block_until_ready(program(operand))
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
