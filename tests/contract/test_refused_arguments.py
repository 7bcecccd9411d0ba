"""Arguments that are wrong, or nearly right, are refused with words while a program is traced, and outside jit."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from support.helpers import mesh_of, shard_map
from support.pairwise import in_turns

import hostcb as hcb
from hostcb import debug

WAYS = pytest.mark.parametrize("way", [jax.jit, jax.make_jaxpr, lambda f: f], ids=["jit", "traced", "eager"])
X = jnp.arange(3, dtype=jnp.float32)
ONE = jax.ShapeDtypeStruct((3,), np.float32)
FEW_BITS = jax.ShapeDtypeStruct((3,), jnp.int4)
ALIASES = "input_output_aliases"
WITHOUT_VALUES = jax.ShapeDtypeStruct((3,), jax.dtypes.float0)

Refusals = dict[str, tuple[Callable[[Any], Any], type[Exception] | tuple[type[Exception], ...], str]]
"""A program, the type of its error, and a word of the error's text."""


def never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a callback ran, and its program should have been refused")


async def later(*args: Any) -> None:
    """It returns a coroutine."""


async def generated_later(*args: Any) -> Any:
    yield args


def generated(*args: Any) -> Any:
    yield args


class Later:
    async def write(self, *args: Any) -> None:
        """It returns a coroutine."""

    async def __call__(self, *args: Any) -> None:
        """So does this."""


class Described:
    """What describes a result by two attributes, as an object of another library does."""

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)


class Closed:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("it is closed")

    def __repr__(self) -> str:
        raise RuntimeError("it is closed")


def lowered(program: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.jit(program).lower(x)


LATE = {"no device of the mesh", "no device", "reduction", "pure, reduction"}
"""What is known when the program is lowered: its devices, and the primitive that holds the callback."""


def check(refusals: Refusals, name: str, way: Any) -> None:
    program, error, word = refusals[name]
    if name in LATE and way is jax.make_jaxpr:
        way = lowered
    with pytest.raises(error) as caught:
        jax.block_until_ready(way(program)(X))
    assert word in str(caught.value)
    hcb.barrier_wait()


WRAPPED: dict[str, Callable[..., Any]] = {
    "coroutine": later,
    "method": Later().write,
    "wrapped": functools.partial(later),
    "wrapped twice": functools.partial(functools.partial(later, 1), 2),
    "method, wrapped": functools.partial(Later().write),
    "bound and wrapped": functools.partial(types.MethodType(later, 1)),
    "wrapped and bound": types.MethodType(functools.partial(later), 1),
    "object": Later(),
    "object, wrapped": functools.partial(Later()),
}


def of_mesh(x: Any) -> Any:
    mesh = mesh_of(jax.devices()[:2], "d")
    tap = lambda x: hcb.id_tap(never, x, device_index=2)
    return shard_map(tap, mesh, PartitionSpec(), PartitionSpec())(x)


TAPS: Refusals = {
    "number": (lambda x: hcb.id_tap(3, x), TypeError, "tap_func"),
    **{name: (functools.partial(hcb.id_tap, function), TypeError, "coroutine") for name, function in WRAPPED.items()},
    "generator": (lambda x: hcb.id_tap(generated, x), TypeError, "generator"),
    "asynchronous generator": (lambda x: hcb.id_tap(generated_later, x), TypeError, "generator"),
    "array of texts": (lambda x: hcb.id_tap(never, (x, np.array(["text"]))), TypeError, "id_tap"),
    "no device of the mesh": (of_mesh, ValueError, "device_index"),
    "no argument": (lambda x: hcb.id_tap(never, x, devices=0), TypeError, "devices"),
    "too large": (lambda x: hcb.id_tap(never, (x, 2**70)), OverflowError, str(2**70)),
    "reduction": (
        lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: hcb.id_tap(never, a + b), (0,)),
        NotImplementedError,
        "reduce",
    ),
    "stream": (lambda x: hcb.id_print(x, output_stream=3), TypeError, "write"),
    "cannot be shown": (lambda x: hcb.id_tap(never, (x, Closed())), TypeError, "id_tap"),
    "operand of a call cannot be shown": (lambda x: hcb.call(never, (x, Closed())), TypeError, "call"),
    **{
        f"{function.__name__}, device {index!r}": (
            lambda x, function=function, index=index: function(never, x, device_index=index),
            TypeError,
            "device_index must be an integer",
        )
        for function in (hcb.id_tap, hcb.call)
        for index in (0.5, 0.0, "0", None)
    },
    "negative device": (lambda x: hcb.id_tap(never, x, device_index=-1), ValueError, "device_index"),
    "negative device of a call": (lambda x: hcb.call(never, x, device_index=-8), ValueError, "device_index"),
    "negative device of a print": (lambda x: hcb.id_print(x, device_index=-1), ValueError, "device_index"),
    "no device": (lambda x: hcb.id_tap(never, x, device_index=1000), (ValueError, IndexError), "device_index"),
}


