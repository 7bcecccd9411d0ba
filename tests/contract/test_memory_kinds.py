"""Programs that keep something in another memory, such as the host's: `memory_kind` anywhere in them (H4, H5, X3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from support.helpers import Record, mesh_of, shard_map
from support.pairwise import in_turns
from support.subprocesses import run_program

import hostcb as hcb

X = np.arange(8.0, dtype=np.float32)
MESH = mesh_of(jax.devices())
HOST = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
SHARDED = NamedSharding(MESH, P("d"))
SHARDED_HOST = NamedSharding(MESH, P("d"), memory_kind="pinned_host")
record = Record()
RETURN = record.caller()


def shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def to_host(x: Any) -> Any:
    return jax.device_put(x, jax.memory.Space.Host)


def to_device(x: Any) -> Any:
    return jax.device_put(x, jax.memory.Space.Device)


def ordered_debug(x: Any) -> Any:
    hcb.debug.callback(record.add, x, ordered=True)
    return x


def two_orders(x: Any) -> Any:
    """Two tokens: JAX's own ordered callbacks have another."""
    return hcb.id_tap(lambda *_: None, io_callback(RETURN, shape(x), x, ordered=True))


KINDS: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda x: hcb.id_tap(record.tap, x),
    "call": lambda x: hcb.call(RETURN, x, result_shape=shape(x)),
    "io_callback": lambda x: hcb.io_callback(RETURN, shape(x), x),
    "io_callback ordered": lambda x: hcb.io_callback(RETURN, shape(x), x, ordered=True),
    "debug.callback ordered": ordered_debug,
    "two orders": two_orders,
}


def host_operand(callback: Any) -> Any:
    return jax.jit(lambda x: callback(to_device(x)))(jax.device_put(X, HOST))


def host_operand_as_it_is(callback: Any) -> Any:
    return jax.jit(callback)(jax.device_put(X, HOST))


def eager_host_operand(callback: Any) -> Any:
    return callback(jax.device_put(X, HOST))


def out_shardings(callback: Any) -> Any:
    out = jax.jit(callback, out_shardings=HOST)(X)
    assert out.sharding.memory_kind == "pinned_host"
    return out


def unrelated_operand(callback: Any) -> Any:
    out, unrelated = jax.jit(lambda x, y: (callback(x), y))(X, jax.device_put(X, HOST))
    assert unrelated.sharding.memory_kind == "pinned_host"
    return out


def no_results(callback: Any) -> Any:
    jax.jit(lambda x: (callback(to_device(x)), None)[1])(jax.device_put(X, HOST))
    return X


def inside(callback: Any) -> Any:
    return jax.jit(lambda x: to_device(to_host(callback(x))))(X)


def tapped_on_the_host(callback: Any) -> Any:
    return jax.jit(lambda x: to_device(callback(to_host(x))))(X)


def donated(callback: Any) -> Any:
    function = jax.jit(lambda x: callback(to_device(x)) * 1, donate_argnums=0, out_shardings=HOST)
    return function(jax.device_put(X, HOST))


def nested_jit(callback: Any) -> Any:
    return to_device(jax.jit(lambda x: jax.jit(lambda x: to_host(callback(x)))(x))(X))


def in_scan(callback: Any) -> Any:
    function = jax.jit(lambda x: jax.lax.scan(lambda c, _: (to_device(to_host(callback(c))), None), x, length=2)[0])
    return function(X)


def in_while_loop(callback: Any) -> Any:
    def body(state: Any) -> Any:
        return state[0] + 1, to_device(to_host(callback(state[1])))

    return jax.jit(lambda x: jax.lax.while_loop(lambda state: state[0] < 2, body, (0, x))[1])(X)


def in_cond(callback: Any) -> Any:
    function = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: callback(to_device(x)), to_device, x))
    return function(True, jax.device_put(X, HOST))


def over_a_mesh(callback: Any) -> Any:
    return jax.jit(lambda x: callback(jax.device_put(x, SHARDED)))(jax.device_put(X, SHARDED_HOST))


def out_over_a_mesh(callback: Any) -> Any:
    return jax.jit(callback, out_shardings=SHARDED_HOST)(jax.device_put(X, SHARDED))


def in_shard_map(callback: Any) -> Any:
    mapped = shard_map(callback, MESH)
    return jax.jit(mapped, out_shardings=SHARDED_HOST)(jax.device_put(X, SHARDED))


