"""H1, H3, H15: every dtype and every layout of memory, there and back, bit for bit."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support import helpers
from support.helpers import Record
from support.pairwise import in_turns, pairwise
from support.subprocesses import run_program

import hostcb as hcb

FLOAT8 = [name for name in dir(ml_dtypes) if name.startswith("float8_")]
NAMES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64", "bfloat16",
    *FLOAT8, "int4", "uint4", "int2", "uint2", "float4_e2m1fn",
]  # fmt: skip
OFTEN = ["bool", "int8", "uint32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint2",
         "float4_e2m1fn", "complex64"]  # fmt: skip


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def sample(name: str) -> np.ndarray:
    """Every bit pattern where there are few, else extremes, special values and some in between; 16 elements."""
    dtype = dtype_of(name)
    if name == "bool":
        return np.resize([True, False, False], 16)
    if name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        start = {"int4": -8, "int2": -2}.get(name, 0)
        if name == "float4_e2m1fn":
            return np.resize(np.array([0, -0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -6], np.float32), 16).astype(dtype)
        return np.resize(np.arange(start, start + (16 if "4" in name else 4)), 16).astype(dtype)
    if name.startswith("float8"):
        return np.arange(0, 256, 17, dtype=np.uint8)[:16].view(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.resize(np.array([info.min, info.max, 0, 1, info.max // 3], dtype), 16)
    with np.errstate(all="ignore"):
        values = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, 1e-40, 3.14159, -65504.0], np.float64)
        if dtype.kind == "c":
            values = values + 1j * values[::-1]
        return np.resize(values, 16).astype(dtype)


@functools.cache
def supported(name: str) -> bool:
    try:
        jax.block_until_ready(jax.jit(lambda x: x)(sample(name)))
    except Exception:
        return False
    return True


def check_round_trip(value: np.ndarray, layout: helpers.Layout) -> None:
    """The tap, the call and the pure callback see `value`; the results, which are `value` too, arrive."""
    __tracebackhide__ = True
    record = Record()

    def program(x):
        x = hcb.id_tap(record.tap, x)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return hcb.call(record.caller(), x, result_shape=shape), hcb.pure_callback(record.caller(), shape, x), x

    outs = layout.run(program, layout.same(value))
    hcb.barrier_wait()
    # XLA drops a pure callback whose result has no elements.
    calls = 3 if value.size else 2
    assert len(record.all) == calls * len(layout.callers), f"{len(record.all)} callbacks"
    for arg in record.args:
        assert type(arg) is np.ndarray, f"callbacks see NumPy arrays, but got {type(arg)}"
        helpers.equal(arg, value, "what the callback saw")
    for out in outs:
        helpers.equal(out, (value, value, value), "results")


@pytest.mark.contract("H1", "H3")
@in_turns(("name", "layout"), NAMES, [helpers.JIT, helpers.EAGER, helpers.MESH], times=2)
def test_every_dtype(name: str, layout: helpers.Layout) -> None:
    if not supported(name):
        pytest.skip(f"JAX {jax.__version__} on CPU cannot run even the identity on {name}")
    check_round_trip(sample(name), layout)


@pytest.mark.contract("H1", "H3")
@in_turns(("name", "layout"), OFTEN, [helpers.PMAP, helpers.SHARD_MAP, helpers.JIT_DEVICE_5], times=2)
def test_dtypes_on_many_devices(name: str, layout: helpers.Layout) -> None:
    if not supported(name):
        pytest.skip(f"JAX {jax.__version__} on CPU cannot run even the identity on {name}")
    check_round_trip(sample(name), layout)


SHAPES = {str(shape): shape for shape in ((), (0,), (8, 0, 2), (3, 5), (8, 1, 3))}
LAYOUTS = {layout.name: layout for layout in helpers.MAIN_LAYOUTS}


@pytest.mark.contract("H1", "H3")
@pairwise(shape=SHAPES, name=("float32", "bool", "int4"), layout=LAYOUTS)
def test_every_shape(shape: str, name: str, layout: str) -> None:
    check_round_trip(np.resize(sample(name), SHAPES[shape]), LAYOUTS[layout])


@pytest.mark.contract("H1", "H3")
def test_types_of_64_bits_with_x64() -> None:
    source = """
