"""H9, H21: what is refused in a `shard_map`, for its axes, the compiler or this JAX, and what is not."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostcb as hcb
from hostcb import _compat
from hostcb._compat import lowering

OPERAND = jax.ShapeDtypeStruct((4, 4), np.float32)


def tapped(x: Any) -> Any:
    return hcb.id_tap(lambda value, transforms: None, x)


def pure(x: Any) -> Any:
    return hcb.pure_callback(lambda value: value, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.contract("H9")
@pytest.mark.parametrize("aborts", [False, True])
def test_a_token_in_a_part_of_the_mesh_is_refused_where_the_compiler_aborts(
    monkeypatch: pytest.MonkeyPatch, aborts: bool
) -> None:
    """Lowered and not compiled: where the compiler does abort, it would end this process."""
    monkeypatch.setattr(_compat, "ABORTS_ON_TOKEN_IN_PART", aborts)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))

    def nested(function: Any) -> Any:
        inner = lambda x: jax.shard_map(function, in_specs=P(None, "b"), out_specs=P(None, "b"), axis_names={"b"})(x)
        return jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}))

    assert "custom_call" in nested(pure).lower(OPERAND).as_text()
    if not aborts:
        assert "custom_call" in nested(tapped).lower(OPERAND).as_text()
        return
    with pytest.raises(NotImplementedError, match="shard_map inside of another"):
        nested(tapped).lower(OPERAND)


@pytest.mark.contract("H21")
def test_without_the_rule_of_shard_map_only_what_keeps_an_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering._LOWER_SHARD_MAP, "problem", "is missing")
    mesh = Mesh(np.array(jax.devices()[:4]), ("a",))

    def mapped(function: Any) -> Any:
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("a"), out_specs=P("a")))

    assert "custom_call" in mapped(pure).lower(OPERAND).as_text()
    with pytest.raises(hcb.UnknownJaxError, match="is missing"):
        mapped(tapped).lower(OPERAND)


@pytest.mark.contract("H9")
@pytest.mark.parametrize("when", ["traced there", "traced before"])
def test_the_axes_that_are_left_to_the_compiler_are_named_in_order(when: str) -> None:
    """Of a program that was traced before, only the lowering sees the axes."""
    before = jex.jaxpr_as_fun(jax.make_jaxpr(pure)(OPERAND))
    function = pure if when == "traced there" else lambda x: before(x)[0]
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(1, 1, 2, 2), ("a", "c", "b", "d"))
    part = jax.shard_map(function, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}, check_vma=False)
    with pytest.raises(NotImplementedError, match=r"Make \['b', 'c', 'd'\] manual too"):
        jax.jit(part).lower(OPERAND)


@pytest.mark.contract("H9")
@pytest.mark.parametrize("ordered", [True, False])
def test_a_shard_map_without_values_needs_a_program_that_knows_its_devices(ordered: bool) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
    seen: list[int] = []

    def body() -> tuple[()]:
        hcb.io_callback(lambda index: seen.append(int(index)), None, jax.lax.axis_index("a"), ordered=ordered)
        return ()

    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(), out_specs=()))
    with pytest.raises(NotImplementedError, match=r"for one device.*jax\.set_mesh"):
        mapped()
    with jax.set_mesh(mesh):
        mapped()
    hcb.barrier_wait()
    assert sorted(seen) == [0, 1]
