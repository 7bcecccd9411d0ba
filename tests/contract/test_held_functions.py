"""Callbacks in the functions that JAX's primitives hold, and whose effects these do not say (H4, H5, X3, X4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_derivatives import linear_call
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.pairwise import in_turns
from support.subprocesses import run_program

import hostcb as hcb

Function = Callable[[Any], Any]


def shape_of(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def kinds(seen: list[float]) -> dict[str, Function]:
    """Each kind of callback as a function that doubles, and notes the sum of its operand."""

    def note(value: Any) -> None:
        seen.append(float(np.asarray(value).sum()))

    def double(value: Any) -> Any:
        note(value)
        return np.asarray(value) * 2

    def debug(x: Any, ordered: bool) -> Any:
        hcb.debug.callback(note, x, ordered=ordered)
        return x * 2

    def dlpack(x: Any, effect: bool) -> Any:
        called = hcb.dlpack_callback(lambda value: double(np.from_dlpack(value)), shape_of(x), has_side_effect=effect)
        return called(x)

    return {
        "id_tap": lambda x: 2 * hcb.id_tap(lambda value, transforms: note(value), x),
        "call": lambda x: hcb.call(double, x, result_shape=shape_of(x)),
        "io_callback": lambda x: hcb.io_callback(double, shape_of(x), x),
        "ordered io_callback": lambda x: hcb.io_callback(double, shape_of(x), x, ordered=True),
        "debug.callback": lambda x: debug(x, False),
        "ordered debug.callback": lambda x: debug(x, True),
        "dlpack_callback with side effects": lambda x: dlpack(x, True),
        "pure_callback": lambda x: hcb.pure_callback(double, shape_of(x), x),
        "dlpack_callback": lambda x: dlpack(x, False),
    }


NAMES = list(kinds([]))
PURE = ("pure_callback", "dlpack_callback")


def in_linear_call(function: Function) -> Function:
    return lambda x: linear_call(lambda residual, x: function(x), lambda residual, ct: ct, (), x)


def in_transposed_linear_call(function: Function) -> Function:
    def apply(x: Any) -> Any:
        return linear_call(lambda residual, x: x, lambda residual, ct: function(ct), (), x)

    return lambda x: jax.linear_transpose(apply, x)(x)[0]


def in_composite(function: Function) -> Function:
    return lambda x: jax.lax.composite(lambda x: function(x), "tests.double")(x)


def in_custom_partitioning(function: Function) -> Function:
    held = custom_partitioning(lambda x: function(x))
    held.def_partition(infer_sharding_from_operands=None, partition=None, sharding_rule="i -> i")
    return held


def in_pallas_call(function: Function) -> Function:
    def kernel(x: Any, out: Any) -> None:
        out[...] = function(x[...])

    return lambda x: pl.pallas_call(kernel, out_shape=shape_of(x), interpret=True)(x)


CONSTRUCTS = {
    "linear_call": in_linear_call,
    "transposed linear_call": in_transposed_linear_call,
    "composite": in_composite,
    "custom_partitioning": in_custom_partitioning,
    "pallas_call": in_pallas_call,
}
MODES = {"eager": lambda function: function, "jit": jax.jit}


@pytest.mark.contract("H4")
@pytest.mark.parametrize("mode", MODES)
@in_turns(("name", "construct"), NAMES, CONSTRUCTS, times=2)
def test_callbacks_run_in_held_functions(construct: str, name: str, mode: str) -> None:
    seen: list[float] = []
    function = MODES[mode](CONSTRUCTS[construct](kinds(seen)[name]))
    result = function(jnp.arange(4.0))
    hcb.barrier_wait()
    assert np.asarray(result).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert seen == [6.0], f"{name} in {construct} should be called once, with the whole operand"


@pytest.mark.contract("X3")
@in_turns(("name", "construct"), [name for name in NAMES if name not in PURE], CONSTRUCTS, times=2)
def test_callbacks_run_in_held_functions_whose_results_nobody_uses(construct: str, name: str) -> None:
    seen: list[float] = []
    held = CONSTRUCTS[construct](kinds(seen)[name])

    @jax.jit
    def unused(x: Any) -> Any:
        held(x)
        return x

    unused(jnp.arange(4.0)).block_until_ready()
    hcb.barrier_wait()
    assert seen == [6.0], f"{name} in {construct} should run whether the result is used or not"


@pytest.mark.contract("H5")
@pytest.mark.parametrize("construct", [name for name in CONSTRUCTS if not name.startswith("transposed")])
def test_one_order_around_and_in_held_functions(construct: str) -> None:
    order: list[Any] = []

    def tap(x: Any, name: str) -> Any:
        return hcb.id_tap(lambda value, transforms: order.append((name, value[0])), x)

    held = CONSTRUCTS[construct](lambda x: hcb.call(lambda value: value + 1, tap(x, "in"), result_shape=shape_of(x)))

    @jax.jit
    def program(x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (tap(held(tap(x, "before")), "after"), None), x, None, length=3)[0]

    assert program(jnp.zeros(4)).tolist() == [3.0] * 4
    hcb.barrier_wait()
    assert order == [
        (name, float(value))
        for step in range(3)
        for name, value in [("before", step), ("in", step), ("after", step + 1)]
    ]


@pytest.mark.contract("H4")
def test_every_step_of_a_pallas_grid_calls() -> None:
    seen: list[float] = []
    double = kinds(seen)["call"]

    def kernel(x: Any, out: Any) -> None:
        out[...] = double(x[...])

    block = pl.BlockSpec((2,), lambda i: (i,))
    shape = jax.ShapeDtypeStruct((8,), np.float32)
    program = pl.pallas_call(kernel, out_shape=shape, grid=(4,), in_specs=[block], out_specs=block, interpret=True)
    assert jax.jit(program)(jnp.arange(8.0)).tolist() == [2.0 * i for i in range(8)]
    assert seen == [1.0, 5.0, 9.0, 13.0]


@pytest.mark.contract("H9")
@pytest.mark.parametrize("name", NAMES)
def test_custom_partitioning_in_shard_map(name: str) -> None:
    seen: list[float] = []
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    held = in_custom_partitioning(kinds(seen)[name])
    program = jax.jit(jax.shard_map(held, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    assert program(jnp.arange(4.0)).tolist() == [0.0, 2.0, 4.0, 6.0]
    hcb.barrier_wait()
    assert sorted(seen) == [0.0, 1.0, 2.0, 3.0]


def partitioned(function: Function, part: Function) -> tuple[Function, Any]:
    """`function` under custom_partitioning over a mesh, where `part` is run on each device, and an operand for it."""
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,))
    held = custom_partitioning(lambda x: function(x))
    held.def_partition(
        infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
        partition=lambda mesh, operands, result: (mesh, part, operands[0].sharding, (operands[0].sharding,)),
        sharding_rule="i -> i",
    )
    return jax.jit(held), jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))


@pytest.mark.contract("H4")
@pytest.mark.parametrize("name", NAMES)
def test_custom_partitioning_over_a_mesh_is_refused(name: str) -> None:
    callback = kinds([])[name]
    program, operand = partitioned(callback, callback)
    kind = name.removeprefix("ordered ").split()[0]
    with pytest.raises(NotImplementedError, match=rf"{kind}: .*custom_partitioning.*shard_map"):
        program(operand)


@pytest.mark.contract("H4", "H9")
def test_custom_partitioning_in_a_shard_map_that_leaves_axes_to_the_compiler_is_refused() -> None:
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    held = in_custom_partitioning(lambda x: (hcb.debug.callback(lambda value: None, x), 2 * x)[1])
    mapped = jax.shard_map(held, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}, check_vma=False)
    with pytest.raises(NotImplementedError, match="custom_partitioning"):
        jax.jit(mapped).lower(np.zeros(4, np.float32)).compile()


PARTS_ALONE = """
from jax.experimental.custom_partitioning import custom_partitioning