import test_dtypes; from support import helpers
jax.config.update("jax_enable_x64", True)
for name in ("int64", "uint64", "float64", "complex128", "float32", "bool"):
    for layout in helpers.MAIN_LAYOUTS:
        test_dtypes.check_round_trip(test_dtypes.sample(name), layout)
    for value in (3, 2.5, 1j, True):
        out = hcb.call(lambda a: a, value, result_shape=value)
        assert out.dtype == jnp.asarray(value).dtype, (value, out.dtype)
print("done")
"""
    assert run_program(source).check().lines == ["done"]


@pytest.mark.contract("H1", "H3")
@pytest.mark.parametrize("layout", [helpers.EAGER, helpers.JIT, helpers.PMAP, helpers.SHARD_MAP], ids=helpers.named)
def test_tree_of_many_dtypes(layout: helpers.Layout) -> None:
    """Odd sizes beside each other, so that an offset that is off by one shows."""
    tree = {name: sample(name)[: 3 + i % 5] for i, name in enumerate(NAMES) if supported(name)}
    record = Record()

    def program(x):
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), x)
        return hcb.call(record.caller(), hcb.id_tap(record.tap, x), result_shape=shapes)

    outs = layout.run(program, layout.same(tree))
    hcb.barrier_wait()
    for got in [*record.args, *outs]:
        helpers.equal(got, tree, "tree of dtypes")


@pytest.mark.contract("H10")
def test_several_results_over_a_mesh() -> None:
    """In a process of its own: the compiler may abort it."""
    source = """
import test_dtypes; from support import helpers
layouts = [helpers.MESH, helpers.MESH_SUBSET, helpers.MESH_2D]
x = X = np.arange(8, dtype=np.float32)
results = dict(
    two=lambda a: (a, a + 1),
    dtypes=lambda a: [np.resize(test_dtypes.sample(name), 5) for name in test_dtypes.OFTEN if "4" not in name],
    mixed=lambda a: dict(a=a, b=np.int32([1, 2]), c=np.float32(7), d=np.zeros((0, 3), np.int8), e=np.bool_(True)),
    four=lambda a: [a, a, a, a],
)
for name, function in results.items():
    for layout in layouts:
        out, = layout.run(lambda x: hcb.call(function, x, result_shape=function(X)), [x])
        helpers.equal(out, jax.tree.map(np.asarray, function(x)), name)
    print(name, flush=True)
