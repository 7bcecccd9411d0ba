"""Over which axes of a `shard_map` a result varies (H9), and that JAX's programs run unchanged there (H27)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from support.pairwise import in_turns

import hostcb as hcb

NUMBERS = np.arange(8, dtype=np.float32)


def plus(value: Any) -> Any:
    return np.asarray(value) + np.float32(1)


def fill(context: Any, out: Any, value: Any) -> None:
    np.asarray(out)[...] = plus(value)


def like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


# Each adds 1 on the host.
JAX_NAMES: dict[str, Callable[[Any], Any]] = {
    "pure_callback": lambda x: jax.pure_callback(plus, like(x), x),
    "io_callback": lambda x: io_callback(plus, like(x), x),
    "ordered io_callback": lambda x: io_callback(plus, like(x), x, ordered=True),
    "buffer_callback": lambda x: buffer_callback(fill, like(x))(x),
    "buffer_callback with side effects": lambda x: buffer_callback(fill, like(x), has_side_effect=True)(x),
}
HOSTCB_NAMES: dict[str, Callable[[Any], Any]] = {
    "pure_callback": lambda x: hcb.pure_callback(plus, like(x), x),
    "io_callback": lambda x: hcb.io_callback(plus, like(x), x),
    "ordered io_callback": lambda x: hcb.io_callback(plus, like(x), x, ordered=True),
    "buffer_callback": lambda x: hcb.buffer_callback(fill, like(x))(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(lambda value: plus(np.from_dlpack(value)), like(x))(x),
    "call": lambda x: hcb.call(plus, x, result_shape=like(x)),
    "id_tap": lambda x: hcb.id_tap(lambda value, transforms: None, x) + 1,
}


def varying(x: Any, axes: Any = "a") -> Any:
    return jax.lax.pcast(x, axes, to="varying")


@pytest.fixture
def _as_written() -> Iterator[None]:
    with hcb.installed():
        yield


def mapped(function: Any, specs: Any = P("a"), out: Any = P("a"), shape: tuple[int, ...] = (4,), **options: Any) -> Any:
    mesh = jax.make_mesh(shape, ("a", "b")[: len(shape)], axis_types=(AxisType.Auto,) * len(shape))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, **options))


def scanned(step: Callable[[Any], Any]) -> Any:
    return lambda x: jax.lax.scan(lambda carry, _: (step(carry), None), x, None, length=2)[0]


# Programs that add 2 if `add` adds 1, whether JAX takes its result for one that varies or not.
CONSTRUCTS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "alone": lambda add: mapped(lambda x: varying(add(x)) + 1),
    "of a part": lambda add: mapped(lambda x: varying(2 * add(x)) - x),
    "in a scan": lambda add: mapped(scanned(lambda x: varying(add(x)))),
    "in a fori_loop": lambda add: mapped(lambda x: jax.lax.fori_loop(0, 2, lambda _, x: varying(add(x)), x)),
    "in a while_loop": lambda add: mapped(
        lambda x: jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, varying(add(s[1]))), (0, x))[1]
    ),
    "in a cond": lambda add: mapped(
        lambda x: jax.lax.cond(x.sum() > -1, lambda x: varying(add(x)) + 1, lambda x: x, x)
    ),
    "over two axes": lambda add: mapped(
        scanned(lambda x: varying(add(x), ("a", "b"))), P(("a", "b")), P(("a", "b")), (2, 2)
    ),
    "one axis of two": lambda add: mapped(lambda x: jax.lax.pmean(varying(add(x), ("a", "b")), "b") + 1, shape=(2, 2)),
    "without the check": lambda add: mapped(lambda x: varying(add(x)) + 1, check_vma=False),
}


def nested(add: Callable[[Any], Any]) -> Any:
    def inner(x: Any) -> Any:
        return jax.shard_map(
            lambda x: varying(add(x), ("a", "b")) + 1, in_specs=P("b"), out_specs=P("b"), axis_names={"b"}
        )(x)

    return mapped(inner, shape=(2, 2), axis_names={"a"})


@pytest.mark.contract("H27")
@pytest.mark.usefixtures("_as_written")
@in_turns(("construct", "name"), CONSTRUCTS, JAX_NAMES, times=2)
def test_a_result_that_jax_types_as_equal_can_be_cast(construct: str, name: str) -> None:
    assert CONSTRUCTS[construct](JAX_NAMES[name])(NUMBERS).tolist() == (NUMBERS + 2).tolist()


@pytest.mark.contract("H9")
@in_turns(("construct", "name"), CONSTRUCTS, HOSTCB_NAMES, times=2)
def test_a_result_that_varies_can_be_cast(construct: str, name: str) -> None:
    assert CONSTRUCTS[construct](HOSTCB_NAMES[name])(NUMBERS).tolist() == (NUMBERS + 2).tolist()


@pytest.mark.contract("H9", "H27")
@pytest.mark.parametrize("names", ["jax", "hostcb"])
def test_a_result_in_a_nested_shard_map_can_be_cast(names: str) -> None:
    with hcb.installed() if names == "jax" else contextlib.nullcontext():
        program = nested((JAX_NAMES if names == "jax" else HOSTCB_NAMES)["pure_callback"])
        assert program(NUMBERS).tolist() == (NUMBERS + 2).tolist()


@pytest.mark.contract("H9")
@pytest.mark.parametrize("name", HOSTCB_NAMES)
def test_a_result_that_varies_needs_no_cast(name: str) -> None:
    assert mapped(scanned(HOSTCB_NAMES[name]))(NUMBERS).tolist() == (NUMBERS + 2).tolist()


@pytest.mark.contract("H9")
def test_other_casts_are_refused_as_before() -> None:
    for axes, to in ((("a", "b"), "reduced"), ("a", "reduced")):
        with pytest.raises(ValueError, match="varying"):
            mapped(lambda x, axes=axes, to=to: jax.lax.pcast(x, axes, to=to), shape=(2, 2))(NUMBERS)


@pytest.mark.contract("H9")
def test_a_result_of_what_is_equal_is_equal() -> None:
    """The advice of H9: reduce first."""
    program = mapped(lambda x: HOSTCB_NAMES["io_callback"](jax.lax.psum(x.sum(), "a")), out=P())
    assert float(program(NUMBERS)) == NUMBERS.sum() + 1


def rate(w: Any, p: Any) -> Any:
    return p * io_callback(lambda loss: np.float32(0.5), jax.ShapeDtypeStruct((), np.float32), w.sum())


def stopped(w: Any) -> Any:
    def body(state: Any) -> Any:
        _, number, w = state
        flag = jax.ShapeDtypeStruct((), np.bool_)
        return io_callback(lambda i, loss: np.bool_(i < 2), flag, number, w.sum()), number + 1, w + 1

    return jax.lax.while_loop(lambda state: state[0], body, (jnp.array(True), 0, w))[2]


def slope(w: Any, p: Any) -> Any:
    return jax.grad(lambda p: rate(w, p))(p)


@pytest.mark.contract("H27")
@pytest.mark.usefixtures("_as_written")
@pytest.mark.parametrize("stage", ["jit", "eager"])
def test_a_value_of_the_host_is_one_for_all_devices(stage: str) -> None:
    def over(function: Any, specs: Any, out: Any) -> Any:
        program = mapped(function, specs, out)
        return program if stage == "jit" else program.__wrapped__

    both = P("a"), P()
    assert float(over(rate, both, P())(NUMBERS, jnp.float32(3))) == 1.5
    assert float(over(slope, both, P())(NUMBERS, jnp.float32(3))) == 0.5
    assert over(stopped, P("a"), P("a"))(NUMBERS).tolist() == (NUMBERS + 3).tolist()


@pytest.mark.contract("H9")
def test_a_result_of_what_differs_is_refused_as_one_for_all() -> None:
    with pytest.raises(ValueError, match="replication"):
        mapped(HOSTCB_NAMES["io_callback"], out=P())(NUMBERS)


@pytest.mark.contract("H21")
def test_gradients_of_collectives_are_as_without_hostcb() -> None:
    """JAX itself casts their cotangents."""
    mesh = Mesh(np.array(jax.devices()), "d")

    @jax.jit
    @jax.grad
    def gradient(x: jax.Array) -> jax.Array:
        return jax.shard_map(lambda v: jax.lax.psum((v * v).sum(), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)

    assert gradient(jnp.arange(8.0)).tolist() == [2.0 * number for number in range(8)]
