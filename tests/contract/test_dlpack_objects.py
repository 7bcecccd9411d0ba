"""D1, D2: the objects that a DLPack callback receives, the stream, and what makes the shapes of its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import STAGES

import hostcb as hcb

pytestmark = pytest.mark.contract("D1", "D2")

X = np.arange(4, dtype=np.float32)
LIKE = jax.ShapeDtypeStruct(X.shape, X.dtype)


USES: dict[str, Callable[[Any], Any]] = {
    "shape": lambda lent: lent.shape,
    "dtype": lambda lent: lent.dtype,
    "device": lambda lent: lent.__dlpack_device__(),
    "asarray": np.asarray,
    "from_dlpack": np.from_dlpack,
}


@STAGES
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
@pytest.mark.parametrize("fails", [False, True], ids=["returned", "failed"])
def test_each_object_is_refused_after_the_return_and_after_a_failure(fails: bool, several: bool, stage: Any) -> None:
    """The memory belongs to the device again: a stale view would be silently wrong."""
    kept: list[Any] = []

    def copies(out: Any, *operands: Any, **named: Any) -> None:
        results, lent = jax.tree.leaves(out), [*operands, *named.values()]
        kept.extend([*results, *lent])
        for result, operand in zip(results, lent, strict=True):
            np.asarray(result)[...] = np.asarray(operand)
        if fails:
            raise ValueError("planted")

    through = hcb.dlpack_callback(copies, [LIKE] * 3 if several else LIKE, in_place=True)
    program = stage(lambda first, *others: through(first, *others[:1], **{"last": each for each in others[1:]}))
    operands = (X, X + 1, X + 2) if several else (X,)
    if fails:
        helpers.failed("planted", program, *operands)
    else:
        helpers.equal(program(*operands), [*operands] if several else X, "copies")
    assert len(kept) == 2 * len(operands)
    for lent in kept:
        for use in USES.values():
            with pytest.raises(BufferError, match=r"has returned.*Copy what should be kept"):
                use(lent)
        assert "returned" in repr(lent)


def test_numpys_requests_for_copies_and_types_are_kept() -> None:
    seen: list[Any] = []

    def fill(out: Any, operand: Any) -> None:
        array = operand.__array__(copy=False)
        for dtype in (np.float64, np.int32):
            with pytest.raises(ValueError):
                operand.__array__(dtype, copy=False)
        copies = [operand.__array__(np.float64), operand.__array__(np.float32, copy=True)]
        views = [operand.__array__(np.float32, copy=False), operand.__array__(np.float32)]
        seen.extend((each.dtype.name, np.shares_memory(each, array)) for each in (*copies, *views))
        through = np.from_dlpack(out)
        through[...] = np.from_dlpack(operand) + 1

    helpers.equal(jax.jit(hcb.dlpack_callback(fill, LIKE, in_place=True))(X), X + 1, "result")
    assert seen == [("float64", False), ("float32", False), ("float32", True), ("float32", True)]


@pytest.mark.parametrize("likes", [LIKE, (LIKE,), (LIKE, LIKE)], ids=["one", "tuple of one", "two"])
def test_what_a_function_in_place_returns_is_refused(likes: Any) -> None:
    program = jax.jit(hcb.dlpack_callback(lambda out, x: np.asarray(x), likes, in_place=True))
    helpers.failed("dlpack_callback callback must not return any values", program, X)


def double(x: Any, *, scale: Any = None, stream: Any = ...) -> Any:
    double.streams.append(stream)  # type: ignore[attr-defined]
    return 2 * np.asarray(x)


def twice(x: Any, *, stream: Any = ...) -> Any:
    return (double(x, stream=stream),) * 2


def fill(out: Any, x: Any, *, stream: Any = ...) -> None:
    doubled = double(x, stream=stream)
    for each in jax.tree.leaves(out):
        np.asarray(each)[...] = doubled


FORMS: dict[str, Callable[[Any], Any]] = {
    "one": hcb.dlpack_callback(double, LIKE, with_stream=True),
    "by name": lambda x: hcb.dlpack_callback(double, LIKE, with_stream=True)(x, scale=x),
    "two": hcb.dlpack_callback(twice, (LIKE, LIKE), with_stream=True),
    "one in place": hcb.dlpack_callback(fill, LIKE, with_stream=True, in_place=True),
    "two in place": hcb.dlpack_callback(fill, (LIKE, LIKE), with_stream=True, in_place=True),
    "with effects": hcb.dlpack_callback(double, LIKE, with_stream=True, has_side_effect=True),
}


@STAGES
@pytest.mark.parametrize("form", FORMS)
def test_the_stream_is_passed_in_each_form_and_is_none_on_cpu(form: str, stage: Any) -> None:
    double.streams = []  # type: ignore[attr-defined]
    for result in jax.tree.leaves(helpers.finish(stage(FORMS[form])(X))):
        helpers.equal(result, 2 * X, form)
    assert double.streams == [None]  # type: ignore[attr-defined]


@STAGES
def test_without_with_stream_an_argument_may_have_its_name(stage: Any) -> None:
    function = hcb.dlpack_callback(lambda x, stream: np.asarray(x) + np.asarray(stream), LIKE)
    helpers.equal(stage(lambda x: function(x, stream=x + 1))(X), 2 * X + 1, "a sum")


@pytest.mark.contract("H18")
@STAGES
def test_one_function_with_its_stream_and_without_is_called_in_both_ways(stage: Any) -> None:
    double.streams = []  # type: ignore[attr-defined]
    for with_stream in (False, True, False):
        helpers.equal(stage(hcb.dlpack_callback(double, LIKE, with_stream=with_stream))(jnp.asarray(X)), 2 * X, "twice")
    assert double.streams == [..., None, ...]  # type: ignore[attr-defined]


@jax.tree_util.register_pytree_node_class
class Shapes(dict[str, Any]):
    """A container of results that can be called, as some libraries have for a model."""

    def __call__(self, *operands: Any) -> Any:
        raise AssertionError("a container was called")

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: tuple[Any, ...]) -> Shapes:
        return cls(zip(names, values, strict=True))


class Layer:
    """One result by its shape and type, which can be called, as a layer of a model."""

    shape, dtype = X.shape, X.dtype

    def __call__(self, *operands: Any) -> Any:
        raise AssertionError("a layer was called")


@STAGES
def test_shapes_that_can_be_called_are_not_called(stage: Any) -> None:
    both = hcb.dlpack_callback(lambda x: Shapes(a=np.asarray(x) + 1, b=2 * np.asarray(x)), Shapes(a=LIKE, b=LIKE))
    found = stage(both)(X)
    assert type(found) is Shapes
    helpers.equal(found["a"], X + 1, "a")
    helpers.equal(stage(hcb.dlpack_callback(lambda x: 2 * np.asarray(x), Layer()))(X), 2 * X, "a layer")


@STAGES
def test_a_function_makes_the_shapes_of_each_call_anew(stage: Any) -> None:
    function = hcb.dlpack_callback(lambda x: 2 * np.from_dlpack(x), lambda x: x)
    operands = [X, np.arange(6, dtype=np.int32), np.ones((2, 3), np.float32)]
    found = stage(lambda *each: [function(x) for x in each])(*map(jnp.asarray, operands))
    helpers.equal(found, [2 * each for each in operands], "twice")
    # What JAX can make an array from has a shape, too.
    helpers.equal(function(X.data), 2 * X, "twice a buffer of Python")


class Adds:
    """All are equal, and each adds its own number."""

    def __init__(self, number: float) -> None:
        self.number = np.float32(number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Adds)

    def __hash__(self) -> int:
        return 1

    def __call__(self, x: Any) -> Any:
        return np.asarray(x) + self.number


def test_it_works_with_jit_disabled() -> None:
    function = hcb.dlpack_callback(Adds(1), LIKE)
    with jax.disable_jit():
        results = [function(X), jax.jit(lambda x: function(x) * 2)(X)]
    helpers.equal(results, [X + 1, (X + 1) * 2], "sums")
