"""H15, X2: a class of the user for results sees the results of a call, and nothing of a call that failed."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import pytest

import hostcb as hcb
from hostcb._compat.fast_dispatch import _is_plain

NUMBER = jax.ShapeDtypeStruct((), np.float32)


class Positive:
    def __init__(self, value: Any) -> None:
        if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not float(value) > 0:
            raise ArithmeticError(f"{value} is not positive")
        self.value = value


jax.tree_util.register_pytree_node(
    Positive, lambda positive: ((positive.value,), None), lambda _, values: Positive(*values)
)

KINDS: dict[str, Callable[..., Any]] = {
    "call": lambda host, x: hcb.call(host, x, result_shape=NUMBER),
    "pure_callback": lambda host, x: hcb.pure_callback(host, NUMBER, x),
    "io_callback": lambda host, x: hcb.io_callback(host, NUMBER, x),
}


class Pair(NamedTuple):
    one: Any
    other: Any


class Checked(Pair):
    def __new__(cls, one: Any, other: Any) -> Self:
        assert one is not other
        return super().__new__(cls, one, other)


@pytest.mark.contract("H15")
@pytest.mark.parametrize(
    ("node", "plain"),
    [
        *((each, True) for each in (tuple, list, dict, type(None), collections.OrderedDict, Pair)),
        (collections.namedtuple("Other", "a b"), True),  # noqa: PYI024 - also without types
        (Positive, False),
        (Checked, False),
    ],
)
def test_which_nodes_run_no_code_of_the_user(node: type, plain: bool) -> None:
    assert _is_plain(node) == plain


class Shaped:
    """It reads its leaf, apart from `object()` and `None`, which JAX asks every container to take."""

    def __init__(self, leaf: Any) -> None:
        if type(leaf) is not object and leaf is not None:
            self.size = leaf.size
        self.leaf = leaf


class Converting(Shaped):
    """It takes arrays alone, and no `object()`."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf if isinstance(leaf, Sized) else np.asarray(leaf * 2) / 2


class Refusing(Shaped):
    """It takes float32 alone, so nobody can ask it for its keys."""

    def __init__(self, leaf: Any) -> None:
        if leaf.dtype != np.float32:
            raise ValueError("it is no float32")
        self.leaf = leaf


class OfArrays(Shaped):
    """It takes arrays and shapes, and `None`."""

    def __init__(self, leaf: Any) -> None:
        if leaf is not None and not hasattr(leaf, "shape"):
            raise TypeError(f"{leaf!r} is no array")
        self.leaf = leaf


class Hidden(Shaped):
    """It has static data that cannot be shown."""


class Secret:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret)

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise LookupError("a secret is not shown")


for each, static in ((Shaped, None), (Converting, None), (Refusing, None), (OfArrays, None), (Hidden, Secret())):
    jax.tree_util.register_pytree_node(
        each, lambda one, static=static: ((one.leaf,), static), lambda _, leaves, of=each: of(*leaves)
    )


class Sized:
    """An expected leaf with what such a container reads."""

    shape: tuple[int, ...] = ()
    dtype = np.dtype(np.float32)
    size = 1


@pytest.mark.contract("H15", "X2", "X3")
@pytest.mark.parametrize("kind", ["pure_callback", "io_callback"])
def test_a_failure_is_reported_where_the_container_reads_its_leaf(kind: str) -> None:
    def host(operand: Any) -> Any:
        raise OSError("disk full")

    program = jax.jit(lambda x: getattr(hcb, kind)(host, Shaped(Sized()), x).leaf)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"raised OSError: disk full") as caught:
        jax.block_until_ready(program(np.float32(2)))
    assert "AttributeError" not in str(caught.value)
    assert "Shaped[None]" in str(caught.value) and "float32[]" in str(caught.value)
    with pytest.raises(hcb.CallbackException, match="disk full"):
        hcb.barrier_wait()


