"""Callbacks in the branches of `lax.platform_dependent`, of this platform and of others (H4, H5, X3, X4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support import sessions
from support.helpers import Record, mesh_of, shard_map

import hostcb as hcb

X = np.arange(8.0, dtype=np.float32)
record = Record()


def shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def fill(_: Any, out: Any, x: Any) -> None:
    record.add(np.asarray(x).copy())
    np.copyto(np.asarray(out), np.asarray(x))


def debug(ordered: bool) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        hcb.debug.callback(record.add, x, ordered=ordered)
        return x

    return function


RETURN = record.caller()
KINDS: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda x: hcb.id_tap(record.tap, x),
    "call": lambda x: hcb.call(RETURN, x, result_shape=shape(x)),
    "pure_callback": lambda x: hcb.pure_callback(RETURN, shape(x), x),
    "io_callback": lambda x: hcb.io_callback(RETURN, shape(x), x),
    "io_callback ordered": lambda x: hcb.io_callback(RETURN, shape(x), x, ordered=True),
    "debug.callback": debug(ordered=False),
    "debug.callback ordered": debug(ordered=True),
    "buffer_callback": lambda x: hcb.buffer_callback(fill, shape(x))(x),
    "io_callback of JAX, ordered": lambda x: io_callback(RETURN, shape(x), x, ordered=True),
}


def nothing(x: Any) -> Any:
    return x + 0


# Whether the callback is in the branch that runs here.
BRANCHES: dict[str, tuple[Callable[[Any], dict[str, Any]], bool]] = {
    "this": (lambda callback: {"cpu": callback, "cuda": nothing}, True),
    "another": (lambda callback: {"cpu": nothing, "cuda": callback}, False),
    "another, with default": (lambda callback: {"cuda": callback, "default": nothing}, False),
    "both": (lambda callback: {"cpu": callback, "cuda": lambda x: callback(-x)}, True),
    "default": (lambda callback: {"cuda": nothing, "default": callback}, True),
    "default, not here": (lambda callback: {"cpu": nothing, "default": callback}, False),
}


def scanned(function: Any) -> Any:
    return jax.jit(lambda x: jax.lax.scan(lambda carry, _: (function(carry), None), x, None, length=3)[0])


def looped(function: Any) -> Any:
    return jax.jit(lambda x: jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, function(s[1])), (0, x))[1])


def differentiated(function: Any) -> Any:
    def loss(x: Any) -> Any:
        y = function(jax.lax.stop_gradient(x)) + x
        return jnp.sum(y), y

    return lambda x: jax.jit(jax.value_and_grad(loss, has_aux=True))(x)[0][1] / 2


def over_a_mesh(function: Any) -> Any:
    return lambda x: jax.jit(function)(jax.device_put(x, NamedSharding(mesh_of(jax.devices()), P("d"))))


# And how often a callback there is called.
PLACES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "eager": (lambda function: lambda x: function(jnp.asarray(x)), 1),
    "jit": (jax.jit, 1),
    "nested jit": (lambda function: jax.jit(lambda x: jax.jit(function)(x)), 1),
    "grad": (differentiated, 1),
    "scan": (scanned, 3),
    "while_loop": (looped, 3),
    "cond": (lambda function: lambda x: jax.jit(lambda p, x: jax.lax.cond(p, function, nothing, x))(True, x), 1),
    "mesh": (over_a_mesh, 1),
    "shard_map": (lambda function: jax.jit(shard_map(function, mesh_of(jax.devices()))), 8),
    "pmap": (lambda function: lambda x: jax.pmap(function)(x[:, None])[:, 0], 8),
}


# Each kind meets half of the branches under jit, and a third of the other places with one of two branches, in turn; a
# thorough session has all.
IN_TURN = ("this", "another, with default")
PLACED = [
    (kind, "jit", branch)
    for number, kind in enumerate(KINDS)
    for turn, branch in enumerate(BRANCHES)
    if sessions.THOROUGH or (number + turn) % 2 == 0
]
PLACED += [
    (kind, place, IN_TURN[(number + turn) % 2])
    for number, kind in enumerate(KINDS)
    for turn, place in enumerate(PLACES)
    if place != "jit" and (sessions.THOROUGH or (number + turn) % 3 == 0)
]


@pytest.mark.contract("H4")
@pytest.mark.parametrize(("kind", "place", "branch"), PLACED)
def test_callbacks_of_a_platform(kind: str, place: str, branch: str) -> None:
    (branches, here), (compiled, times) = BRANCHES[branch], PLACES[place]
    per_platform = branches(KINDS[kind])
    record.all.clear()
    for _ in range(2):
        out = compiled(lambda x: jax.lax.platform_dependent(x, **per_platform))(X)
        assert np.asarray(out).tolist() == X.tolist()
    jax.effects_barrier()
    hcb.barrier_wait()
    if here and kind in ("pure_callback", "buffer_callback"):
        # Free to be called more or less often; over a mesh a buffer callback runs on each device.
        assert record.all
        return
    assert len(record.all) == (2 * times if here else 0)


@pytest.mark.contract("H5")
def test_the_order_goes_through_the_branches() -> None:
    record = Record()

    def tap(label: str) -> Callable[[Any], Any]:
        return lambda x: hcb.id_tap(record.labelled(label), x)

    def jax_ordered(label: str) -> Callable[[Any], Any]:
        def function(x: Any) -> Any:
            io_callback(lambda: record.add(None, label=label), None, ordered=True)
            return x

        return function

    @jax.jit
    def program(x: Any) -> Any:
        x = tap("first")(x)
        x = jax_ordered("JAX's first")(x)
        x = jax.lax.platform_dependent(x, cuda=tap("cuda"), default=jax_ordered("JAX's here"))
        x = jax.lax.platform_dependent(x, cpu=tap("here"), default=jax_ordered("JAX's there"))
        x = jax_ordered("JAX's last")(x)
        return tap("last")(x)

    for _ in range(3):
        assert program(X).tolist() == X.tolist()
    jax.effects_barrier()
    hcb.barrier_wait()
    ours = [label for label in record.labels if not label.startswith("JAX")]
    theirs = [label for label in record.labels if label.startswith("JAX")]
    assert ours == ["first", "here", "last"] * 3
    assert theirs == ["JAX's first", "JAX's here", "JAX's last"] * 3


@pytest.mark.contract("H7")
def test_vmap_of_a_platform_s_branch() -> None:
    record = Record()

    def function(x: Any) -> Any:
        return jax.lax.platform_dependent(
            x, cpu=lambda x: hcb.id_tap(record.tap, x), default=lambda x: hcb.id_tap(record.tap, -x)
        )

    jax.jit(jax.vmap(function))(X)
    hcb.barrier_wait()
    assert record.values == [X.tolist()]
    assert record.transforms == [(("batch", {"batch_dims": (0,)}),)]


@pytest.mark.contract("H5")
def test_a_program_whose_taps_are_all_elsewhere_waits_for_nothing() -> None:
    """Its token is a fresh one, however programs before it ended, and those that come later keep their order."""
    record = Record()
    elsewhere = jax.jit(
        lambda x: jax.lax.platform_dependent(x, cuda=lambda x: hcb.id_tap(record.tap, x), default=nothing)
    )

    def fails(_: Any) -> Any:
        raise ValueError("on purpose")

    failing = jax.jit(lambda x: hcb.call(fails, x, result_shape=shape(x)))
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(failing(X))
    assert elsewhere(X).tolist() == X.tolist()
    jax.effects_barrier()
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    assert elsewhere(X).tolist() == X.tolist()
    hcb.barrier_wait()
    assert not record.all


@pytest.mark.contract("H4")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "JAX" not in kind])
def test_several_platforms_at_once_are_refused_in_words(kind: str) -> None:
    def function(x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=KINDS[kind], default=nothing)

    traced = jax.jit(function).trace(X)
    with pytest.raises(NotImplementedError, match=r"several platforms at once \(cpu, cuda\)"):
        traced.lower(lowering_platforms=("cpu", "cuda"))
    # Neither of these has the callback.
    traced.lower(lowering_platforms=("cuda", "tpu"))