@pytest.mark.contract("H1", "H10")
@WAYS
@pytest.mark.parametrize("name", TAPS)
def test_taps(name: str, way: Any) -> None:
    check(TAPS, name, way)


def looped(x: Any) -> Any:
    return jax.lax.fori_loop(0, 2, lambda _, y: hcb.call(never, y * x, result_shape=y), x).sum()


def shaped(shape: Any) -> Callable[[Any], Any]:
    return lambda x: hcb.call(never, x, result_shape=shape)


CALLS: Refusals = {
    "number": (lambda x: hcb.call(3, x, result_shape=x), TypeError, "callback_func"),
    "coroutine": (lambda x: hcb.call(later, x, result_shape=x), TypeError, "coroutine"),
    "text": (shaped("text"), ValueError, "='text' does not describe a result. It should"),
    "text in a tree": (shaped({"a": "text"}), ValueError, "does not describe a result, because of 'text'"),
    "type that is off": (shaped(Described((3,), "float64")), ValueError, "float64"),
    "io, type that is off": (lambda x: hcb.io_callback(never, np.zeros(3), x), ValueError, "64-bit types"),
    "pure, type that is off": (lambda x: hcb.pure_callback(never, np.zeros(3), x), ValueError, "float64"),
    "pure, described": (lambda x: hcb.pure_callback(never, Described((3,), "int64"), x), ValueError, "int64"),
    "pure, number": (lambda x: hcb.pure_callback(3, ONE, x), TypeError, "callable"),
    "io, text": (
        lambda x: hcb.io_callback("text", ONE, x),
        TypeError,
        "must be callable, got 'text'. The function comes first.",
    ),
    "debug, number": (lambda x: debug.callback(3, x), TypeError, "must be callable"),
    "pure, array of texts": (
        lambda x: hcb.pure_callback(never, ONE, np.array(["text"])),
        TypeError,
        "functools.partial",
    ),
    "io, array of objects": (
        lambda x: hcb.io_callback(never, ONE, x, k=np.array([None])),
        TypeError,
        "must be an array or a scalar",
    ),
    "date in a tree": (lambda x: hcb.call(never, {"x": x, "bad": np.array("2020", "M8[D]")}), TypeError, "call"),
    "dlpack, shapes": (lambda x: hcb.dlpack_callback(never, lambda x: "float32")(x), ValueError, "result_shape_dtypes"),
    "pure, generator": (lambda x: hcb.pure_callback(generated, ONE, x), TypeError, "generator"),
    "io, coroutine": (lambda x: hcb.io_callback(later, ONE, x), TypeError, "coroutine"),
    "debug, coroutine": (lambda x: debug.callback(later, x), TypeError, "coroutine"),
    "derivative": (
        lambda x: jax.grad(lambda y: hcb.call(never, y, result_shape=y).sum())(x),
        NotImplementedError,
        "differentiated",
    ),
    "derivative of a loop": (jax.grad(looped), NotImplementedError, "differentiated"),
    "pure, reduction": (
        lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: hcb.pure_callback(never, a, a, b), (0,)),
        NotImplementedError,
        "reduce",
    ),
    "jax_arrays, number": (lambda x: hcb.call(hcb.jax_arrays(3), x, result_shape=x), TypeError, "jax_arrays"),
    "jax_arrays, coroutine": (lambda x: hcb.call(hcb.jax_arrays(later), x, result_shape=x), TypeError, "coroutine"),
    "pure, sharding": (lambda x: hcb.pure_callback(never, ONE, x, sharding="cpu"), TypeError, "SingleDeviceSharding"),
    **{
        f"order {ordered!r} in a batch": (
            jax.vmap(lambda y, ordered=ordered: hcb.io_callback(never, None, y, ordered=ordered)),
            ValueError,
            "ordered",
        )
        for ordered in (np.bool_(True), 1)
    },
    "pure, method": (lambda x: hcb.pure_callback(never, ONE, x, vmap_method="any"), ValueError, "vmap_method"),
    "method": (jax.vmap(lambda y: hcb.call(never, y, result_shape=y, vmap_method="any")), ValueError, "vmap_method"),
}


