"""What GSPMD needs of the operations that carry callbacks on TPU: a sharding on every one of them (H9)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_lowering import SendAndReceive

import hostcb as hcb

MESH = Mesh(np.array(jax.devices()), ("x",))


def shape_of(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def debug(x: Any, **options: Any) -> Any:
    hcb.debug.callback(lambda value: None, x, **options)
    return x


KINDS = {
    "id_tap": lambda x: hcb.id_tap(lambda value, transforms: None, x),
    "call": lambda x: hcb.call(lambda value: value, x, result_shape=shape_of(x)),
    "two results": lambda x: hcb.call(lambda value: (value, value[0]), x, result_shape=(shape_of(x), shape_of(x[0])))[
        0
    ],
    "pure_callback": lambda x: hcb.pure_callback(lambda value: value, shape_of(x), x),
    "io_callback": lambda x: hcb.io_callback(lambda value: value, shape_of(x), x),
    "ordered io_callback": lambda x: hcb.io_callback(lambda value: value, shape_of(x), x, ordered=True),
    "debug.callback": lambda x: debug(x),
    "ordered debug.callback": lambda x: debug(x, ordered=True),
    "partitioned debug.callback": lambda x: debug(x, partitioned=True),
}


@pytest.fixture(autouse=True)
def _gspmd() -> Iterator[None]:
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    yield
    jax.config.update("jax_use_shardy_partitioner", before)


@pytest.mark.contract("H9")
@pytest.mark.parametrize("name", KINDS)
def test_tpu_operations_are_manual_in_shard_map(name: str) -> None:
    program = jax.jit(jax.shard_map(KINDS[name], mesh=MESH, in_specs=P("x"), out_specs=P("x")))
    operand = jax.ShapeDtypeStruct((16,), np.float32, sharding=NamedSharding(MESH, P("x")))
    client = SendAndReceive()
    with mock.patch.object(mlir.ModuleContext, "get_backend", lambda self, optional=False: client):
        text = program.trace(operand).lower(lowering_platforms=("tpu",)).as_text()
    operations = re.findall(r".*stablehlo\.(?:send|recv).*", text)
    assert operations, text
    for operation in operations:
        assert re.search(r'mhlo.sharding = "(\{manual\}|\{\{manual\}(, \{manual\})*\})"', operation), operation
