"""As `test_advice.py`, for errors that name devices, meshes and platforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from test_advice import Advice, check, debugged, double, pure, tapped

import hostcb as hcb

EIGHT = np.arange(8, dtype=np.float32)


def mesh(*names: str) -> Mesh:
    return Mesh(np.asarray(jax.devices()).reshape((4, 2) if len(names) > 1 else 8), names or ("d",))


def spread(x: Any = EIGHT) -> Any:
    return jax.device_put(x, NamedSharding(mesh(), P("d")))


def over_mesh(function: Callable[[Any], Any], **options: Any) -> Any:
    return jax.jit(jax.shard_map(function, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), **options))(EIGHT)


def over_axes(function: Callable[[Any], Any], **options: Any) -> Any:
    mapped = jax.shard_map(function, mesh=mesh("a", "b"), in_specs=P("a"), out_specs=P("a"), check_vma=False, **options)
    return jax.jit(mapped)(EIGHT)


def on(index: int) -> SingleDeviceSharding:
    return SingleDeviceSharding(jax.devices()[index])


def placed(index: int, run_on: int = 0) -> Any:
    x = jax.device_put(jnp.float32(1), jax.devices()[run_on])
    return jax.jit(lambda x: pure(x, sharding=on(index)))(x)


def with_effect(x: Any, has_side_effect: bool = True) -> Any:
    return hcb.dlpack_callback(lambda x: 2 * np.asarray(x), lambda x: x, has_side_effect=has_side_effect)(x)


def lowered(function: Callable[[Any], Any], *platforms: str) -> Any:
    return bool(jax.jit(function).trace(jnp.float32(1)).lower(lowering_platforms=platforms).as_text())


def partitioned(see: Callable[..., None], ordered: bool) -> Callable[[Any], Any]:
    def show(x: Any) -> Any:
        hcb.debug.callback(lambda part: see(part.sum()), x, partitioned=True, ordered=ordered)
        return x

    return show


def see_index(see: Callable[..., None]) -> None:
    hcb.debug.callback(see, jax.lax.axis_index("d"))


def without_values(see: Callable[..., None]) -> Any:
    return jax.jit(jax.shard_map(lambda: (see_index(see), ())[1], mesh=mesh(), in_specs=(), out_specs=()))()


def with_operand(see: Callable[..., None]) -> Any:
    def show(x: Any) -> tuple[()]:
        hcb.debug.callback(lambda part: see(part.sum()), x)
        return ()

    return jax.jit(jax.shard_map(show, mesh=mesh(), in_specs=P("d"), out_specs=()))(EIGHT)


def under_mesh(run: Callable[[], Any]) -> Any:
    with jax.set_mesh(mesh()):
        return run()


def programs_on_all(x: Any = EIGHT) -> Any:
    """The sum of what a program with a callback on all devices gives."""
    return np.sum(jax.jit(lambda x: pure(x))(spread(x)))


def called_on_all(run: Callable[[], Any]) -> Any:
    return jax.jit(lambda x: hcb.call(lambda _: np.float32(run()), x, result_shape=np.float32(0)))(spread())


def tapped_on_all(run: Callable[[], Any]) -> Any:
    return tapped(lambda tap: jax.block_until_ready(jax.jit(lambda x: hcb.id_tap(
        lambda value, transforms: tap(run(), ()), x))(spread())))  # fmt: skip


def partitioned_by_user(function: Callable[[Any], Any]) -> Any:
    held = custom_partitioning(lambda x: function(x))
    held.def_partition(
        infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
        partition=lambda mesh, operands, result: (mesh, function, operands[0].sharding, (operands[0].sharding,)),
        sharding_rule="i -> i",
    )
    return held


ON_DEVICES = [
    Advice("Call back outside of that function, or use jax.shard_map in place of custom_partitioning",
           NotImplementedError, lambda: jax.jit(partitioned_by_user(pure))(spread()),
           {"outside": (lambda: jax.jit(lambda x: pure(partitioned_by_user(lambda x: x)(x)))(spread()), 2 * EIGHT),
            "shard_map": (lambda: over_mesh(pure), 2 * EIGHT)}),
    Advice("Use a single device in the callback, or an id_tap that no call of the same program follows",
           jax.errors.JaxRuntimeError, lambda: called_on_all(programs_on_all),
           {"single": (lambda: called_on_all(lambda: jax.jit(pure)(jnp.float32(2))), 4),
            "id_tap": (lambda: tapped_on_all(programs_on_all), [56])}),
    Advice("so lower for one at a time", NotImplementedError, lambda: lowered(pure, "cpu", "cuda"),
           {platform: (lambda platform=platform: lowered(pure, platform), True) for platform in ("cpu", "cuda")}),
    Advice("Use shard_map, in which each device calls with its part, or drop has_side_effect", NotImplementedError,
           lambda: jax.jit(with_effect)(spread()),
           {"shard_map": (lambda: over_mesh(with_effect), 2 * EIGHT),
            "dropped": (lambda: jax.jit(lambda x: with_effect(x, False))(spread()), 2 * EIGHT)}),
    Advice("Name one of these, or run the computation where the callback should be", ValueError, lambda: placed(3),
           {"name": (lambda: placed(0), 2), "run": (lambda: placed(3, run_on=3), 2)}),
    Advice("Drop sharding=, or call back outside", NotImplementedError,
           lambda: over_mesh(lambda x: pure(x, sharding=on(0))),
           {"dropped": (lambda: over_mesh(pure), 2 * EIGHT),
            "outside": (lambda: jax.jit(lambda x: pure(x, sharding=on(0)))(over_mesh(lambda x: x)), 2 * EIGHT)}),
    Advice(" manual too (drop axis_names=), or call back outside the shard_map", NotImplementedError,
           lambda: over_axes(pure, axis_names={"a"}),
           {"dropped": (lambda: over_axes(pure), 2 * EIGHT),
            "made manual": (lambda: over_axes(pure, axis_names={"a", "b"}), 2 * EIGHT),
            "outside": (lambda: jax.jit(pure)(over_axes(lambda x: x, axis_names={"a"})), 2 * EIGHT)}),
    Advice("program for one device. Return a value from it and use that, call it under jax.set_mesh(mesh), or give "
           "the callback an operand of it", NotImplementedError, lambda: without_values(lambda _: None),
           {"returned": (lambda: debugged(lambda see: over_mesh(lambda x: (see_index(see), x)[1])), EIGHT),
            "under the mesh": (lambda: debugged(lambda see: under_mesh(lambda: without_values(see))), EIGHT),
            "operand": (lambda: debugged(with_operand), EIGHT)}),
    Advice("Drop ordered=True, or use shard_map, in which each device calls in order", NotImplementedError,
           lambda: jax.jit(partitioned(lambda _: None, ordered=True))(spread()),
           {"dropped": (lambda: debugged(lambda see: jax.jit(partitioned(see, ordered=False))(spread())), EIGHT),
            "shard_map": (lambda: debugged(lambda see: over_mesh(partitioned(see, ordered=True))), EIGHT)}),
]  # fmt: skip


@pytest.mark.contract("H15")
@pytest.mark.parametrize("advice", ON_DEVICES, ids=lambda advice: advice.text[:40])
def test_advice_of_an_error_works(advice: Advice) -> None:
    check(advice)


@pytest.mark.contract("H10")
@pytest.mark.parametrize("count", [1, 8])
def test_every_device_index_that_an_error_offers_works(count: int) -> None:
    x = jnp.asarray(EIGHT) if count == 1 else spread()

    def call(index: int) -> Any:
        return jax.jit(lambda x: hcb.call(double, x, result_shape=EIGHT, device_index=index))(x)

    offered = "so it must be 0\\." if count == 1 else "so it must be from 0 to 7\\."
    with pytest.raises(ValueError, match=offered):
        call(count)
    for index in range(count):
        np.testing.assert_array_equal(call(index), 2 * EIGHT)
    with pytest.raises(ValueError, match="device_index must be 0 or more"):
        call(-1)
