"""`input_output_aliases` (B3): which leaves its numbers mean, and what is refused."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import STAGES

import hostcb as hcb

pytestmark = pytest.mark.contract("B3")

VECTOR = jax.ShapeDtypeStruct((3,), np.float32)
X, Y = np.arange(3, dtype=np.float32), np.float32(100) * np.arange(3, dtype=np.float32)
# As the tangent of an integer is: a leaf without a value, which does not travel.
NOTHING = np.zeros(2, jax.dtypes.float0)


def buffers(function: Callable[..., None], shapes: Any, **options: Any) -> Any:
    return hcb.buffer_callback(lambda ctx, out, *args, **named: function(out, *args, **named), shapes, **options)


def lent(function: Callable[..., None], shapes: Any, **options: Any) -> Any:
    return hcb.dlpack_callback(function, shapes, in_place=True, **options)


def add_one(out: Any, *_: Any, **__: Any) -> None:
    np.asarray(out)[...] += 1


MAKERS = pytest.mark.parametrize("make", [buffers, lent], ids=["buffer_callback", "dlpack_callback"])


@MAKERS
@STAGES
@pytest.mark.parametrize("effect", [False, True], ids=["pure", "effect"])
def test_aliases_count_leaves_that_do_not_travel(make: Any, stage: Any, effect: bool) -> None:
    f = make(add_one, VECTOR, input_output_aliases={1: 0}, has_side_effect=effect)
    np.testing.assert_array_equal(stage(lambda x, y: f(NOTHING, x, y))(X, Y), X + 1)
    # There is an operand number 1 without the float0 leaf too, so only the numbering tells them apart.
    np.testing.assert_array_equal(stage(lambda x: f(NOTHING, x))(X), X + 1)


@MAKERS
@STAGES
def test_several_aliases_among_leaves_that_do_not_travel(make: Any, stage: Any) -> None:
    def change(out: Any, *_: Any) -> None:
        for value, buffer in enumerate(out, 1):
            np.asarray(buffer)[...] += value

    f = make(change, (VECTOR, VECTOR), input_output_aliases={1: 1, 4: 0})
    first, second = stage(lambda x, y: f(NOTHING, x, NOTHING, {"a": 7 * x, "b": y}))(X, Y)
    np.testing.assert_array_equal(first, Y + 1)
    np.testing.assert_array_equal(second, X + 2)


@MAKERS
@STAGES
def test_keyword_arguments_are_counted_by_name_after_the_others(make: Any, stage: Any) -> None:
    f = make(add_one, VECTOR, input_output_aliases={2: 0})
    np.testing.assert_array_equal(stage(lambda x, y: f(y, b=x, a=NOTHING))(X, Y), X + 1)


@MAKERS
def test_typed_keys_after_a_leaf_that_does_not_travel(make: Any) -> None:
    keys = jax.random.split(jax.random.key(3), 3)
    shape = jax.ShapeDtypeStruct(keys.shape, keys.dtype)

    def change(out: Any, *_: Any) -> None:
        np.asarray(out)[..., 0] += 1

    f = make(change, shape, input_output_aliases={2: 0})
    words = jax.random.key_data(jax.jit(lambda k, x: f(x, NOTHING, k))(keys, X))
    np.testing.assert_array_equal(words, np.asarray(jax.random.key_data(keys)) + np.array([1, 0], np.uint32))


@pytest.mark.contract("B4")
@MAKERS
@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all"])
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_after_a_leaf_that_does_not_travel(make: Any, method: str, axes: Any) -> None:
    f = make(add_one, VECTOR, input_output_aliases={1: 0}, vmap_method=method)
    x, y = (np.stack([each, each + 5]) if axis == 0 else each for each, axis in zip((X, Y), axes, strict=True))
    out = jax.jit(jax.vmap(lambda x, y: f(NOTHING, x, y), in_axes=axes))(x, y)
    np.testing.assert_array_equal(out, np.broadcast_to(x, (2, 3)) + 1)


@MAKERS
@STAGES
def test_an_alias_of_what_does_not_travel_is_refused(make: Any, stage: Any) -> None:
    f = make(add_one, VECTOR, input_output_aliases={0: 0})
    with pytest.raises(ValueError, match=r"'0:0'.*float0"):
        stage(lambda x: f(NOTHING, x))(X)
    empty = make(add_one, jax.ShapeDtypeStruct((2,), np.bool_), input_output_aliases={0: 0})
    with pytest.raises(ValueError, match=r"'0:0'.*float0"):
        stage(lambda x: empty(NOTHING, x))(X)


@MAKERS
def test_in_a_derivative_with_integer_operands(make: Any) -> None:
    """There float0 comes by itself: as the tangent of what is no float."""

    @jax.custom_jvp
    def f(n: Any, x: Any) -> Any:
        return x * n

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        change = make(add_one, VECTOR, input_output_aliases={1: 0}, vmap_method="sequential")
        return f(*primals), jax.lax.stop_gradient(change(tangents[0], tangents[1], Y))

    _, tangent = jax.jvp(f, (2, X), (np.zeros((), jax.dtypes.float0), 3 * X))
    np.testing.assert_array_equal(tangent, 3 * X + 1)


@MAKERS
@pytest.mark.parametrize(
    "aliases",
    [{np.int64(1): np.uint8(0)}, {jnp.int32(1).item(): 0}, {True: False}, types.MappingProxyType({1: 0})],
    ids=["numpy", "item", "bool", "mapping"],
)
def test_integers_of_every_type_and_mappings(make: Any, aliases: Any) -> None:
    f = make(add_one, VECTOR, input_output_aliases=aliases)
    np.testing.assert_array_equal(f(Y, X), X + 1)


@MAKERS
@pytest.mark.parametrize(
    ("aliases", "error", "match"),
    [
        ({-1: 0}, ValueError, r"input index -1 outside the range \[0, 2\)"),
        ({0: -1}, ValueError, r"output index -1 outside the range \[0, 1\)"),
        ({2: 0}, ValueError, r"input index 2 outside the range \[0, 2\)"),
        ({0.5: 0}, TypeError, "must map integers to integers"),
        ({"0": 0}, TypeError, "must map integers to integers"),
        ({0: None}, TypeError, "must map integers to integers"),
        ([(0, 0)], TypeError, "must be a dict"),
        (1, TypeError, "must be a dict"),
    ],
    ids=str,
)
def test_what_names_no_leaf_is_refused(make: Any, aliases: Any, error: Any, match: str) -> None:
    f = make(add_one, VECTOR, input_output_aliases=aliases)
    with pytest.raises(error, match="input_output_aliases.*" + match):
        f(X, Y)


@MAKERS
def test_an_aliased_leaf_that_is_no_value_is_named(make: Any) -> None:
    f = make(add_one, VECTOR, input_output_aliases={0: 0})
    with pytest.raises(TypeError, match="'text'"):
        f("text")


RETURNS = {
    "swapped": (lambda a, b: (np.from_dlpack(b), np.from_dlpack(a)), (Y, X)),
    "as they are lent": (lambda a, b: (b, a), (Y, X)),
    "parts": (lambda a, b: (np.from_dlpack(b)[::-1], np.from_dlpack(a)[::-1]), (Y[::-1], X[::-1])),
    "one after another": (lambda a, b: (np.from_dlpack(a) - 1, np.from_dlpack(a)), (X - 1, X)),
    "in place": (lambda a, b: (np.from_dlpack(a), np.from_dlpack(b)), (X, Y)),
}


@pytest.mark.contract("D1")
@pytest.mark.parametrize("aliases", [{0: 0, 1: 1}, None], ids=["shared", "apart"])
@pytest.mark.parametrize("what", RETURNS)
@STAGES
def test_returned_operands_that_share_their_memory_with_results(what: str, aliases: Any, stage: Any) -> None:
    function, expected = RETURNS[what]
    f = hcb.dlpack_callback(function, (VECTOR, VECTOR), input_output_aliases=aliases)
    np.testing.assert_array_equal(jnp.stack(stage(f)(jnp.array(X), jnp.array(Y))), np.stack(expected))


@pytest.mark.contract("B3", "H18")
@pytest.mark.parametrize("order", [1, -1], ids=["most first", "none first"])
def test_one_function_with_several_aliases_shares_what_each_says(order: int) -> None:
    shared: list[list[bool]] = []
    aliases = [{0: 0, 1: 1}, {0: 0}, {1: 1}, {}][::order]

    def add_one(context: Any, out: Any, *operands: Any) -> None:
        arrays = [(np.asarray(one), np.asarray(other)) for one, other in zip(out, operands, strict=True)]
        shared.append([np.shares_memory(*pair) for pair in arrays])
        for result, operand in arrays:
            np.add(operand, 1, out=result)

    def program(x: Any, y: Any) -> Any:
        for each in aliases:
            x, y = hcb.buffer_callback(add_one, (VECTOR, VECTOR), input_output_aliases=each)(x * 2, y * 2)
        return x, y

    jax.block_until_ready(jax.jit(program)(X, Y))
    assert shared == [[number in each for number in (0, 1)] for each in aliases]