@pytest.mark.contract("H3")
@WAYS
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, way: Any) -> None:
    check(CALLS, name, way)


SHAPES: dict[str, Any] = {
    "half an element": Described((2.5,), np.float32),
    "fraction": Described((2.0,), np.float32),
    "text as a size": Described(("2",), np.float32),
    "array without values": np.zeros(3, jax.dtypes.float0),
    "without values": WITHOUT_VALUES,
    "the second without values": (ONE, WITHOUT_VALUES),
    # A call takes a number as an example.
    "number": 0.0,
    "truth value": {"a": ONE, "b": True},
    "whole number": [3],
    "text": "text",
    "object": (ONE, object()),
    "class": np.float32,
    "no type": types.SimpleNamespace(shape=(2,)),
    "another type": types.SimpleNamespace(shape=(2,), dtype="no such type"),
    "text as a shape": types.SimpleNamespace(shape="12", dtype=np.dtype("float32")),
    "size below zero": jax.ShapeDtypeStruct((-1,), np.float32),
    "array of texts": np.zeros(2, "U1"),
    "type of the host": np.zeros(2, np.longdouble),
}
WITH_RESULTS: dict[str, Callable[[Any, Any], Any]] = {
    "call": lambda x, wanted: hcb.call(never, x, result_shape=wanted),
    "pure_callback": lambda x, wanted: hcb.pure_callback(never, wanted, x),
    "io_callback": lambda x, wanted: hcb.io_callback(never, wanted, x),
    "buffer_callback": lambda x, wanted: hcb.buffer_callback(never, wanted)(x),
    "dlpack_callback": lambda x, wanted: hcb.dlpack_callback(never, wanted)(x),
}


@pytest.mark.contract("H3", "X2", "X3", "B1", "D2")
@WAYS
@in_turns(("shape", "kind"), SHAPES, WITH_RESULTS, times=3)
def test_shapes(shape: str, kind: str, way: Any) -> None:
    if (kind == "call" and "number" in shape) or shape == "truth value":
        kind = "io_callback"
    program = lambda x: WITH_RESULTS[kind](x, SHAPES[shape])
    check({shape: (program, ValueError, "does not describe a result")}, shape, way)


@pytest.mark.contract("H32")
def test_a_traceback_names_no_private_class_for_a_shape_that_is_none() -> None:
    with pytest.raises(ValueError, match="does not describe a result") as caught:
        hcb.call(never, X, result_shape="text")
    assert type(caught.value) is ValueError


