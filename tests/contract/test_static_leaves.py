"""X8: leaves that are no arrays reach the function as they are."""

from __future__ import annotations

import enum
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import STAGES, Record, finish

import hostcb as hcb

pytestmark = pytest.mark.contract("X8")

X = jnp.arange(3, dtype=jnp.float32)
LIKE = jax.ShapeDtypeStruct(X.shape, X.dtype)


class Mode(enum.Enum):
    TRAIN = enum.auto()


class Model:
    """An object that can neither be hashed nor compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("hostcb must not compare objects of the user's")


LEAVES = [
    "text",
    b"bytes",
    np.str_("word"),
    Mode.TRAIN,
    len,
    np.float32,
    jnp.float32,
    np.dtype("int8"),
    {1, 2},
    Model(),
]


def run(kind: str, seen: list[Any], leaf: Any, x: Any) -> Any:
    """Make a callback of `leaf` and `x`, and return what the program gets."""
    if kind == "id_tap":
        return hcb.id_tap(lambda value, transforms: seen.append(value), {"leaf": leaf, "x": x})["x"]
    if kind == "call":
        return hcb.call(lambda value: (seen.append(value), value["x"])[1], {"leaf": leaf, "x": x}, result_shape=LIKE)

    def function(leaf: Any, *, x: Any) -> Any:
        seen.append({"leaf": leaf, "x": x})
        return x

    return getattr(hcb, kind)(function, LIKE, leaf, x=x)


KINDS = pytest.mark.parametrize("kind", ["id_tap", "call", "pure_callback", "io_callback"])


@KINDS
@STAGES
@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: type(leaf).__name__)
def test_the_function_gets_the_object_itself(kind: str, stage: Any, leaf: Any) -> None:
    seen: list[Any] = []
    out = stage(lambda x: run(kind, seen, leaf, x))(X)
    finish(out)
    np.testing.assert_array_equal(out, X)
    (given,) = seen
    assert given["leaf"] is leaf
    np.testing.assert_array_equal(given["x"], X)


@KINDS
def test_an_array_that_no_device_can_hold_is_refused(kind: str) -> None:
    """It says that it is an array. As a static leaf it would not follow the program's values."""

    class Own:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise OSError("the user's own")

    for leaf in (np.array(["text"]), np.array([None]), np.datetime64("2020"), Own(), LIKE):
        with pytest.raises(TypeError, match="must be an array or a scalar"):
            run(kind, [], leaf, X)
    with pytest.raises(OverflowError):
        run(kind, [], 2**70, X)


@KINDS
def test_what_has_been_an_operand_stays_one(kind: str) -> None:
    seen: list[Any] = []
    finish(run(kind, seen, range(3), X))
    finish(run(kind, seen, memoryview(b"abc"), X))
    assert [type(each["leaf"]) for each in seen] == [np.ndarray, np.ndarray]


@STAGES
def test_a_tap_returns_the_leaf_and_vmap_and_grad_leave_it_alone(stage: Any) -> None:
    record, model = Record(), Model()

    def program(x: Any) -> Any:
        name, same, y = hcb.id_tap(record.tap, ("x", model, x))
        assert name == "x" and same is model
        return y.sum()

    finish(stage(program)(X))
    finish(stage(jax.grad(program))(X))
    finish(stage(jax.vmap(program))(X[None]))
    assert [(each[0], each[1] is model, np.shape(each[2])) for each in record.args] == [
        ("x", True, (3,)), ("x", True, (3,)), ("x", True, (1, 3)),
    ]  # fmt: skip
    assert record.transforms[-1] == (("batch", {"batch_dims": (0,)}),)


@STAGES
def test_prints_show_objects_unchanged(stage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    finish(stage(lambda x: hcb.id_print({"name": "weights", "x": x})["x"])(X))
    finish(stage(lambda x: (hcb.id_print("alone"), x)[1])(X))
    assert capsys.readouterr().out == "{ name=weights x=[0. 1. 2.] }\nalone\n"


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_vmap_batches_the_arrays_alone(method: Any) -> None:
    seen: list[str] = []

    def function(name: str, x: Any) -> Any:
        seen.append(name)
        return 2 * x

    f = jax.vmap(lambda x: hcb.pure_callback(function, jax.ShapeDtypeStruct((), x.dtype), "x", x, vmap_method=method))
    np.testing.assert_array_equal(jax.jit(f)(X), 2 * X)
    assert set(seen) == {"x"}


@pytest.mark.contract("H18")
def test_programs_with_equal_texts_are_equal_and_others_are_not() -> None:
    """Objects are compared by identity: equal ones of the user's need not do the same, and may change."""
    seen: list[Any] = []

    def function(leaf: Any, x: Any) -> Any:
        seen.append(leaf)
        return x

    def params(leaf: Any) -> Any:
        (equation,) = jax.make_jaxpr(lambda x: hcb.io_callback(function, LIKE, leaf, x))(X).jaxpr.eqns
        return equation.params

    one, other = [1].__len__, [1].__len__
    assert params("a" * 2) == params("aa") != params("ab")
    assert params(one) == params(one)
    assert params(one) != params(other)
    for leaf in ("a", "b"):
        jax.block_until_ready(jax.jit(lambda x, leaf=leaf: hcb.io_callback(function, LIKE, leaf, x))(X))
    assert seen == ["a", "b"]


@pytest.mark.contract("H18")
@pytest.mark.parametrize("kind", ["id_tap", "call", "pure_callback", "io_callback"])
def test_outside_jit_a_leaf_lives_no_longer_than_its_callback(kind: str) -> None:
    model = Model()
    alive = weakref.ref(model)
    seen: list[Any] = []
    finish(run(kind, seen, model, X))
    seen.clear()
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.contract("H27")
@pytest.mark.parametrize("name", ["pure_callback", "experimental.io_callback"])
def test_installed_callbacks_refuse_what_jaxs_own_refuse(name: str) -> None:
    own: Any = jax.pure_callback if name == "pure_callback" else jax.experimental.io_callback
    for leaf in ("text", Mode.TRAIN):
        with pytest.raises(TypeError):
            own(lambda leaf, x: x, LIKE, leaf, X)
        with hcb.installed(), pytest.raises(TypeError, match="must be an array or a scalar"):
            own(lambda leaf, x: x, LIKE, leaf, X)
