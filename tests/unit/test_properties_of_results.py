"""A result is accepted exactly if it is what was asked for: in tree, shapes, dtypes and, if narrowed, in value."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support import strategies

from hostcb._runtime.results import conform
from hostcb._spec.callback import HostCallback
from hostcb._spec.kinds import CALL, PURE

NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
"""What 64-bit types are without x64."""

NUMBERS = ("bool", "int8", "uint8", "int32", "uint32", "float16", "float32", "complex64", *NARROWED)
LIMITS = (-(2**63), -(2**31) - 1, -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1)


def callback_of(kind: Any, tree: Any) -> HostCallback:
    return HostCallback(kind, len, jax.tree.structure(()), result_tree=jax.tree.structure(tree))


def accepted(result: Any, kind: Any, tree: Any, avals: list[Any]) -> Any:
    """The arrays for the device, or None where the result is refused."""
    try:
        return conform(result, callback_of(kind, tree), avals)
    except TypeError:
        return None


@st.composite
def numbers(draw: st.DrawFn) -> np.ndarray:
    """An array of a type that NumPy has, some elements at the limits of 32 bits, in any order of bytes and memory."""
    dtype = np.dtype(draw(st.sampled_from(NUMBERS)))
    shape = draw(st.sampled_from([(), (1,), (2,), (2, 1), (0, 2)]))
    values = draw(st.lists(st.sampled_from(LIMITS), min_size=4, max_size=4))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = [max(limits.min, min(limits.max, value)) for value in values]
    elif dtype.kind in "fc":
        # What float16 holds as well.
        values = [value % 1024 for value in values]
    array = np.array(values[: int(np.prod(shape))], dtype).reshape(shape)
    array = array.astype(array.dtype.newbyteorder(draw(st.sampled_from("<>"))))
    return draw(st.sampled_from([array, np.asfortranarray(array), np.repeat(array[None], 2, 0)[1]]))


@pytest.mark.contract("H3", "H15")
@pytest.mark.parametrize("kind", [CALL, PURE], ids=["call", "pure"])
@given(
    array=numbers(),
    asked=st.sampled_from([name for name in NUMBERS if name not in NARROWED]),
    shape=st.sampled_from([(), (1,), (2,), (2, 1), (0, 2), None]),
)
def test_arrays_are_accepted_by_shape_dtype_and_value(kind: Any, array: Any, asked: str, shape: Any) -> None:
    # Else shapes would hardly ever be equal.
    aval = jax.core.ShapedArray(array.shape if shape is None else shape, np.dtype(asked))
    name = array.dtype.newbyteorder("=").name
    exact = np.dtype(name) == aval.dtype
    narrowed = NARROWED.get(name) == asked
    if narrowed and array.dtype.kind in "iu":
        limits = np.iinfo(asked)
        narrowed = all(limits.min <= int(each) <= limits.max for each in array.flat)
    found = accepted(array, kind, 0, [aval])
    if array.shape == aval.shape and (exact or narrowed):
        (sent,) = found
        assert (sent.shape, sent.dtype) == (aval.shape, aval.dtype) and sent.dtype.isnative
        np.testing.assert_array_equal(sent, array.astype(asked))
    else:
        assert found is None, f"{name}{array.shape} was taken for {aval}"


def paths_of(tree: Any) -> list[tuple[str, ...]]:
    """For each leaf, the keys of dicts that lead to it."""
    if isinstance(tree, dict):
        return [(key, *path) for key in sorted(tree) for path in paths_of(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [path for inner in tree for path in paths_of(inner)]
    return [()]


structures = strategies.trees(st.just(1))


@pytest.mark.contract("H3", "X2")
@given(asked=structures, returned=structures)
def test_calls_take_the_very_tree_and_jaxs_callbacks_other_containers_of_the_same_names(
    asked: Any, returned: Any
) -> None:
    avals = [jax.core.ShapedArray((), np.dtype(np.int32))] * len(jax.tree.leaves(asked))
    assert (accepted(returned, CALL, asked, avals) is not None) == (asked == returned)
    same_names = paths_of(asked) == paths_of(returned)
    assert (accepted(returned, PURE, asked, avals) is not None) == same_names


@pytest.mark.contract("X2")
@given(asked=structures)
def test_lists_go_for_tuples(asked: Any) -> None:
    def as_tuples(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: as_tuples(inner) for key, inner in tree.items()}
        return tuple(map(as_tuples, tree)) if isinstance(tree, (list, tuple)) else tree

    assume(as_tuples(asked) != asked)
    avals = [jax.core.ShapedArray((), np.dtype(np.int32))] * len(jax.tree.leaves(asked))
    assert accepted(as_tuples(asked), PURE, asked, avals) is not None
    assert accepted(as_tuples(asked), CALL, asked, avals) is None