def with_ref(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(jax.new_ref(jnp.zeros(3)))


def refused_buffers(make: Any) -> Refusals:
    function = make(never, ONE)

    def aliased(aliases: Any, wanted: Any = ONE, operands: int = 1) -> Callable[[Any], Any]:
        return lambda x: make(never, wanted, input_output_aliases=aliases)(*[x] * operands)

    return {
        **{
            f"function that runs nothing, {number}": (
                lambda x, each=each: make(each, ONE)(x),
                TypeError,
                "runs nothing",
            )
            for number, each in enumerate((later, generated, generated_later, Later(), functools.partial(later, 1)))
        },
        "number for a function": (lambda x: make(3, ONE)(x), TypeError, "3"),
        "text as an operand": (lambda x: function("text"), TypeError, "'text'"),
        "ref": (with_ref(function), TypeError, "[...]"),
        "ref in a tree": (with_ref(lambda ref: function(1.0, {"a": [ref]})), TypeError, ""),
        "ref by name": (with_ref(lambda ref: function(1.0, state=ref)), TypeError, "[...]"),
        "int4": (lambda x: function(x.astype(jnp.int4)), TypeError, "int4"),
        "int4 by name": (lambda x: function(x, last=x.astype(jnp.int4)), TypeError, "int4"),
        **{
            f"int4 among results, {number}": (lambda x, wanted=wanted: make(never, wanted)(x), TypeError, "int4")
            for number, wanted in enumerate(((FEW_BITS, ONE), (ONE, FEW_BITS), {"a": ONE, "b": [ONE, FEW_BITS]}))
        },
        "derivative": (lambda x: jax.grad(lambda y: function(y).sum())(x), ValueError, "custom_jvp"),
        "method": (lambda x: make(never, ONE, vmap_method="vectorized")(x), ValueError, "vmap_method"),
        "method in a batch": (
            lambda x: jax.vmap(make(never, ONE, vmap_method="vectorized"))(jnp.stack([x, x])),
            ValueError,
            "vmap_method",
        ),
        "alias of no operand": (aliased({1: 0}), ValueError, "1"),
        "alias of no result": (aliased({0: 1}), ValueError, "1"),
        "alias of a negative operand": (aliased({-1: 0}), ValueError, "-1"),
        "alias of another shape": (aliased({0: 0}, jax.ShapeDtypeStruct((4,), np.float32)), ValueError, ALIASES),
        "alias of another type": (aliased({0: 0}, jax.ShapeDtypeStruct((3,), np.int32)), ValueError, ALIASES),
        **{
            f"aliases {aliases}": (aliased(aliases), TypeError, ALIASES)
            for aliases in ([(0, 0)], {"x": 0}, {0.5: 0}, {0.0: 0}, {"0": 0}, {0: 0.5}, {0: "0"}, {0: None})
        },
        "alias without a value": (
            lambda x: make(never, ONE, input_output_aliases={0: 0})(np.zeros(3, jax.dtypes.float0)),
            ValueError,
            "float0",
        ),
        "alias of a key and of its words": (
            lambda x: make(never, jax.ShapeDtypeStruct((2,), np.uint32), input_output_aliases={0: 0})(
                jax.random.key(0)
            ),
            ValueError,
            "key",
        ),
        **{
            f"two operands of one result, {aliases}": (
                aliased(aliases, (ONE, ONE), 3),
                ValueError,
                ALIASES,
            )
            for aliases in ({0: 0, 1: 1, 2: 0}, {0: 0, 1: 0}, {1: 0, 2: 0})
        },
    }


BUFFERS = {
    "buffer": refused_buffers(hcb.buffer_callback),
    "dlpack": refused_buffers(functools.partial(hcb.dlpack_callback, in_place=True)),
}


@pytest.mark.contract("B2", "B3", "B4")
@WAYS
@pytest.mark.parametrize("name", BUFFERS["buffer"])
@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers(kind: str, name: str, way: Any) -> None:
    check(BUFFERS[kind], name, way)


@pytest.mark.contract("H16")
@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("jax_host_callback_max_queue_byte_size", (-1, "many", 1.5), ("256e6", "256000000", 256e6, 0)),
        ("jax_host_callback_inline", ("maybe", 2), ("off", "0")),
        ("hostcb_switch_interval", (-1.0, 1e-9, float("inf"), float("nan"), "nan", "soon"), ("0.001", 0)),
    ],
)
def test_settings(name: str, wrong: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    for value in wrong:
        with pytest.raises(ValueError, match=f"(?i){name}"):
            jax.config.update(name, value)
    try:
        for value in right:
            jax.config.update(name, value)
    finally:
        jax.config.update(name, None)
