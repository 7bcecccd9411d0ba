"""Functions, arguments and results may be any object: naming and probing them ends, and fails with words (H15)."""

from __future__ import annotations

import functools
import unittest.mock
import xmlrpc.client
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import STAGES

import hostcb as hcb
from hostcb._spec.naming import MOST_CHARACTERS, describe, shown

X = jnp.float32(2)
SCALAR = jax.ShapeDtypeStruct((), np.float32)


class Proxy:
    """Has every attribute, as the proxies of remote procedure calls do."""

    def __init__(self, name: str = "proxy") -> None:
        self.name = name

    def __getattr__(self, name: str) -> Proxy:
        return Proxy(f"{self.name}.{name}")

    def __call__(self, *args: Any, **_: Any) -> Any:
        return np.asarray(args[-1])


class Named:
    """A callable object that bears a name, as ufuncs do."""

    __name__ = "solver"

    def __call__(self, *args: Any) -> Any:
        return args


class Broken:
    """It has no attribute."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"planted: {name}")

    def __repr__(self) -> str:
        raise ValueError("planted: repr")

    def __hash__(self) -> int:
        raise ValueError("planted: hash")

    def __eq__(self, other: object) -> bool:
        raise ValueError("planted: eq")

    def __call__(self, *args: Any, **_: Any) -> Any:
        return np.asarray(args[-1])

    def method(self, *args: Any, **_: Any) -> Any:
        return np.asarray(args[-1])


class LikeArray(Broken):
    """Compares as arrays do."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])


class Measured:
    """Its shape is a number, as that of an object of another library may be."""

    shape, dtype = 3, np.dtype(np.float32)


def itself(*args: Any, **_: Any) -> Any:
    return np.asarray(args[-1])


itself.__wrapped__ = itself  # type: ignore[attr-defined]


def one_of_two(*args: Any, **_: Any) -> Any:
    return np.asarray(args[-1])


def other_of_two(*args: Any, **_: Any) -> Any:
    return np.asarray(args[-1])


one_of_two.__wrapped__ = other_of_two  # type: ignore[attr-defined]
other_of_two.__wrapped__ = one_of_two  # type: ignore[attr-defined]


def many_wrappers() -> Callable[..., Any]:
    function: Callable[..., Any] = one_of_two
    for _ in range(1_000):
        # A partial of a partial with attributes of its own is not made one with it.
        function = functools.partial(function)
        function.of = 1  # type: ignore[attr-defined]
    return function


FUNCTIONS: dict[str, Any] = {
    "itself": itself,
    "two": one_of_two,
    "many": many_wrappers(),
    "proxy": Proxy(),
    "proxy attribute": Proxy().log,
    "broken": Broken(),
    "broken method": Broken().method,
    "like array": LikeArray(),
    "like array's method": LikeArray().method,
    "mock": unittest.mock.Mock(side_effect=lambda *args, **_: np.asarray(args[-1])),
    "magic mock": unittest.mock.MagicMock(side_effect=lambda *args, **_: np.asarray(args[-1])),
    "partial": functools.partial(Broken(), 1),
    "class": np.float32,
    "builtin": float,
    "ufunc": np.positive,
}
EVERY = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.mark.contract("X1")
@EVERY
@STAGES
def test_every_callable_can_be_called_back(name: str, stage: Any) -> None:
    function = FUNCTIONS[name]
    calls = {
        "pure": lambda x: hcb.pure_callback(function, SCALAR, x),
        "io": lambda x: hcb.io_callback(function, SCALAR, x, ordered=True),
        "call": lambda x: hcb.call(function, x, result_shape=SCALAR),
        "jax_arrays": lambda x: hcb.pure_callback(hcb.jax_arrays(function), SCALAR, x),
    }
    if name not in ("class", "builtin", "ufunc"):
        calls["dlpack"] = hcb.dlpack_callback(function, SCALAR)
        calls["vmap"] = jax.vmap(lambda x: hcb.call(function, x, result_shape=SCALAR, vmap_method="sequential"))
    for call, run in calls.items():
        x = jnp.full(2, X) if call == "vmap" else X
        for _ in range(2):
            assert np.all(np.asarray(stage(run)(x)) == 2), call


