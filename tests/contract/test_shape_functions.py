"""X7: the results' shapes as a function of the arguments' shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.first_lines import name_of
from support.helpers import STAGES

import hostcb as hcb

pytestmark = pytest.mark.contract("X7")

X = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)

EXTERNAL: dict[str, Callable[..., Any]] = {
    "pure": hcb.pure_callback,
    "io": hcb.io_callback,
    "ordered_io": lambda *args, **kwargs: hcb.io_callback(*args, ordered=True, **kwargs),
}


def row_sums(x: Any, scale: float = 1.0) -> Any:
    return np.float32(scale) * np.sum(x, axis=-1)


def without_last(x: Any, **_: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape[:-1], x.dtype)


@STAGES
@pytest.mark.parametrize("kind", [*EXTERNAL, "call"])
def test_the_shapes_of_results_follow_those_of_the_operands(kind: str, stage: Any) -> None:
    def program(x: Any) -> Any:
        if kind == "call":
            return hcb.call(row_sums, x, result_shape=without_last)
        return EXTERNAL[kind](row_sums, without_last, x, scale=2.0)

    for x in (X, X[0], X[:0]):
        expected = row_sums(np.asarray(x), 1.0 if kind == "call" else 2.0)
        np.testing.assert_array_equal(stage(program)(x), expected)


@STAGES
def test_the_arguments_have_the_trees_and_keywords_of_the_function(stage: Any) -> None:
    described: list[Any] = []

    def shapes(pair: Any, *, text: str, key: Any, without_value: Any) -> Any:
        described.append((pair, text, key, without_value))
        return {"sum": pair["a"]}

    def function(pair: Any, *, text: str, key: Any, without_value: Any) -> Any:
        described.append(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (pair, key, without_value)))
        return {"sum": pair["a"] + pair["b"]}

    def program(a: Any, key: Any) -> Any:
        tangent = np.zeros(2, jax.dtypes.float0)
        return hcb.pure_callback(function, shapes, {"a": a, "b": 1.0}, text="words", key=key, without_value=tangent)

    out = stage(program)(X, jax.random.key(0))
    np.testing.assert_array_equal(out["sum"], X + 1)
    (pair, text, key, without_value), *seen = described
    assert text == "words"
    assert all(each == (pair, key, without_value) for each in seen) and seen
    assert pair == {"a": jax.ShapeDtypeStruct(X.shape, jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.float32)}


def test_a_call_gives_its_one_argument() -> None:
    def function(given: Any) -> Any:
        return given[0].sum(), given[1] + 1

    out = hcb.call(function, (X, jnp.int8(3)), result_shape=lambda given: (0.0, given[1]))
    assert float(out[0]) == float(X.sum())
    assert out[1].dtype == jnp.int8 and int(out[1]) == 4


@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all"])
def test_vmap_gives_the_shapes_of_one_element(method: Any) -> None:
    described: list[Any] = []

    def shapes(x: Any) -> Any:
        described.append(x.shape)
        return without_last(x)

    f = jax.vmap(lambda x: hcb.pure_callback(row_sums, shapes, x, vmap_method=method))
    np.testing.assert_array_equal(jax.jit(f)(jnp.stack([X, 2 * X])), row_sums(np.stack([X, 2 * np.asarray(X)])))
    g = jax.vmap(lambda x: hcb.call(row_sums, x, result_shape=shapes, vmap_method=method))
    np.testing.assert_array_equal(g(jnp.stack([X, X])), row_sums(np.stack([X, X])))
    assert set(described) == {X.shape}


def test_a_wide_operand_has_the_dtype_of_the_program() -> None:
    """With x64 off, NumPy's default of 64 bits would ask for a result that the program cannot have."""
    seen: list[Any] = []

    def same(x: Any) -> Any:
        seen.append(x.dtype)
        return x

    out = hcb.pure_callback(same, lambda x: x, np.arange(3.0))
    assert out.dtype == jnp.float32 and seen == [np.float64]
    with jax.enable_x64(True):
        assert hcb.pure_callback(same, lambda x: x, np.arange(3.0)).dtype == jnp.float64


def raising(x: Any) -> Any:
    return x.nowhere


@pytest.mark.contract("H32")
@STAGES
@pytest.mark.parametrize("kind", ["pure_callback", "io_callback", "call", "dlpack_callback"])
def test_an_error_of_the_function_of_shapes_has_a_note(kind: str, stage: Any) -> None:
    programs: dict[str, Callable[[Any], Any]] = {
        "pure_callback": lambda x: hcb.pure_callback(row_sums, raising, x),
        "io_callback": lambda x: hcb.io_callback(row_sums, raising, x),
        "call": lambda x: hcb.call(row_sums, x, result_shape=raising),
        "dlpack_callback": lambda x: hcb.dlpack_callback(row_sums, raising)(x),
    }
    with pytest.raises(AttributeError, match="nowhere") as caught:
        stage(programs[kind])(X)
    (note,) = [each for each in caught.value.__notes__ if each.startswith(f"{kind}: ")]
    assert note.startswith(
        f"{kind}: {name_of(row_sums)}: the function of its results' shapes, {name_of(raising)}, raised AttributeError: "
    )
    assert note.endswith(
        "It gets each array as a jax.ShapeDtypeStruct, which has a shape and a dtype and no value, in the arguments of "
        "the callback's function."
    )
    frames = [each.name for each in caught.traceback]
    assert frames[-1] == "raising"


def test_what_the_function_returns_is_checked_as_any_description() -> None:
    with pytest.raises(ValueError, match=r"^pure_callback: .* result_shape_dtypes=\(3, 4\) does not describe a result"):
        hcb.pure_callback(row_sums, lambda x: x.shape, X)
    with pytest.raises(ValueError, match="looks like a dtype"):
        hcb.call(row_sums, X, result_shape=jnp.float32)


@pytest.mark.contract("H27")
def test_jax_has_no_such_functions() -> None:
    own = jax.pure_callback
    with pytest.raises(Exception) as jaxs:
        own(row_sums, without_last, X)
    with hcb.installed(), pytest.raises(ValueError, match="does not describe a result"):
        own(row_sums, without_last, X)
    assert not isinstance(jaxs.value, AssertionError)


@pytest.mark.contract("H18")
def test_a_function_of_shapes_is_no_part_of_the_program() -> None:
    """Two that describe the same make one program."""
    traced = [
        jax.make_jaxpr(lambda x, shapes=shapes: hcb.pure_callback(row_sums, shapes, x))(X)
        for shapes in (without_last, lambda x: jax.ShapeDtypeStruct((3,), jnp.float32))
    ]
    (first,), (second,) = (each.jaxpr.eqns for each in traced)
    assert first.params == second.params