AS_JAX: dict[str, Callable[..., Any]] = {
    "pure_callback": hcb.pure_callback,
    "io_callback": hcb.io_callback,
    "ordered io_callback": functools.partial(hcb.io_callback, ordered=True),
}


@pytest.mark.contract("H3", "X2", "X3")
@pytest.mark.parametrize("kind", AS_JAX)
@pytest.mark.parametrize("container", [Shaped, Converting, Hidden])
def test_a_list_for_a_tuple_is_accepted_around_a_container_that_reads_its_leaf(container: Any, kind: str) -> None:
    """It is made of the avals once, while JAX traces."""

    def program(x: Any) -> Any:
        found = AS_JAX[kind](lambda x: [container(x), x], (container(Sized()), NUMBER), x)
        return jax.tree_util.tree_leaves(found)

    # The second one converts a tracer to NumPy.
    for run in (program,) if container is Converting else (program, jax.jit(program)):
        assert [float(each) for each in run(np.float32(2))] == [2, 2]


@pytest.mark.contract("X2", "X3")
@pytest.mark.parametrize("kind", AS_JAX)
@pytest.mark.parametrize("given", ["tuple", "list", "two tuples"])
def test_a_list_or_a_tuple_of_one_is_accepted_for_a_container_of_arrays_alone(given: str, kind: str) -> None:
    @jax.jit
    def program(x: Any) -> Any:
        return jax.tree_util.tree_leaves(AS_JAX[kind](lambda x: ONE[given](x), OfArrays(NUMBER), x))

    assert [float(each) for each in program(np.float32(2))] == [2]


@pytest.mark.contract("H3", "H15", "X2")
@pytest.mark.parametrize(("container", "keys"), [(Shaped, "the keys b"), (Refusing, "takes no leaf that could stand")])
def test_other_keys_are_refused_with_words_around_such_a_container(container: Any, keys: str) -> None:
    program = jax.jit(
        lambda x: hcb.pure_callback(lambda x: {"b": container(x)}, {"a": container(Sized())}, x)["a"].leaf
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="tree") as caught:
        jax.block_until_ready(program(np.float32(2)))
    assert keys in str(caught.value)
    with pytest.raises(hcb.CallbackException, match="tree"):
        hcb.barrier_wait()


@pytest.mark.contract("H6")
def test_tangents_are_tapped_in_a_container_that_reads_its_leaf() -> None:
    seen = []

    def tapped(value: Any, transforms: Any) -> None:
        seen.append(([float(of.leaf) for of in value], [name for name, *_ in transforms]))

    jax.config.update("jax_host_callback_ad_transforms", True)
    try:
        program = jax.jit(lambda x: hcb.id_tap(tapped, Shaped(x)).leaf ** 2)
        with pytest.warns(FutureWarning):
            _, tangent = jax.jvp(program, (np.float32(3),), (np.float32(1),))
        hcb.barrier_wait()
    finally:
        jax.config.update("jax_host_callback_ad_transforms", None)
    assert tangent == 6
    assert seen == [([3.0, 1.0], ["jvp"])]


class Checks(Pair):
    def __init__(self, *values: Any) -> None:
        Positive(values[0])


AROUND: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda y, x: Positive(y),
    "in a tuple": lambda y, x: (x, Positive(y)),
    "in a dict in a list": lambda y, x: [x, {"a": x, "b": Positive(y)}],
    "in a named tuple": lambda y, x: Pair(x, Positive(y)),
    "named tuple with __init__": lambda y, x: {"a": Checks(y, x)},
}


@pytest.mark.contract("H15", "X2", "X3")
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", KINDS)
def test_it_sees_none_wherever_it_is_in_the_results_of_a_program(kind: str, around: str) -> None:
    fails = False

    def host(operand: Any) -> Any:
        if fails:
            raise ValueError("planted")
        return operand

    program = jax.jit(lambda x: AROUND[around](KINDS[kind](host, x), x))
    for fails in (False, False, True, True, False, True, False):
        if fails:
            with pytest.raises(jax.errors.JaxRuntimeError, match="planted"):
                jax.block_until_ready(jax.tree.leaves(program(np.float32(2))))
        else:
            assert [float(leaf) for leaf in jax.tree.leaves(program(np.float32(2)))][-1] == 2
    with pytest.raises(hcb.CallbackException, match="planted"):
        hcb.barrier_wait()