@pytest.mark.contract("X4")
@EVERY
@STAGES
def test_every_callable_can_be_named(name: str, stage: Any) -> None:
    function = FUNCTIONS[name]
    stage(lambda x: hcb.debug.callback(function, x) or x)(X)
    if name not in ("class", "builtin", "ufunc"):
        stage(lambda x: hcb.id_tap(lambda value, _: function(value), x))(X)
        stage(lambda x: hcb.id_tap(lambda value, transforms: function(transforms, value), x))(X)
    hcb.barrier_wait()


@pytest.mark.contract("H15")
@EVERY
@STAGES
def test_every_callable_has_a_name_in_errors(name: str, stage: Any) -> None:
    wrong = jax.ShapeDtypeStruct((7,), np.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"in place of float32\[7\]"):
        stage(lambda x: hcb.call(FUNCTIONS[name], x, result_shape=wrong))(X)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("H15")
@STAGES
def test_callables_whose_results_are_no_arrays(stage: Any) -> None:
    for function in (unittest.mock.call, xmlrpc.client.ServerProxy, unittest.mock.Mock(), lambda _: Proxy(),
                     lambda _: Broken(), lambda _: unittest.mock.MagicMock()):  # fmt: skip
        for shape in (SCALAR, jax.ShapeDtypeStruct((2,), np.float32)):
            with pytest.raises(jax.errors.JaxRuntimeError):
                stage(lambda x, f=function, s=shape: hcb.pure_callback(f, s, x))(X)
            with pytest.raises(jax.errors.JaxRuntimeError):
                stage(hcb.dlpack_callback(function, shape))(X)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("H15")
@STAGES
def test_a_leaf_whose_shape_is_no_sequence_is_named_by_its_class(stage: Any) -> None:
    for returned in ((Measured(), Measured()), {"a": Measured()}):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"Measured.*float32\[\]"):
            stage(lambda x, r=returned: hcb.pure_callback(lambda _: r, SCALAR, x))(X)
    with pytest.raises(hcb.CallbackException, match="Measured"):
        hcb.barrier_wait()


def test_names() -> None:
    assert describe(itself).startswith("itself (")
    assert describe(one_of_two).startswith("one_of_two (")
    assert describe(Broken()).startswith("Broken.__call__ (")
    assert "whose repr raises ValueError" in shown(Broken())
    assert describe(Broken().method).startswith("Broken.method (")
    assert describe(np.float32) == "float32"
    assert describe(functools.partial(functools.lru_cache(jax.jit(coroutine)))).startswith("coroutine (")
    assert describe(unittest.mock.call) == "call"
    # An instance has no `__qualname__`, but may have a name.
    assert describe(Named()) == "solver"
    assert len(shown(np.arange(10_000).tolist())) == MOST_CHARACTERS + 1


