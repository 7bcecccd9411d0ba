"""X1, X2: `pure_callback` in every construct, batched in every way, refused where it has no meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import STAGES, Record, failed, like
from support.pairwise import in_turns

import hostcb as hcb

pytestmark = pytest.mark.contract("X2")

X = np.arange(8, dtype=np.float32)
SCALAR = jax.ShapeDtypeStruct((), np.float32)


class Pair(NamedTuple):
    left: Any
    right: Any


def sine(record: Record | None = None, **options: Any) -> Any:
    def host(x: Any) -> Any:
        if record is not None:
            record.add(x)
        return np.sin(x)

    return lambda x: hcb.pure_callback(host, like(x), x, **options)


# Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", helpers.LAYOUTS, ids=helpers.named)
def test_every_layout_gets_its_own_result(layout: helpers.Layout) -> None:
    values = [X + n for n in range(len(layout.callers))]
    outs = layout.run(lambda x: sine()(x) + 1, values)
    for value, out in zip(values, outs, strict=True):
        np.testing.assert_allclose(out, np.sin(value) + 1, rtol=1e-6)


@STAGES
def test_scalars_multiple_arguments_and_results(stage: Any) -> None:
    out = stage(lambda x: hcb.pure_callback(lambda x: x + np.float32(1), SCALAR, x))(np.float32(2))
    helpers.equal(out, np.float32(3), "a scalar")
    two = stage(lambda x, y: hcb.pure_callback(lambda x, y: (x + y, x.sum() > 0), (like(x), like(True)), x, y))
    helpers.equal(two(X, 2 * X), (3 * X, np.bool_(True)), "two arguments and two results")
    none = stage(lambda x: (hcb.pure_callback(lambda x: (), (), x), x))
    helpers.equal(none(X), ((), X), "no result")
    helpers.equal(
        stage(lambda: hcb.pure_callback(lambda: np.int32(7), like(np.int32(0))))(), np.int32(7), "no argument"
    )
    python = stage(lambda: hcb.pure_callback(lambda: 42.0, SCALAR))()  # guards against #20433: garbage from literals
    helpers.equal(python, np.float32(42), "a Python number for 32 bits")


@STAGES
def test_pytrees_and_keyword_arguments(stage: Any) -> None:
    given = []

    def host(first: Any, *rest: Any, scale: Any, extra: Any = None) -> Any:
        given.append(jax.tree.structure((first, rest, scale, extra)))
        return {"sum": first["a"] + rest[0][1], "pair": Pair(scale * 2, [extra.right])}

    def program(x):
        args = {"a": x, "b": None}, (x, x + 1)
        shapes = {"sum": like(x), "pair": Pair(like(x), [like(np.int32(0))])}
        return hcb.pure_callback(host, shapes, *args, scale=x, extra=Pair((), jnp.int32(5)))

    expected = {"sum": 2 * X + 1, "pair": Pair(2 * X, [np.int32(5)])}
    helpers.equal(stage(program)(X), expected, "result tree")
    assert given == [jax.tree.structure(({"a": 0, "b": None}, ((0, 0),), 0, Pair((), 0)))], f"argument trees: {given}"


@STAGES
def test_other_containers_with_the_same_leaves_are_accepted(stage: Any) -> None:
    """As in JAX: a list for a tuple, a tuple of one for its item; the result comes in the tree that was asked for."""
    out = stage(lambda x: hcb.pure_callback(lambda x: [x, (x + 1,)], (like(x), like(x)), x))(X)
    helpers.equal(out, (X, X + 1), "lists in place of tuples")
    helpers.equal(stage(lambda x: hcb.pure_callback(lambda x: (x,), like(x), x))(X), X, "a tuple of one")
    out = stage(lambda x: hcb.pure_callback(lambda x: Pair(x, -x), (like(x), like(x)), x))(X)
    helpers.equal(out, (X, -X), "a named tuple in place of a tuple")


# Not pmap, whose empty results JAX 0.10.2 itself cannot put together.
@pytest.mark.parametrize("layout", [helpers.EAGER, helpers.JIT, helpers.SHARD_MAP, helpers.MESH], ids=helpers.named)
def test_zero_sizes_go_in_and_come_out(layout: helpers.Layout) -> None:
    """Guards against #6262: empty arrays once crashed."""
    shape = jax.ShapeDtypeStruct((2, 0), np.float32)
    outs = layout.run(lambda x: hcb.pure_callback(lambda x: x.reshape(2, 0), shape, x[:0]), layout.same(X))
    for out in outs:
        helpers.equal(out, np.zeros((2, 0), np.float32), "empty")


