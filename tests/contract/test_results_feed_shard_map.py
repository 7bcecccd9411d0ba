"""Callbacks of a program over a mesh whose results a `shard_map` of the same program takes (H10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import hostcb as hcb

pytestmark = pytest.mark.contract("H10")


def double(value: Any) -> Any:
    return 2 * np.asarray(value)


def fill(context: Any, out: Any, value: Any) -> None:
    np.asarray(out)[...] = double(value)


KINDS = {
    "call": lambda x, shape: hcb.call(double, x, result_shape=shape),
    "pure_callback": lambda x, shape: hcb.pure_callback(double, shape, x),
    "io_callback": lambda x, shape: hcb.io_callback(double, shape, x),
    "ordered io_callback": lambda x, shape: hcb.io_callback(double, shape, x, ordered=True),
    "buffer_callback": lambda x, shape: hcb.buffer_callback(fill, shape)(x),
    "dlpack_callback": lambda x, shape: hcb.dlpack_callback(lambda value: double(np.from_dlpack(value)), shape)(x),
    "id_tap": lambda x, shape: 2 * hcb.id_tap(lambda value, transforms: None, x),
}


@pytest.fixture(params=["shardy", "gspmd"])
def _partitioner(request: pytest.FixtureRequest) -> Iterator[None]:
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", request.param == "shardy")
    yield
    jax.config.update("jax_use_shardy_partitioner", before)


@pytest.mark.usefixtures("_partitioner")
@pytest.mark.parametrize("name", KINDS)
def test_results_feed_a_shard_map(name: str) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    add = jax.shard_map(lambda y, x: y + x, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    shape = jax.ShapeDtypeStruct((16,), np.float32)
    operand = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("x")))
    result = jax.jit(lambda x: add(KINDS[name](x, shape), x))(operand)
    assert result.tolist() == [3.0 * i for i in range(16)]


@pytest.mark.parametrize("name", [name for name in KINDS if name != "id_tap"])
def test_results_of_callbacks_alone_feed_a_shard_map(name: str) -> None:
    """No operand of the program tells that it runs on several devices, but the shard_map."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    total = jax.shard_map(lambda y: jax.lax.psum(y, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    shape = jax.ShapeDtypeStruct((8,), np.float32)
    result = jax.jit(lambda: total(KINDS[name](jnp.arange(8.0), shape)))()
    assert result.tolist() == [56.0]


@pytest.mark.contract("H5")
@pytest.mark.usefixtures("_partitioner")
@pytest.mark.parametrize("name", ["call", "ordered io_callback", "id_tap"])
def test_ordered_callbacks_before_inside_and_after_a_shard_map(name: str) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def callback(x: Any) -> Any:
        return KINDS[name](x, jax.ShapeDtypeStruct(x.shape, x.dtype))

    inside = jax.shard_map(callback, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    operand = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("x")))
    programs = {"before": (1, lambda x: inside(callback(x))), "after": (1, lambda x: callback(inside(x)))}
    programs["both"] = (2, lambda x: callback(inside(callback(x))))
    for where, (outside, program) in programs.items():
        result = jax.jit(program)(operand)
        assert result.tolist() == [2.0 ** (1 + outside) * i for i in range(16)], where
    hcb.barrier_wait()