def shard_map_of_host_operand(callback: Any) -> Any:
    mapped = shard_map(callback, MESH)
    return jax.jit(lambda x: mapped(jax.device_put(x, SHARDED)))(jax.device_put(X, SHARDED_HOST))


def ahead_of_time(callback: Any) -> Any:
    return jax.jit(callback, out_shardings=HOST).lower(jax.ShapeDtypeStruct((8,), np.float32)).compile()(X)


TIMES = {in_scan: 2, in_while_loop: 2, in_shard_map: 8, shard_map_of_host_operand: 8}
PLACES = (
    host_operand, host_operand_as_it_is, eager_host_operand, out_shardings, unrelated_operand, no_results, inside,
    tapped_on_the_host, donated, nested_jit, in_scan, in_while_loop, in_cond, over_a_mesh, out_over_a_mesh,
    in_shard_map, shard_map_of_host_operand, ahead_of_time,
)  # fmt: skip


@pytest.mark.contract("H4")
@in_turns(("place", "kind"), PLACES, KINDS, times=2)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_memory_kind_somewhere(place: Callable[[Any], Any], kind: str) -> None:
    record.all.clear()
    out = place(KINDS[kind])
    assert np.asarray(out).tolist() == X.tolist()
    jax.effects_barrier()
    hcb.barrier_wait()
    times = TIMES.get(place, 1)
    assert len(record.all) == times
    assert sorted(np.concatenate(record.args).tolist()) == sorted(X.tolist() * (times if times == 2 else 1))


@pytest.mark.contract("H6")
@pytest.mark.parametrize("kind", ["id_tap", "call", "debug.callback ordered"])
def test_an_offloading_checkpoint(kind: str) -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["offloaded"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def loss(x: Any) -> Any:
        y = jax.ad_checkpoint.checkpoint_name(jnp.sin(x), "offloaded")
        return (jnp.sin(y) + KINDS[kind](jax.lax.stop_gradient(x))).sum()

    record.all.clear()
    gradient = jax.jit(jax.grad(jax.checkpoint(loss, policy=policy)))(X)
    hcb.barrier_wait()
    np.testing.assert_allclose(gradient, np.cos(np.sin(X)) * np.cos(X), rtol=1e-5)
    assert record.values == [X.tolist()] * (1 if kind == "call" else 2)


@pytest.mark.contract("H5")
def test_both_orders_are_kept_in_programs_with_memory_kinds() -> None:
    record = Record()

    @jax.jit
    def program(x: Any, kept: Any) -> Any:
        for step in range(3):
            x = hcb.id_tap(record.labelled(step), x)
            io_callback(lambda step=step: record.add(None, label=f"JAX {step}"), None, ordered=True)
        return x, kept

    for _ in range(2):
        program(X, jax.device_put(X, HOST))
    jax.effects_barrier()
    hcb.barrier_wait()
    assert [label for label in record.labels if isinstance(label, int)] == [0, 1, 2] * 2
    assert [label for label in record.labels if isinstance(label, str)] == ["JAX 0", "JAX 1", "JAX 2"] * 2


@pytest.mark.contract("H4")
def test_where_jax_has_mended_it_nothing_is_changed() -> None:
    """The work-around asks this JAX once whether it has the bug, and leaves a program alone if it has not."""
    program = """\
from jax._src.interpreters import mlir
plain = mlir.lower_jaxpr_to_fun
@functools.wraps(plain)
def mended(context, name, jaxpr, effects, *others, **params):
    kinds = params.get("propagated_out_mem_kinds")
    if kinds is not None:
        params["propagated_out_mem_kinds"] = (*[None] * len(effects), *kinds)
    return plain(context, name, jaxpr, effects, *others, **params)
MENDED
from hostcb._workarounds import memory_kinds
host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
seen = []
out = jax.jit(lambda x: hcb.id_tap(lambda x, _: seen.append(x.tolist()), x), out_shardings=host)(jnp.arange(2.0))
hcb.barrier_wait()
print(json.dumps([seen, out.sharding.memory_kind, memory_kinds._tokens_are_forgotten()]))
"""
    assert run_program(program.replace("MENDED", "")).json() == [[[0, 1]], "pinned_host", True]
    # A JAX that counts the tokens itself is one whose function does so before hostcb wraps it.
    prelude = "import functools, json\n" + program.split("MENDED")[0] + "mlir.lower_jaxpr_to_fun = mended\n"
    prelude += "import hostcb as hcb, jax, jax.numpy as jnp\n"
    assert run_program(program.split("MENDED")[1], prelude=prelude).json() == [[[0, 1]], "pinned_host", False]