@STAGES
def test_numpy_64_bit_results_are_narrowed_but_never_wrap_round(stage: Any) -> None:
    """With x64 off; JAX's own wraps: 2**40 + 5 would come back as 5."""
    out = stage(lambda x: hcb.pure_callback(lambda x: x.astype(np.float64) / 3, like(x), x))(X)
    helpers.equal(out, (X.astype(np.float64) / 3).astype(np.float32), "float64 for float32")
    wraps = stage(lambda: hcb.pure_callback(lambda: np.int64(2**40 + 5), like(np.int32(0))))
    failed("dtype for return value #0: Expected: int32, Actual: int64", wraps)


def custom_derivatives(x: Any, f: Any) -> Any:
    one, two = jax.custom_jvp(f), jax.custom_vjp(f)
    one.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    two.defvjp(lambda y: (f(y), None), lambda _, ct: (ct,))
    return one(x) + two(x)


CONSTRUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "cond": lambda x, f: lax.cond(jnp.sum(x) > -1, lambda y: f(y), lambda y: -f(y), x),
    "while_body": lambda x, f: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, f(s[1])), (0, x))[1],
    "while_condition": lambda x, f: lax.while_loop(lambda s: jnp.sum(jnp.abs(f(s))) > 0.5, lambda s: s / 2, x),
    "fori": lambda x, f: lax.fori_loop(0, 3, lambda i, y: f(y) + i, x),
    "scan": lambda x, f: lax.scan(lambda c, y: (f(c) + y, f(y)), x[:1], x),
    "scan_of_scalars": lambda x, f: lax.scan(lambda c, y: (c + y, f(c)), jnp.float32(0), x)[1],
    "switch": lambda x, f: lax.switch(jnp.int32(jnp.sum(x) > -1) + 1, [lambda y: y, lambda y: -y, f], x),
    "nested_jit": lambda x, f: jax.jit(lambda y: jax.jit(f)(y) + f(y))(x),
    "checkpoint": lambda x, f: jax.checkpoint(f)(x),
}
WITH_DERIVATIVES = {**CONSTRUCTS, "custom_derivatives": custom_derivatives}


def close(actual: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected)


@pytest.mark.contract("X1")
@in_turns(("construct", "layout"), WITH_DERIVATIVES, helpers.MAIN_LAYOUTS, times=2)
def test_result_is_that_of_the_same_program_without_callbacks(construct: str, layout: helpers.Layout) -> None:
    program = WITH_DERIVATIVES[construct]
    plain = layout.run(lambda x: program(x, jnp.sin), layout.same(X / 8))
    close(layout.run(lambda x: program(x, sine()), layout.same(X / 8)), plain)


@pytest.mark.contract("X1")
def test_unused_results_mean_no_call() -> None:
    record = Record()
    f = sine(record)
    jax.jit(lambda x: (f(x), x + 1)[1])(X)
    jax.jit(lambda x: lax.scan(lambda c, y: ((f(y), c + 1)[1], None), x, x)[0])(X)
    jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: (f(c), c + 1)[1], x))(X)
    jax.jit(jax.vmap(lambda x: (sine(record, vmap_method="sequential")(x), x)[1]))(X)
    hcb.barrier_wait()
    assert record.all == [], f"unused pure callbacks ran: {record.values}"
    jax.block_until_ready(jax.jit(f)(X))
    assert len(record.all) == 1, "the control, which is used, should run once"


# vmap ------------------------------------------------------------------------------------------------------------

SHAPES = {
    # For a batched operand of shape (3, 2) and one of shape (2,) that is not batched.
    "sequential": [((2,), (2,))] * 3,
    "sequential_unrolled": [((2,), (2,))] * 3,
    "expand_dims": [((3, 2), (1, 2))],
    "broadcast_all": [((3, 2), (3, 2))],
    "legacy_vectorized": [((3, 2), (2,))],
}
METHODS = pytest.mark.parametrize("method", SHAPES)


@STAGES
@METHODS
def test_vmap_method_says_what_the_callback_sees(method: str, stage: Any) -> None:
    shapes: list[Any] = []

    def host(x: Any, y: Any) -> Any:
        shapes.append((x.shape, y.shape))
        return x * y

    a, b = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([10, 100], np.float32)
    f = lambda x, y: hcb.pure_callback(host, like(x), x, y, vmap_method=method)
    helpers.equal(stage(jax.vmap(f, (0, None)))(a, b), a * b, method)
    assert shapes == SHAPES[method], f"shapes seen: {shapes}"


