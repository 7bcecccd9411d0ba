"""Small programs, with what they must return and what callbacks must see: JAX's own callbacks, then those of hostcb."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.ad_checkpoint
import jax.custom_derivatives
import jax.experimental.custom_partitioning
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

import hostcb as hcb

SCALAR = jax.ShapeDtypeStruct((), np.float32)
seen: list[Any] = []


def tap(value: Any, transforms: Any = ()) -> None:
    seen.append(value.tolist())


def note(label: Any) -> Callable[..., None]:
    return lambda *_: seen.append(label)


def same(value: Any) -> Any:
    seen.append(np.asarray(value).tolist())
    return np.asarray(value)


def mesh() -> Any:
    return jax.sharding.Mesh(np.array(jax.devices()[:2]), "d")


# Of JAX alone: none may notice that hostcb was imported.


def jax_loops() -> Any:
    def step(x: Any, _: Any) -> Any:
        return io_callback(same, SCALAR, x + 1, ordered=True), None

    def program(x: Any) -> Any:
        x = lax.scan(step, x, None, length=2)[0]
        x = lax.while_loop(lambda x: x < 4, lambda x: x + 1, x)
        jax.debug.callback(note("debug"))
        return lax.cond(x > 3, jnp.negative, jnp.sin, x) + jax.pure_callback(np.negative, SCALAR, x)

    def slope(x: Any) -> Any:
        return jax.vmap(jax.grad(lambda x: lax.scan(lambda c, _: (c * x, None), 1.0, None, length=3)[0]))(x)

    out = float(jax.jit(program)(jnp.float32(0)))
    jax.effects_barrier()
    seen.sort(key=str)
    return out, jax.jit(slope)(jnp.arange(2.0)).tolist()


def jax_shard_map() -> Any:
    def part(x: Any) -> Any:
        jax.debug.callback(note("part"))
        return lax.psum(x, "d")

    mapped = jax.jit(jax.shard_map(part, mesh=mesh(), in_specs=P("d"), out_specs=P()))
    out = float(mapped(jnp.arange(2.0))[0])
    jax.effects_barrier()
    return out


# With callbacks of hostcb.


def in_order() -> Any:
    """Taps and calls, in loops and branches, eagerly too."""

    def program(x: Any) -> Any:
        x = hcb.id_tap(tap, x)
        x = lax.fori_loop(0, 2, lambda i, x: hcb.call(same, x + 1, result_shape=SCALAR), x)
        hcb.debug.callback(tap, x, ordered=True)
        return lax.cond(x > 2, lambda x: hcb.io_callback(same, SCALAR, -x, ordered=True), lambda x: x, x)

    out = jax.jit(program)(jnp.float32(1))
    hcb.id_tap(tap, out - 1)
    return float(out)


def pure() -> Any:
    return float(jax.jit(lambda x: hcb.pure_callback(same, SCALAR, x) + 1)(1.0))


def pure_fails() -> Any:
    def fails(x: Any) -> Any:
        if x > 1:
            raise ValueError("on purpose")
        return x

    program = jax.jit(lambda x: hcb.pure_callback(fails, SCALAR, x) + 1)
    outcomes: list[Any] = []
    for x in (0.0, 1.0, 2.0, 0.5):
        try:
            outcomes.append(float(program(x)))
        except Exception as error:
            outcomes.append("on purpose" in str(error) or repr(error))
    try:
        hcb.barrier_wait()
    except hcb.CallbackException:
        outcomes.append("reported")
    return outcomes


def transformed() -> Any:
    """Under vmap and grad, of a tap that has a result."""
    program = jax.vmap(jax.grad(lambda x: jnp.sin(hcb.id_tap(lambda x, _: tap(x), x))))
    return jax.jit(program)(jnp.zeros(2)).tolist()


def differentiated_scan() -> Any:
    def step(c: Any, _: Any) -> Any:
        hcb.id_tap(note("constant"), 1.0)
        hcb.io_callback(note("unused"), None, jnp.float32(3))
        return c * 2.0, None

    out = float(jax.jit(jax.grad(lambda x: lax.scan(step, x, None, length=3)[0]))(1.0))
    hcb.barrier_wait()
    seen.sort()
    return out


def differentiated_checkpoint() -> Any:
    def step(c: Any, _: Any) -> Any:
        hcb.id_tap(note("constant"), 1.0)
        return jnp.sin(c), None

    looped = jax.checkpoint(lambda x: lax.scan(step, x, None, length=2)[0])
    return round(float(jax.jit(jax.grad(looped))(1.0)), 4)


def not_saved() -> Any:
    """A policy that answers with something else than a bool."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=[], offload_src="device", offload_dst="pinned_host"
    )

    def function(x: Any) -> Any:
        return x * hcb.pure_callback(same, SCALAR, lax.stop_gradient(x))

    return float(jax.jit(jax.grad(jax.checkpoint(function, policy=policy)))(2.0))


