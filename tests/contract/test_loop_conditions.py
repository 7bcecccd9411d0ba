"""Callbacks in the condition of a `while_loop` that the compiler can count (X3, X4, B4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support import sessions
from support.helpers import Record, mesh_of, shard_map

import hostcb as hcb

STEPS = 3
record = Record()
NOTHING = jax.ShapeDtypeStruct((0,), np.float32)


def fill(_: Any, out: Any, x: Any) -> None:
    record.add(np.asarray(x).copy())


KINDS: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda x: hcb.id_tap(record.tap, x),
    "io_callback": lambda x: hcb.io_callback(record.add, None, x),
    "io_callback ordered": lambda x: hcb.io_callback(record.add, None, x, ordered=True),
    "debug.callback": lambda x: hcb.debug.callback(record.add, x),
    "debug.callback ordered": lambda x: hcb.debug.callback(record.add, x, ordered=True),
    "buffer_callback": lambda x: hcb.buffer_callback(fill, NOTHING, has_side_effect=True)(x),
}


def counted(callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A loop of `STEPS` steps, which the compiler sees, whose condition calls back."""

    def condition(state: Any) -> Any:
        callback(state[1])
        return state[0] < STEPS

    def body(state: Any) -> Any:
        return state[0] + 1, state[1] + 1

    return lambda x: jax.lax.while_loop(condition, body, (0, x))[1]


def in_shard_map(check_vma: bool) -> Callable[[Any, Any], Any]:
    def run(function: Any, x: Any) -> Any:
        mapped = jax.shard_map(
            function, mesh=mesh_of(jax.devices()), in_specs=P("d"), out_specs=P("d"), check_vma=check_vma
        )
        return jax.jit(mapped)(x)

    return run


def in_scan(function: Any, x: Any) -> Any:
    return jax.jit(lambda x: jax.lax.scan(lambda c, _: (c, function(c)), x, None, length=2)[1][0])(x)


def in_cond(function: Any, x: Any) -> Any:
    return jax.jit(lambda p, x: jax.lax.cond(p, function, lambda x: x, x))(True, x)


def over_a_mesh(function: Any, x: Any) -> Any:
    return jax.jit(function)(jax.device_put(x, NamedSharding(mesh_of(jax.devices()), P("d"))))


# And how often each value is seen.
PLACES: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "outside jit": (lambda function, x: function(x), 1),
    "jit": (lambda function, x: jax.jit(function)(x), 1),
    "nested jit": (lambda function, x: jax.jit(lambda x: jax.jit(function)(x))(x), 1),
    "jvp": (lambda function, x: jax.jit(lambda x: jax.jvp(function, (x,), (x,)))(x)[0], 1),
    "scan": (in_scan, 2),
    "cond": (in_cond, 1),
    "mesh": (over_a_mesh, 1),
    "shard_map": (in_shard_map(check_vma=True), 1),
    "shard_map, unchecked": (in_shard_map(check_vma=False), 1),
}


# Each kind meets every second place, and in a thorough session all but one. B5: over a mesh buffer callbacks with side
# effects are refused.
CASES = [
    (kind, place)
    for number, kind in enumerate(KINDS)
    for turn, place in enumerate(PLACES)
    if (sessions.THOROUGH or (number + turn) % 2 == 0) and (kind, place) != ("buffer_callback", "mesh")
]


@pytest.mark.contract("X3")
@pytest.mark.parametrize(("kind", "place"), CASES)
def test_conditions_call_back_once_more_than_the_loop_has_steps(kind: str, place: str) -> None:
    record.all.clear()
    x = jnp.arange(8.0) * 10
    run, times = PLACES[place]
    out = run(counted(KINDS[kind]), x)
    assert out.tolist() == (x + STEPS).tolist()
    jax.effects_barrier()
    hcb.barrier_wait()
    expected = [value + step for value in x.tolist() for step in range(STEPS + 1)] * times
    assert sorted(np.concatenate(record.args).tolist()) == sorted(expected)


@pytest.mark.contract("X4")
@pytest.mark.parametrize("kind", ["id_tap", "debug.callback", "debug.callback ordered", "io_callback"])
def test_under_vmap(kind: str) -> None:
    """The predicate is not batched: a callback for each element, or one for all, each time that it is evaluated."""
    record.all.clear()
    x = jnp.arange(4.0) * 10
    assert jax.jit(jax.vmap(counted(KINDS[kind])))(x).tolist() == (x + STEPS).tolist()
    hcb.barrier_wait()
    expected = [value + step for value in x.tolist() for step in range(STEPS + 1)]
    assert sorted(np.concatenate([np.ravel(arg) for arg in record.args]).tolist()) == sorted(expected)


@pytest.mark.contract("X4")
@pytest.mark.parametrize("kind", ["debug.callback", "io_callback"])
def test_batched_predicates(kind: str) -> None:
    """How often JAX evaluates a batched condition is its own affair, but not whether."""
    record.all.clear()

    def loop(bound: Any) -> Any:
        def condition(step: Any) -> Any:
            KINDS[kind](step)
            return step < bound

        return jax.lax.while_loop(condition, lambda step: step + 1, 0)

    bounds = np.array([1, 3])
    if kind == "io_callback":
        with pytest.raises(NotImplementedError, match="batched predicate"):
            jax.jit(lambda: jax.vmap(loop)(bounds))()
        return
    assert jax.jit(lambda: jax.vmap(loop)(bounds))().tolist() == [1, 3]
    hcb.barrier_wait()
    assert {int(arg) for arg in record.args} == {0, 1, 2, 3}


@pytest.mark.contract("H3")
def test_a_call_decides_in_a_condition() -> None:
    """A result that the condition needs, and an effect that has no token."""

    def loop(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), np.bool_)
        return jax.lax.while_loop(lambda x: hcb.io_callback(lambda x: x < 5, shape, x), lambda x: x + 1, x)

    assert jax.jit(loop)(0.0) == 5
    assert jax.jit(shard_map(lambda x: loop(x[0])[None], mesh_of(jax.devices())))(jnp.arange(8.0)).tolist() == [
        5
    ] * 6 + [6, 7]