"""
    ended = run_program(source).check()
    assert ended.lines == ["two", "dtypes", "mixed", "four"], str(ended)


VALUE = np.arange(24, dtype=np.float32).reshape(4, 6)
MEMORY = {
    "fortran": lambda: np.asfortranarray(VALUE),
    "transposed": lambda: np.ascontiguousarray(VALUE.T).T,
    "strided": lambda: np.repeat(np.repeat(VALUE, 2, 0), 3, 1)[::2, ::3],
    "negative_stride": lambda: np.ascontiguousarray(VALUE[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda: np.broadcast_to(VALUE[:1], (4, 6)),
    "big_endian": lambda: VALUE.astype(">f4"),
    "jax_array": lambda: jnp.asarray(VALUE),
    "unaligned": lambda: np.frombuffer(b"x" + VALUE.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 6),
    "subclass": lambda: VALUE.view(type("Mine", (np.ndarray,), {})),
    "unmasked": lambda: np.ma.masked_array(VALUE),
    "float64": lambda: VALUE.astype(np.float64),
    "big_endian_float64": lambda: VALUE.astype(">f8"),
}


def read_only() -> np.ndarray:
    array = VALUE.copy()
    array.flags.writeable = False
    return array


MEMORY["read_only"] = read_only


@pytest.mark.contract("H3")
@in_turns(("memory", "layout"), MEMORY, [helpers.JIT, helpers.EAGER, helpers.PMAP_SUBSET, helpers.MESH], times=2)
def test_results_in_any_memory_layout(memory: str, layout: helpers.Layout) -> None:
    wanted = np.asarray(MEMORY[memory]()).astype(np.float32)
    function, shape = lambda _: MEMORY[memory](), jax.ShapeDtypeStruct((4, 6), np.float32)
    program = lambda x: (hcb.call(function, x, result_shape=shape), hcb.pure_callback(function, shape, x))
    for out in layout.run(program, layout.same(np.float32(0))):
        helpers.equal(out, (wanted, wanted), f"{memory} result")
    hcb.barrier_wait()


SCALARS = [7, 2.5, 1 + 2j, True, np.float64(3), np.int64(-4), np.float32(1), np.array(5), np.arange(2.0)]


@pytest.mark.contract("H3")
@in_turns(("value", "layout"), SCALARS, helpers.MAIN_LAYOUTS, times=2)
def test_scalar_results(value: Any, layout: helpers.Layout) -> None:
    """Python scalars and NumPy's 64-bit defaults are what JAX would make of them with x64 off."""
    dtype = jax.dtypes.canonicalize_dtype(np.asarray(value).dtype)
    program = lambda x: hcb.call(lambda _: value, x, result_shape=value)
    for out in layout.run(program, layout.same(np.float32(0))):
        helpers.equal(out, np.asarray(value, dtype), f"scalar result {value!r}")
    hcb.barrier_wait()


@pytest.mark.contract("H3")
def test_lists_are_trees_and_not_arrays() -> None:
    function = lambda x: {"a": [x, x + 1], "b": (x[:1], None), "c": []}
    shape = function(np.zeros(3, np.float32))
    out = jax.jit(lambda x: hcb.call(function, x, result_shape=shape))(np.ones(3, np.float32))
    helpers.equal(jax.tree.map(np.asarray, out), function(np.ones(3, np.float32)), "tree of lists")


IMPLEMENTATIONS = ["threefry2x32", "rbg", "unsafe_rbg"]


@pytest.mark.contract("H1", "H3")
@pytest.mark.parametrize("layout", [helpers.EAGER, helpers.JIT], ids=helpers.named)
@in_turns(("implementation", "shape"), IMPLEMENTATIONS, [(), (3,), (2, 2)])
def test_typed_keys(implementation: str, shape: tuple[int, ...], layout: helpers.Layout) -> None:
    """A typed key comes to the host as its words, is returned as the key, and can be a call's result."""
    key = jax.random.key(42, impl=implementation)
    keys = jax.random.split(key, shape) if shape else key
    words = np.asarray(jax.random.key_data(keys))
    record = Record()

    def program(k):
        k = hcb.id_tap(record.tap, k)
        shape = jax.ShapeDtypeStruct(k.shape, k.dtype)
        return hcb.call(record.caller(), k, result_shape=shape), hcb.pure_callback(record.caller(), shape, k), k

    outs = program(keys) if layout is helpers.EAGER else jax.jit(program)(keys)
    helpers.finish(outs)
    for out in outs:
        assert out.dtype == keys.dtype, f"dtype {out.dtype}, but should be {keys.dtype}"
        helpers.equal(np.asarray(jax.random.key_data(out)), words, "key that came back")
    for arg in record.args:
        helpers.equal(arg, words, "words of the key on the host")