class Attributes(dict):  # type: ignore[type-arg]
    """A container whose keys are attributes; a key that is missing is a KeyError."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


jax.tree_util.register_pytree_node(
    Attributes, lambda d: (list(d.values()), tuple(d)), lambda keys, values: Attributes(zip(keys, values, strict=True))
)


class Everything(Attributes):
    """A container with every attribute, that can be called too."""

    def __getattr__(self, name: str) -> Any:
        return Proxy(name)

    def __call__(self, *_: Any) -> Any:
        raise AssertionError("a container is no function of shapes")


jax.tree_util.register_pytree_node(
    Everything, lambda d: (list(d.values()), tuple(d)), lambda keys, values: Everything(zip(keys, values, strict=True))
)


@pytest.mark.contract("D1")
@STAGES
@pytest.mark.parametrize("container", [Attributes, Everything])
def test_containers_with_attributes_of_their_own(stage: Any, container: Any) -> None:
    def add(given: Any) -> Any:
        assert type(given) is container
        return container(total=np.asarray(given["a"]) + np.asarray(given["b"]))

    out = stage(hcb.dlpack_callback(add, container(total=SCALAR)))(container(a=X, b=X))
    assert type(out) is container and float(out["total"]) == 4


@pytest.mark.contract("D1")
@STAGES
@pytest.mark.parametrize("in_place", [False, True])
def test_float0_leaves_arrive_as_arrays(stage: Any, in_place: bool) -> None:
    nothing = np.zeros(2, jax.dtypes.float0)

    def check(*given: Any) -> Any:
        assert given[-2].dtype == jax.dtypes.float0 and given[-2].shape == (2,)
        assert given[-1].dtype == np.float32
        if not in_place:
            return given[-1]
        np.asarray(given[0])[...] = np.asarray(given[-1])
        return None

    f = hcb.dlpack_callback(check, lambda nothing, x: x, in_place=in_place)
    assert float(stage(lambda x: f(nothing, x))(X)) == 2


NO_SHAPES: dict[str, Any] = {
    "mock": unittest.mock.Mock(),
    "magic mock": unittest.mock.MagicMock(),
    "proxy": Proxy(),
    "broken": Broken(),
    "class": np.float32,
    "fraction": unittest.mock.Mock(shape=(2.5,), dtype=np.float32),
    "text": unittest.mock.Mock(shape="12", dtype=np.float32),
    "huge": unittest.mock.Mock(shape=(), dtype="no dtype"),
}


@pytest.mark.contract("H3")
@pytest.mark.parametrize("name", NO_SHAPES)
def test_what_is_no_shape_is_refused_while_tracing(name: str) -> None:
    for shape in (NO_SHAPES[name], [SCALAR, NO_SHAPES[name]]):
        for call in (
            lambda s: hcb.call(itself, X, result_shape=s),
            lambda s: hcb.pure_callback(itself, s, X),
            lambda s: hcb.buffer_callback(lambda *_: None, s),
        ):
            with pytest.raises(ValueError, match="result_shape"):
                call(shape)


@pytest.mark.contract("X1")
@pytest.mark.parametrize("name", ["mock", "magic mock", "proxy", "broken"])
def test_arguments_that_are_no_values(name: str) -> None:
    leaf = NO_SHAPES[name]
    seen: list[Any] = []

    def taken(given: Any, *_: Any) -> Any:
        seen.append(given)
        return np.float32(1)

    takes: list[Callable[[], Any]] = [
        lambda: hcb.pure_callback(taken, SCALAR, leaf),
        lambda: hcb.io_callback(taken, SCALAR, leaf),
        lambda: hcb.call(taken, leaf, result_shape=SCALAR),
        lambda: hcb.id_tap(taken, leaf),
    ]
    for call in takes:
        if name == "magic mock":
            # It has a length and items, of which NumPy makes an array.
            with pytest.raises(TypeError, match=r"arguments|\barg\b"):
                call()
        else:
            call()
            hcb.barrier_wait()
            assert seen.pop() is leaf and not seen
    hcb.debug.callback(lambda x, other: seen.append(other), X, leaf)
    hcb.barrier_wait()
    assert seen[0] is leaf


async def coroutine(x: Any, *_: Any) -> Any:
    return x


class Unwilling:
    """An object whose `repr` JAX needs for its own refusal."""

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __str__(self) -> str:
        return "unwilling"


@pytest.mark.contract("X4")
@pytest.mark.parametrize("value", [2**40, -(2**70), np.ma.masked_array([1, 2], [0, 1]), Unwilling()], ids=type)
def test_debug_print_takes_what_debug_callback_takes(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """JAX refuses these with other errors than TypeError."""
    hcb.debug.print("{} {x}", value, x=value)
    hcb.barrier_wait()
    assert capsys.readouterr().out == f"{value} {value}\n"


@pytest.mark.contract("D2")
@pytest.mark.parametrize("value", [range(3), memoryview(b"abc")], ids=type)
def test_shapes_by_a_function_of_whatever_is_an_operand(value: Any) -> None:
    f = hcb.dlpack_callback(lambda x: x, lambda x: x)
    np.testing.assert_array_equal(f(value), np.asarray(value))


@pytest.mark.contract("D2")
@pytest.mark.parametrize("value", ["text", object(), np.array("text"), 2**40, Unwilling()], ids=type)
def test_shapes_by_a_function_of_what_is_no_operand(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^dlpack_callback: .*closure or functools\.partial"):
        hcb.dlpack_callback(lambda x: x, lambda x: x)(value)