def double(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    match sys.argv[1]:
        case "call":
            return hcb.call(lambda value: 2 * value, x, result_shape=shape)
        case "pure_callback":
            return hcb.pure_callback(lambda value: 2 * value, shape, x)
        case "dropped":
            hcb.id_tap(lambda value, transforms: None, x)
            return 2 * x
        case "nested":
            return jax.lax.cond(x[0] > 0, jax.jit(lambda x: hcb.io_callback(lambda v: 2 * v, shape, x)), jnp.sin, x)

held = custom_partitioning(lambda x: 2 * x)
held.def_partition(
    infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
    partition=lambda mesh, operands, result: (mesh, double, operands[0].sharding, (operands[0].sharding,)),
    sharding_rule="i -> i",
)
mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,))
try:
    jax.jit(held)(jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x"))))
except jax.errors.JaxRuntimeError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.contract("H4")
@pytest.mark.parametrize("kind", ["call", "pure_callback", "dropped", "nested"])
def test_callbacks_in_the_parts_alone_are_refused_by_the_compiler(kind: str) -> None:
    """JAX sees the function for the parts while it compiles; its crash would take the process along."""
    text = run_program(PARTS_ALONE, kind).json()
    assert "NotImplementedError" in text, text
    assert "used in a function with custom_partitioning" in text, text


@pytest.mark.contract("H4")
@pytest.mark.parametrize("kind", ["id_tap", "call"])
def test_in_a_kernel_of_pallas_that_is_imported_later_an_unused_callback_runs(kind: str) -> None:
    """Also if its function was called before: then hostcb knows it from a program without kernels."""
    source = """
seen = []
def host(value, transforms=()):
    seen.append(value.tolist())
    return np.asarray(value) + np.float32(1)
def of_kernel(value, transforms=()):
    return host(value)
def apply(function, x):
    return hcb.id_tap(function, x) if sys.argv[1] == "id_tap" else hcb.call(function, x, result_shape=x)
before = jax.jit(lambda x: apply(host, x))
x = np.arange(4, dtype=np.float32)
first = np.asarray(before(x)); hcb.barrier_wait()
from jax.experimental import pallas
for function in (host, of_kernel):
    def kernel(ref, out):
        out[...] = apply(function, ref[...]) * 2
    held = pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)
    def unused(x):
        held(x + 1)
        return x
    for program, given, result in ((unused, x + 1, x), (held, x, first * 2)):
        seen.clear()
        assert np.array_equal(jax.jit(program)(x), result); hcb.barrier_wait()
        assert seen == [given.tolist()], seen
assert np.array_equal(before(x), first)
print("done")
"""
    assert run_program(source, kind, devices=1).check().lines == ["done"]


@pytest.mark.contract("H4", "X3")
@pytest.mark.parametrize("kind", ["id_tap", "call"])
@pytest.mark.parametrize("construct", ["linear_call", "composite", "custom_partitioning"])
def test_an_ordered_callback_and_an_io_callback_in_one_held_function_both_run(construct: str, kind: str) -> None:
    seen: list[float] = []

    def function(x: Any) -> Any:
        hcb.io_callback(lambda _: seen.append(-1.0), None, x)
        return kinds(seen)[kind](x)

    held = CONSTRUCTS[construct](function)
    assert jax.jit(lambda x: (held(x), x)[1])(jnp.arange(4.0)).tolist() == [0, 1, 2, 3]
    hcb.barrier_wait()
    assert sorted(seen) == [-1.0, 6.0]


@pytest.mark.contract("X3")
def test_an_io_callback_that_is_held_in_a_branch_of_a_batch_is_refused() -> None:
    held = in_linear_call(lambda x: (hcb.io_callback(lambda _: None, None, x), x)[1])
    branch = jax.vmap(lambda x: jax.lax.cond(x[0] > 1, held, lambda x: x, x))
    with pytest.raises(NotImplementedError, match="IO effect"):
        jax.jit(branch)(jnp.arange(6.0).reshape(2, 3))