def batched_while() -> Any:
    def condition(carry: Any) -> Any:
        return hcb.id_tap(note("condition"), carry[0]) < carry[1]

    def loop(n: Any) -> Any:
        return lax.while_loop(condition, lambda carry: (carry[0] + 1, carry[1]), (0.0, n))[0]

    return jax.jit(jax.vmap(loop))(jnp.array([1.0, 3.0])).tolist()


def batched_cond() -> Any:
    def branch(x: Any) -> Any:
        hcb.io_callback(note("once"), None, x)
        return x

    try:
        jax.vmap(lambda x: lax.cond(x > 0, branch, lambda x: -x, x))(jnp.array([-1.0, 1.0]))
    except NotImplementedError:
        return "refused"
    return "taken"


def condition_without_token() -> Any:
    def condition(i: Any) -> Any:
        hcb.debug.callback(note("condition"), i)
        return i < 3

    return int(jax.jit(lambda: lax.while_loop(condition, lambda i: i + 1, 0))())


def stale_condition() -> Any:
    def program() -> Any:
        ref = jax.new_ref(jnp.float32(0))

        def condition(i: Any) -> Any:
            return hcb.call(same, ref[...], result_shape=SCALAR) < 2

        def body(i: Any) -> Any:
            ref[...] += 1
            return i + 1

        return lax.while_loop(condition, body, 0)

    try:
        jax.jit(program).lower()
    except NotImplementedError:
        return "refused"
    return "taken"


def part_of_ref() -> Any:
    def program() -> Any:
        ref = jax.new_ref(jnp.arange(3.0))
        ref[1] = 5.0
        hcb.debug.callback(same, ref.at[1])
        return ref[...]

    return jax.jit(program)().tolist()


def unused_in_holder() -> Any:
    def program(x: Any) -> Any:
        jax.custom_derivatives.linear_call(lambda _, x: hcb.id_tap(note("linear_call"), x), lambda _, x: x, (), x)
        lax.composite(lambda x: hcb.id_tap(note("composite"), x), "name")(x)
        return x

    return float(jax.jit(program)(1.0))


def partitioned() -> Any:
    @jax.experimental.custom_partitioning.custom_partitioning
    def function(x: Any) -> Any:
        return hcb.id_tap(note("function"), x)

    function.def_partition(
        partition=lambda mesh, shapes, result: (mesh, lambda x: x, result.sharding, (shapes[0].sharding,)),
        infer_sharding_from_operands=lambda mesh, shapes, result: shapes[0].sharding,
        sharding_rule="i -> i",
    )
    return jax.jit(lambda x: (function(x), x)[1])(jnp.arange(2.0)).tolist()


def on_each_device() -> Any:
    def tells(value: Any, transforms: Any, *, device: Any) -> None:
        seen.append([value.tolist(), device.id])

    def part(x: Any) -> Any:
        x = hcb.id_tap(tells, x, tap_with_device=True)
        return hcb.pure_callback(np.negative, jax.ShapeDtypeStruct((1,), np.float32), x)

    out = jax.jit(jax.shard_map(part, mesh=mesh(), in_specs=P("d"), out_specs=P("d")))(jnp.arange(2.0)).tolist()
    hcb.barrier_wait()
    seen.sort()
    return out


def replicated() -> Any:
    """A result that differs between devices is not taken for one that does not."""

    def part(x: Any) -> Any:
        return hcb.pure_callback(np.negative, jax.ShapeDtypeStruct((1,), np.float32), x)

    try:
        jax.jit(jax.shard_map(part, mesh=mesh(), in_specs=P("d"), out_specs=P())).lower(jnp.arange(2.0))
    except ValueError:
        return "refused"
    return "taken"


def on_a_mesh() -> Any:
    def tells(value: Any, *, device: Any) -> Any:
        seen.append([value.tolist(), device.id])
        return value

    x = jax.device_put(np.arange(2, dtype=np.float32), jax.sharding.NamedSharding(mesh(), P("d")))
    program = lambda x: hcb.call(tells, x, result_shape=x, call_with_device=True, device_index=1)
    return jax.jit(program)(x).tolist()


def on_a_device() -> Any:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    x = jax.device_put(np.arange(2, dtype=np.float32), jax.sharding.NamedSharding(mesh(), P("d")))
    program = lambda x: hcb.io_callback(same, jax.ShapeDtypeStruct((2,), np.float32), x, sharding=sharding)
    return jax.jit(program)(x).tolist()


def in_memory_kind() -> Any:
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    out = jax.jit(lambda x: hcb.id_tap(tap, x), out_shardings=host)(jnp.float32(1))
    return float(out), out.sharding.memory_kind


def other_platforms() -> Any:
    def program(x: Any) -> Any:
        return lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: hcb.id_tap(tap, x))

    return float(jax.jit(program)(1.0))


def inside_mesh() -> Any:
    def function(value: Any) -> Any:
        seen.append(jax.sharding.get_abstract_mesh().empty)
        return np.asarray(jnp.negative(value))

    with jax.set_mesh(mesh()):
        out = jax.jit(lambda x: hcb.call(function, x, result_shape=SCALAR))(jnp.float32(1))
        return float(out)


