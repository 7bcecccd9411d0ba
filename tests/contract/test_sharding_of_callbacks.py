"""X5: the device that `sharding` names runs the callback, and what names no device is refused."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from support import helpers
from support.helpers import STAGES, Record, like

import hostcb as hcb

X = np.arange(8, dtype=np.float32)


def barred(record: Record) -> list[Any]:
    hcb.barrier_wait()
    return record.values


def where(*_: Any) -> Any:
    """Only the report of a failure names the device that called."""
    raise ValueError("where am I")


def caller(function: Any, *args: Any) -> Any:
    """The device on which a callback of `function` ran, as the barrier reports it."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="where am I"):
        jax.block_until_ready(function(*args))
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    (failure,) = caught.value.failures
    return failure.device


KINDS = {"pure": hcb.pure_callback, "io": hcb.io_callback,
         "ordered_io": functools.partial(hcb.io_callback, ordered=True)}  # fmt: skip

EVERY = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.mark.contract("X5")
@EVERY
@pytest.mark.parametrize("form", ["single", "named"])
@STAGES
def test_sharding_picks_the_device_of_a_mesh(stage: Any, form: str, kind: Any, devices: list[Any]) -> None:
    mesh = helpers.mesh_of(devices)
    x = helpers.sharded(X, mesh)
    for device in (devices[5], devices[0], devices[7]):
        single = SingleDeviceSharding(device)
        sharding = single if form == "single" else NamedSharding(helpers.mesh_of([device]), P())
        assert caller(stage(lambda x, s=sharding: kind(where, like(x), x, sharding=s)), x) == device
        out = stage(lambda x, s=sharding: kind(lambda x: x + 1, like(x), x, sharding=s))(x)
        helpers.equal(np.asarray(out), X + 1, f"result of {device}")
        assert out.sharding.device_set == set(devices), f"the result should reach all devices, has {out.sharding}"
    assert caller(stage(lambda x: kind(where, like(x), x)), x) == devices[0], "the first by default"


METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")
UNDER_VMAP = [("io", "sequential"), *((kind, method) for kind in ("call", "pure") for method in METHODS)]


def plus(row: Any, number: Any) -> Any:
    """Of one row or of a batch of rows, where the number may have the axis of the batch too."""
    return row + np.asarray(number)[..., None]


@pytest.mark.contract("H8", "H10", "X5")
@pytest.mark.parametrize(("kind", "method"), UNDER_VMAP)
def test_under_vmap_the_named_device_calls(kind: str, method: str, devices: list[Any]) -> None:
    x = helpers.sharded(np.arange(16, dtype=np.float32).reshape(8, 2), helpers.mesh_of(devices))
    one = np.float32(1)  # without a batch

    def program(function: Any, place: int) -> Any:
        sharding = SingleDeviceSharding(devices[place])
        ways = {
            "io": lambda row: hcb.io_callback(function, like(row), row, one, sharding=sharding),
            "pure": lambda row: hcb.pure_callback(function, like(row), row, one, sharding=sharding, vmap_method=method),
            "call": lambda row: hcb.call(
                lambda both: function(*both), (row, one), result_shape=like(row), device_index=place, vmap_method=method
            ),
        }
        return jax.jit(jax.vmap(ways[kind]))

    for place in (1, 7):
        helpers.equal(np.asarray(program(plus, place)(x)), np.asarray(x) + 1, f"result of {place}")
        with pytest.raises(jax.errors.JaxRuntimeError, match="where am I"):
            jax.block_until_ready(program(where, place)(x))
        with pytest.raises(hcb.CallbackException) as caught:
            hcb.barrier_wait()
        assert {failure.device for failure in caught.value.failures} == {devices[place]}


@pytest.mark.contract("X5")
@EVERY
@STAGES
def test_sharding_on_one_device(stage: Any, kind: Any, devices: list[Any]) -> None:
    x = jax.device_put(X, devices[3])
    f = lambda x, device: kind(lambda x: x + 1, like(x), x, sharding=SingleDeviceSharding(device))
    helpers.equal(stage(functools.partial(f, device=devices[3]))(x), X + 1, "its own device")
    with pytest.raises(ValueError, match=r"cpu:0|CpuDevice\(id=0\)"):
        stage(functools.partial(f, device=devices[0]))(x)


@pytest.mark.contract("X5")
@EVERY
def test_shardings_that_name_no_device_are_refused(kind: Any, devices: list[Any]) -> None:
    record = Record()
    mesh = helpers.mesh_of(devices)
    f = lambda x, sharding: kind(lambda x: (record.add(x), x)[1], like(x), x, sharding=sharding)
    with pytest.raises(NotImplementedError, match=r"8 devices\. Name the one that calls: .*SingleDeviceSharding"):
        jax.jit(lambda x: f(x, NamedSharding(mesh, P("d"))))(X)
    for wrong in (devices[0], "cpu", 0, P("d")):
        with pytest.raises(TypeError, match="SingleDeviceSharding"):
            jax.jit(lambda x, w=wrong: f(x, w))(X)
    half = helpers.sharded(X, helpers.mesh_of(devices[:4]))
    with pytest.raises(ValueError, match="not in the device assignment"):
        jax.jit(lambda x: f(x, SingleDeviceSharding(devices[6])))(half)
    for mapped in (jax.pmap(lambda x: f(x, SingleDeviceSharding(devices[0]))),
                   helpers.shard_map(lambda x: f(x, SingleDeviceSharding(devices[0])), mesh)):  # fmt: skip
        with pytest.raises(NotImplementedError, match="sharding"):
            jax.jit(mapped)(X)
    assert barred(record) == [], "refused before anything runs"