@in_turns(("method", "axes"), SHAPES, [(0, 0), (1, 0), (0, 1), (1, None), (None, 1), (-1, 0)], times=4)
def test_vmap_of_other_axes(method: str, axes: Any) -> None:
    """Guards against #19978: a wrong size under in_axes=1."""
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    y = -(np.arange(9, dtype=np.float32).reshape(3, 3) ** 2)
    f = lambda x, y: hcb.pure_callback(lambda x, y: x - 2 * y, like(x), x, y, vmap_method=method)
    x, y = (a[:, 0] if axis is None else a for a, axis in zip((x, y), axes, strict=True))
    expected = jax.vmap(lambda x, y: x - 2 * y, axes, 1)(x, y)
    helpers.equal(jax.jit(jax.vmap(f, axes, 1))(x, y), expected, f"{method} {axes}")


@METHODS
def test_nested_vmap_pytrees_and_results_of_other_shapes(method: str) -> None:
    def host(tree: Any) -> Any:
        x, y = np.broadcast_arrays(tree["x"], tree["y"])
        return {"sum": x + y, "two": np.stack([x, y], -1)}

    def f(x, y):
        shapes = {"sum": SCALAR, "two": jax.ShapeDtypeStruct((2,), np.float32)}
        return hcb.pure_callback(host, shapes, {"x": x, "y": y}, vmap_method=method)

    def plain(x, y):
        return {"sum": x + y, "two": jnp.stack([x, y])}

    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(2, 3) + 10
    nested = lambda f: jax.vmap(jax.vmap(f))(a, b)
    helpers.equal(nested(f), jax.tree.map(np.asarray, nested(plain)), "vmap of vmap")


@in_turns(("construct", "method"), CONSTRUCTS, ["sequential", "broadcast_all"])
def test_vmap_of_every_construct(construct: str, method: str) -> None:
    values = np.stack([X, X + 1, -X - 2]) / 8
    expected = jax.vmap(lambda x: CONSTRUCTS[construct](x, jnp.sin))(values)
    close(jax.jit(jax.vmap(lambda x: CONSTRUCTS[construct](x, sine(vmap_method=method))))(values), expected)


@METHODS
def test_vmap_of_no_elements(method: str) -> None:
    out = jax.jit(jax.vmap(sine(vmap_method=method)))(np.zeros((0, 2), np.float32))
    assert out.shape == (0, 2), f"shape {out.shape}"


@STAGES
def test_vmap_without_a_method_is_refused(stage: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"vmap is only supported .* when vmap_method is one of .*None"):
        stage(jax.vmap(sine()))(X)
    with pytest.raises(ValueError, match=r"vmap_method must be one of the allowed methods.*'vectorized'"):
        sine(vmap_method="vectorized")(X)


def test_function_that_cannot_be_batched_as_promised_fails_with_words() -> None:
    f = lambda x: hcb.pure_callback(lambda x: np.sum(x, keepdims=False), SCALAR, x, vmap_method="expand_dims")
    failed(r"shape for return value #0: Expected: \(8,\), Actual: \(\)", jax.jit(jax.vmap(f)), X)


def test_pmap_of_vmap_and_vmap_of_shard_map(devices: list[jax.Device]) -> None:
    values = np.arange(24, dtype=np.float32).reshape(8, 3)
    out = jax.pmap(jax.vmap(sine(vmap_method="expand_dims")))(values)
    np.testing.assert_allclose(out, np.sin(values), rtol=1e-6)
    mapped = helpers.shard_map(sine(vmap_method="sequential"), helpers.mesh_of(devices))
    np.testing.assert_allclose(jax.jit(jax.vmap(mapped, 1, 1))(values), np.sin(values), rtol=1e-6)


# Differentiation -------------------------------------------------------------------------------------------------

DERIVATIVES = {
    "jvp": lambda f: jax.jvp(f, (X,), (X,)),
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "vjp": lambda f: jax.vjp(f, X),
    "linearize": lambda f: jax.linearize(f, X),
    "jacfwd": lambda f: jax.jacfwd(f)(X),
    "scan": lambda f: jax.grad(lambda x: lax.scan(lambda c, y: (c + f(y), None), 0.0, x)[0])(X),
    "checkpoint": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x).sum())(X),
}