ONE = {
    "alone": lambda each: each,
    "tuple": lambda each: (each,),
    "list": lambda each: [each],
    "dict": lambda each: {"a": each},
    "two tuples": lambda each: ((each,),),
}


@pytest.mark.contract("H3")
@pytest.mark.parametrize("staged", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize("asked", ONE)
def test_a_call_returns_a_container_of_one_only_where_one_is_asked_for(asked: str, staged: Any) -> None:
    def program(given: str) -> Any:
        return staged(lambda x: hcb.call(lambda x: ONE[given](x), x, result_shape=ONE[asked](NUMBER)))(np.float32(2))

    assert jax.tree.structure(program(asked)) == jax.tree.structure(ONE[asked](0))
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(program("tuple" if asked == "alone" else "alone"))
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("B1", "D1")
@pytest.mark.parametrize("staged", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize("asked", ONE)
@pytest.mark.parametrize("kind", ["buffer_callback", "dlpack_callback"])
def test_the_results_to_write_are_in_the_container_that_is_asked_for(kind: str, asked: str, staged: Any) -> None:
    outs = []

    def fill(*arguments: Any) -> None:
        out, x = arguments[-2:]
        outs.append(jax.tree.structure(out))
        np.asarray(jax.tree.leaves(out)[0])[...] = np.asarray(x)

    options = {"in_place": True} if kind == "dlpack_callback" else {}
    found = staged(getattr(hcb, kind)(fill, ONE[asked](NUMBER), **options))(np.float32(2))
    assert float(jax.tree.leaves(found)[0]) == 2
    assert {*outs} == {jax.tree.structure(found)} == {jax.tree.structure(ONE[asked](0))}


@pytest.mark.contract("H3", "X2", "X3")
@pytest.mark.parametrize("returned", [("loss", "aux"), ("aux", "loss")], ids=" ".join)
@pytest.mark.parametrize("kind", ["call", "pure_callback", "io_callback"])
def test_the_results_of_a_dict_go_to_their_names_in_whatever_order_they_come(kind: str, returned: Any) -> None:
    values = {"loss": np.float32(1), "aux": np.float32(10)}
    callbacks = {
        "call": lambda host, like, x: hcb.call(host, x, result_shape=like),
        "pure_callback": lambda host, like, x: hcb.pure_callback(host, like, x),
        "io_callback": lambda host, like, x: hcb.io_callback(host, like, x),
    }

    def program(container: Any) -> Any:
        like = container((name, NUMBER) for name in ("loss", "aux"))
        host = lambda x: container((name, values[name]) for name in returned)
        return jax.jit(lambda x: callbacks[kind](host, like, x))(np.float32(0))

    assert {name: float(each) for name, each in program(dict).items()} == values
    if returned == ("loss", "aux"):
        assert {name: float(each) for name, each in program(collections.OrderedDict).items()} == values
        return
    # Here the order is a part of the tree.
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(program(collections.OrderedDict))
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("X2", "X3")
@pytest.mark.parametrize("kind", AS_JAX)
@pytest.mark.parametrize("given", [str, int])
def test_keys_of_another_type_are_other_keys_although_they_have_the_same_words(given: type, kind: str) -> None:
    """As those of JSON have."""
    asked = int if given is str else str
    returned, like = (dict.fromkeys(map(of, range(2)), each) for of, each in ((given, np.float32(1)), (asked, NUMBER)))
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready([*jax.jit(lambda x: AS_JAX[kind](lambda x: returned, like, x))(np.float32(0)).values()])
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