@pytest.mark.contract("H1")
def test_typed_keys_under_transformations(devices: list[jax.Device]) -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    words = np.asarray(jax.random.key_data(keys))
    record = Record()
    tapped = lambda k: jax.random.uniform(hcb.id_tap(record.tap, k))
    wanted = np.asarray(jax.vmap(jax.random.uniform)(keys))
    np.testing.assert_array_equal(helpers.finish(jax.vmap(tapped)(keys)), wanted)
    helpers.equal(record.args[0], words, "batched keys")
    assert record.transforms == [(("batch", {"batch_dims": (0,)}),)], f"transforms: {record.transforms}"
    np.testing.assert_array_equal(helpers.finish(jax.pmap(tapped)(keys)), wanted)
    assert sorted(a.tolist() for a in record.args[1:]) == sorted(words.tolist()), "keys of the devices"
    del record.all[:]
    _, total = jax.lax.scan(lambda c, k: (c, tapped(k)), 0, keys)
    np.testing.assert_array_equal(helpers.finish(total), wanted)
    helpers.equal(np.stack(record.args), words, "keys in a scan")


@pytest.mark.contract("H1")
def test_weak_types_survive_a_tap() -> None:
    """The identity: what promoted like a Python scalar before the tap does so after it."""
    x = jnp.ones(3, jnp.bfloat16)
    plain = jax.jit(lambda s: s * x)(2.0)
    tapped = helpers.finish(jax.jit(lambda s: hcb.id_tap(lambda a, t: None, s) * x)(2.0))
    assert tapped.dtype == plain.dtype, f"dtype {tapped.dtype}, but without the tap it is {plain.dtype}"
    eager = hcb.id_tap(lambda a, t: None, 2.0) * x
    assert eager.dtype == (2.0 * x).dtype, f"eagerly: dtype {eager.dtype}"


IDENTITIES: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda value: hcb.id_tap(lambda *_: None, value),
    "id_print": lambda value: hcb.id_print(value, output_stream=io.StringIO()),
}
AROUND: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a constant": lambda tapped, x, number: jax.jit(lambda x: x * tapped(2))(x),
    "a tree": lambda tapped, x, number: x * tapped({"a": x, "b": number})["b"],
    "vmap": lambda tapped, x, number: jax.vmap(lambda x, n: x * tapped(n), (0, None))(x, number),
    "cond": lambda tapped, x, number: x * jax.lax.cond(number > 0, tapped, lambda n: n, number),
    "a jitted function": lambda tapped, x, number: x * jax.jit(tapped)(number),
}


@pytest.mark.contract("H1", "H2")
@pairwise(around=AROUND, name=("bfloat16", "float16", "int8"), kind=IDENTITIES)
def test_a_number_that_was_tapped_makes_no_array_wider(kind: str, around: str, name: str) -> None:
    x, number = jnp.ones(3, name), 2 if name == "int8" else 2.0
    run = jax.jit(lambda x, number: AROUND[around](IDENTITIES[kind], x, number))
    assert helpers.finish(run(x, number)).dtype == x.dtype
    # A number of NumPy has its own type.
    assert jax.eval_shape(lambda x: x * IDENTITIES[kind](np.float32(2)), x).dtype == (x * np.float32(2)).dtype


@pytest.mark.contract("H1", "H18")
@pytest.mark.parametrize("first", ["number", "key"])
def test_one_function_taps_a_number_and_a_typed_key(first: str) -> None:
    record = Record()
    operands = [np.float32(1), jax.random.key(7)][:: 1 if first == "number" else -1]
    helpers.finish(jax.jit(lambda *both: [hcb.id_tap(record.tap, each) for each in both])(*operands))
    seen = [(arg.dtype.name, arg.shape) for arg in record.args]
    assert seen == [("float32", ()), ("uint32", (2,))][:: 1 if first == "number" else -1]


@pytest.mark.contract("H3")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("typed", [False, True], ids=["words", "keys"])
def test_a_call_returns_keys_or_their_words(typed: bool, implementation: str) -> None:
    keys = jax.random.split(jax.random.key(7, impl=implementation), 3)

    def turned(words: Any) -> Any:
        return jax.random.wrap_key_data(words[::-1], impl=implementation) if typed else words[::-1].copy()

    result = jax.jit(lambda keys: hcb.call(turned, keys, result_shape=keys))(keys)
    assert result.dtype == keys.dtype
    helpers.equal(jax.random.key_data(result), jax.random.key_data(keys)[::-1], "keys")
