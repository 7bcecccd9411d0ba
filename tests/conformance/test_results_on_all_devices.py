"""C5: the history of a cell ends with the cell, on all devices."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from conformance.worker.execution import _parts

pytestmark = pytest.mark.contract("C5")


def test_a_result_that_the_first_device_has_waits_for_the_others(devices: list[jax.Device]) -> None:
    returned, ran = threading.Event(), []

    def slow(number: np.ndarray) -> np.ndarray:
        # It ends with the deadline, unless the result was read before.
        if number == 1:
            returned.wait(0.3)
        ran.append(int(number))
        return np.float32(7)

    def on_each(_: jax.Array) -> jax.Array:
        return jax.pure_callback(slow, jax.ShapeDtypeStruct((), np.float32), jax.lax.axis_index("d"))

    mesh = jax.sharding.Mesh(np.array(devices[:2]), "d")
    program = jax.jit(
        jax.shard_map(on_each, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec(), check_vma=False)
    )
    # JAX dispatches a program anew in C++ from its second run on.
    jax.block_until_ready(program(np.zeros(2, np.float32)))
    ran.clear()
    (whole,) = _parts(program(np.zeros(2, np.float32)))
    returned.set()
    assert whole == 7 and sorted(ran) == [0, 1]