@pytest.mark.contract("X1")
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_derivatives_are_refused_and_the_way_out_is_named(derivative: str) -> None:
    record = Record()
    for stage in (jax.jit, lambda f: f):
        with pytest.raises(ValueError, match=r"Pure callbacks do not support JVP.*jax\.custom_jvp"):
            DERIVATIVES[derivative](stage(sine(record)))
    assert record.all == [], "it should be refused before anything runs"


def test_transpose_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Pure callbacks do not support transpose.*jax\.custom_vjp"):
        jax.linear_transpose(sine(), X)(X)


def test_values_that_are_not_differentiated_are_fine() -> None:
    f = lambda x: jnp.sum(x * sine()(lax.stop_gradient(x)))
    np.testing.assert_allclose(jax.jit(jax.grad(f))(X), np.sin(X), rtol=1e-6)
    g = lambda x, y: jnp.sum(x * sine()(y))
    np.testing.assert_allclose(jax.grad(g)(X, X + 1), np.sin(X + 1), rtol=1e-6)


WRONG: dict[str, tuple[Any, Any, str]] = {
    "too_many": (lambda x: (x, x), like(X), "Mismatched number of outputs.*Expected: 1, Actual: 2"),
    "none": (lambda x: None, like(X), "Mismatched number of outputs.*Expected: 1, Actual: 0"),
    "too_few": (lambda x: x, (like(X), like(X)), "Mismatched number of outputs.*Expected: 2, Actual: 1"),
    "keys": (lambda x: {"b": x}, {"a": like(X)}, "Expected: 1 with the keys a, Actual: 1 with the keys b"),
    "nested": (
        lambda x: [{"a": {"x": x}}, x],
        [{"a": {"y": like(X)}}, like(X)],
        "keys a.y, none, Actual: 2 .* a.x, none",
    ),
    "shape": (lambda x: x[:3], like(X), r"output shape for return value #0: Expected: \(8,\), Actual: \(3,\)"),
    "broadcastable": (lambda x: x[:1], like(X), r"Expected: \(8,\), Actual: \(1,\)"),
    "same_size": (lambda x: x.reshape(2, 4), like(X), r"Expected: \(8,\), Actual: \(2, 4\)"),
    "second": (lambda x: (x, x[:2]), (like(X), like(X)), r"return value #1: Expected: \(8,\), Actual: \(2,\)"),
    "dtype": (lambda x: x.astype(np.int32), like(X), "output dtype.*#0: Expected: float32, Actual: int32"),
    "half": (lambda x: x.astype(np.float16), like(X), "Expected: float32, Actual: float16"),
    "bool": (lambda x: x > 0, jax.ShapeDtypeStruct((8,), np.int8), "Expected: int8, Actual: bool"),
    "object": (lambda x: np.array([object()] * 8), like(X), "dtype object"),
    "text": (lambda x: "abc", like(X), "returned 'abc' of <class 'str'>"),
    "texts": (lambda x: np.array(["abc"] * 8), like(X), "dtype <U3"),
    "masked": (lambda x: np.ma.masked_less(x, 3), like(X), "masked array"),
    "arguments": (lambda x, y: x, like(X), "missing 1 required positional argument"),
}


@in_turns(("what", "layout"), WRONG, [helpers.EAGER, helpers.JIT, helpers.MESH])
def test_wrong_results_are_errors_that_show_the_actual_ones(what: str, layout: helpers.Layout) -> None:
    function, shapes, match = WRONG[what]
    error = failed(match, layout.compile(lambda x: hcb.pure_callback(function, shapes, x)), [X])
    for part in ("pure_callback", "test_pure_callback.py", "int8[8]" if what == "bool" else "float32[8]"):
        assert part in str(error), f"{part!r} should be in {error}"


@pytest.mark.contract("X2", "B4")
@pytest.mark.parametrize("kind", ["pure", "buffer", "dlpack"])
def test_without_a_side_effect_the_program_has_none(kind: str) -> None:
    """So JAX may drop, repeat and move it."""
    like = jax.ShapeDtypeStruct((), np.float32)
    ways = {
        "pure": lambda x: hcb.pure_callback(np.abs, like, x),
        "buffer": lambda x: hcb.buffer_callback(lambda ctx, out, x: None, like)(x),
        "dlpack": lambda x: hcb.dlpack_callback(np.abs, like)(x),
    }
    assert not jax.make_jaxpr(ways[kind])(np.float32(1)).effects