def two_orders() -> Any:
    def program(x: Any) -> Any:
        for step in range(2):
            x = hcb.id_tap(note(f"hostcb {step}"), x)
            io_callback(note(f"JAX {step}"), None, ordered=True)
        return x

    out = [float(jax.jit(program)(x)) for x in (1.0, 2.0)]
    jax.effects_barrier()
    hcb.barrier_wait()
    seen.sort()
    return out


def after_clearing() -> Any:
    def tells(value: Any, transforms: Any, *, device: Any) -> None:
        seen.append(any(device is each for each in jax.devices()))

    program = lambda x: hcb.id_tap(tells, x, tap_with_device=True)
    jax.jit(program)(1.0)
    hcb.barrier_wait()
    jax.extend.backend.clear_backends()
    return float(jax.jit(lambda x: program(x))(2.0))


# What they return, and what their callbacks see.
OF_JAX = {
    jax_loops: ((-8.0, [0.0, 3.0]), [1.0, 2.0, "debug"]),
    jax_shard_map: (1.0, ["part"] * 2),
}
OF_HOSTCB = {
    in_order: (-3.0, [1.0, 2.0, 3.0, 3.0, -3.0, -4.0]),
    pure: (2.0, [1.0]),
}
# The same, and parts of the names of what they need of JAX's private side.
SPECIAL: dict[Callable[[], Any], tuple[Any, list[Any], tuple[str, ...]]] = {
    pure_fails: ([1.0, 2.0, True, 1.5, "reported"], [], ("_post_hook", "LoadedExecutable", "Hlo", "ExecuteReplicated")),
    transformed: ([1.0, 1.0], [[0.0, 0.0]], ("primitive_jvps", "primitive_batchers", "primitive_transposes")),
    differentiated_scan: (
        8.0,
        ["constant"] * 3 + ["unused"] * 3,
        ("hoisting", "partial_eval", "DebugInfo", "_effects"),
    ),
    differentiated_checkpoint: (0.36, ["constant"] * 4, ("hoisting", "partial_eval", "DebugInfo", "remat_allowed")),
    not_saved: (2.0, [2.0], ("Saveable", "ensure_enum")),
    batched_while: ([1.0, 3.0], ["condition"] * 4, ("batch_jaxpr", "batchers", "AxisData", "while")),
    batched_cond: ("refused", [], ("batchers", "batch_jaxpr", "control_flow_allowed")),
    condition_without_token: (3, ["condition"] * 4, ("_while_lowering", "control_flow_allowed")),
    stale_condition: ("refused", [], ("discharge", "RefEffect", "ReadEffect")),
    part_of_ref: ([0.0, 5.0, 2.0], [5.0], ("TransformedRef",)),
    unused_in_holder: (1.0, ["linear_call", "composite"], ("linear_call", "composite")),
    partitioned: ([0.0, 1.0], ["function"], ("custom_partitioning", "build_mlir")),
    on_each_device: ([-0.0, -1.0], [[[0.0], 0], [[1.0], 1]], ("shard", "Sdy", "SPMD", "manual", "ShapedArray")),
    replicated: ("refused", [], ("ShapedArray",)),
    on_a_mesh: ([0.0, 1.0], [[[0.0, 1.0], 1]], ("shard", "Sdy", "Sharding", "ExecuteReplicated", "runtime_tokens")),
    on_a_device: ([0.0, 1.0], [[0.0, 1.0]], ("requires_devices", "set_sharding")),
    in_memory_kind: ((1.0, "pinned_host"), [1.0], ("lower_jaxpr_to_fun",)),
    other_platforms: (2.0, [], ("_cond_lowering",)),
    inside_mesh: (-1.0, [True], ("mesh",)),
    two_orders: (
        [1.0, 2.0],
        ["JAX 0", "JAX 0", "JAX 1", "JAX 1", "hostcb 0", "hostcb 0", "hostcb 1", "hostcb 1"],
        ("ExecuteReplicated", "runtime_tokens", "ShardedToken", "add_host_callback", "cached_primitive"),
    ),
    after_clearing: (2.0, [True, True], ("_backends", "clear", "initialized")),
}


def run(place: str) -> dict[str, Any]:
    """How the programs ended that this place of JAX concerns: "right", or a type and a text of what went wrong."""
    special = {each: expected[:2] for each, expected in SPECIAL.items() if any(part in place for part in expected[2])}
    chosen = {**OF_JAX, **OF_HOSTCB, **special}
    return {program.__name__: _outcome(program, *expected) for program, expected in chosen.items()}


def _outcome(program: Callable[[], Any], value: Any, history: list[Any]) -> Any:
    seen.clear()
    try:
        found = program()
        hcb.barrier_wait()
    except Exception as error:
        try:
            hcb.barrier_wait()
        except hcb.CallbackException as left:
            error.add_note(str(left))
        return [type(error).__name__, "\n".join(traceback.format_exception_only(error))]
    if (found, seen) == (value, history):
        return "right"
    return ["wrong", f"{found}, seen {seen}, but should be {value}, seen {history}"]
