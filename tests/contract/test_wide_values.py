"""H3, B1, D1: with x64 off, values of 64 bits arrive as they are, and results of 64 bits are exact or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import PartitionSpec
from support.helpers import Record
from support.pairwise import in_turns

import hostcb as hcb

SCALAR = jax.ShapeDtypeStruct((), np.float32)
WIDE: dict[str, Any] = {
    "float64": np.array([1 / 3, 2.0**40 + 0.5]),
    "int64": np.array([2**40 + 7, -1]),
    "uint64": np.array([2**63 + 1, 1], np.uint64),
    "complex128": np.array([1 / 3 + 1j, 0]),
    "scalar": np.float64(1 / 3),
}
VALUES = pytest.mark.parametrize("name", WIDE)
X = jnp.arange(3.0)


def as_jax_array(value: Any) -> Any:
    with jax.enable_x64(True):
        return jnp.asarray(value)


def same(got: Any, value: Any) -> None:
    assert np.asarray(got).dtype == np.asarray(value).dtype, f"{np.asarray(got).dtype}: {got}"
    np.testing.assert_array_equal(got, value)


def kinds(seen: list[Any]) -> dict[str, Callable[..., Any]]:
    """For each kind of callback a function that calls it back with its arguments; the last one is recorded."""

    def note(*args: Any) -> np.float32:
        seen.append(np.asarray(args[-1]).copy())
        return np.float32(0)

    def fill(_: Any, out: Any, *args: Any) -> None:
        np.asarray(out)[...] = note(*args)

    return {
        "id_tap": lambda *args: hcb.id_tap(lambda values, _: note(*values), args),
        "call": lambda *args: hcb.call(lambda a: note(*a), args, result_shape=SCALAR, vmap_method="sequential"),
        "pure": lambda *args: hcb.pure_callback(note, SCALAR, *args, vmap_method="sequential_unrolled"),
        "io": lambda *args: hcb.io_callback(note, SCALAR, *args),
        "debug": lambda *args: hcb.debug.callback(note, *args),
        "jax_arrays": lambda *args: hcb.debug.callback(hcb.jax_arrays(note), *args, ordered=True),
        "buffer": lambda *args: hcb.buffer_callback(fill, SCALAR, vmap_method="sequential")(*args),
        "dlpack": lambda *args: hcb.dlpack_callback(note, SCALAR, vmap_method="sequential")(*args),
    }


KINDS = [*kinds([])]


def sharded(program: Callable[[Any], Any]) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("i",))
    spec = PartitionSpec("i")
    jax.jit(jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec))(jnp.arange(2.0))


# Each runs a function of a number, which calls back.
TRANSFORMS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "eager": lambda f: f(X[0]),
    "jit": lambda f: jax.jit(f)(X[0]),
    "vmap": lambda f: jax.vmap(f)(X),
    "vmap_of_jit": lambda f: jax.vmap(jax.jit(f))(X),
    "vmap_in_a_loop": lambda f: jax.vmap(f)(jnp.arange(17.0)),
    "grad": lambda f: jax.grad(lambda x: f(lax.stop_gradient(x)))(1.0),
    "scan": lambda f: lax.scan(lambda c, x: (c, f(x)), 0, X),
    "shard_map": sharded,
}


@pytest.mark.contract("H3")
@in_turns(("kind", "transform"), KINDS, TRANSFORMS, times=3)
def test_operands_arrive_as_they_are(kind: str, transform: str) -> None:
    for value in (WIDE["scalar"], as_jax_array(WIDE["int64"])):
        seen: list[Any] = []

        def program(x: Any, value: Any = value, seen: list[Any] = seen) -> Any:
            results = jax.tree.leaves(kinds(seen)[kind](x, value))
            return x + sum(jnp.sum(each).astype(np.float32) * 0 for each in results[:1])

        TRANSFORMS[transform](program)
        jax.effects_barrier()
        assert seen, "it should call back"
        for each in seen:
            same(each, value)


@pytest.mark.contract("H3")
@in_turns(("name", "kind"), WIDE, KINDS, times=3)
def test_operands_of_each_type(kind: str, name: str) -> None:
    seen: list[Any] = []
    for value in (WIDE[name], as_jax_array(WIDE[name])):
        kinds(seen)[kind](value)
        jax.jit(kinds(seen)[kind])(as_jax_array(WIDE[name]))
    jax.effects_barrier()
    assert len(seen) == 4
    for each in seen:
        same(each, WIDE[name])


@pytest.mark.contract("H1", "H3")
@VALUES
def test_the_program_of_a_tap_goes_on_with_what_jax_makes_of_them(name: str) -> None:
    record = Record()
    for stage in (lambda f: f, jax.jit):
        # JAX knows the array by its identity before the tap, and after it.
        narrow = stage(
            lambda: (jnp.asarray(WIDE[name]), hcb.id_tap(record.tap, (WIDE[name], X)), lax.add(WIDE[name], WIDE[name]))
        )
        before, (wide, _), after = narrow()
        same(wide, before)
        assert after.dtype == jax.dtypes.canonicalize_dtype(WIDE[name].dtype)
    hcb.barrier_wait()
    for wide, _ in record.args:
        same(wide, WIDE[name])


@pytest.mark.contract("X4")
def test_prints_have_all_digits(capsys: pytest.CaptureFixture[str]) -> None:
    hcb.debug.print("{} {x:.17g} {n}", WIDE["scalar"], x=WIDE["scalar"], n=np.int64(2**40 + 7))
    hcb.id_print(WIDE["int64"])
    hcb.barrier_wait()
    assert capsys.readouterr().out == f"{1 / 3} {1 / 3:.17g} {2**40 + 7}\n[{2**40 + 7}            -1]\n"


def filling(module_callback: Any, value: Any, **options: Any) -> Callable[[Any], Any]:
    def fill(_: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] = value

    return module_callback(fill, jax.ShapeDtypeStruct(np.shape(value), np.asarray(value).dtype), **options)


@pytest.mark.contract("B1", "D1", "H27")
@VALUES
@pytest.mark.parametrize("of", ["buffer", "dlpack", "install"])
def test_results_in_place_are_exact(of: str, name: str) -> None:
    value = WIDE[name]

    def make(**options: Any) -> Any:
        if of == "dlpack":
            shape = jax.ShapeDtypeStruct(np.shape(value), np.asarray(value).dtype)
            return hcb.dlpack_callback(lambda x: np.array(value), shape, **options)
        return filling(buffer_callback if of == "install" else hcb.buffer_callback, value, **options)

    def check() -> None:
        for has_side_effect in (False, True):
            same(make(has_side_effect=has_side_effect)(X), value)
            same(jax.jit(make(has_side_effect=has_side_effect))(X), value)
        same(lax.scan(lambda c, x: (c, make()(x)), 0, X)[1], np.stack([value] * 3))
        for method, size, stage in (
            ("sequential", 3, jax.jit),
            ("sequential", 0, jax.jit),
            ("sequential_unrolled", 3, lambda f: f),
            ("sequential_unrolled", 0, jax.jit),
        ):
            same(stage(jax.vmap(make(vmap_method=method)))(np.ones(size, np.float32)), np.stack([value] * 3)[:size])

    if of == "install":
        with hcb.installed():
            check()
    else:
        check()


@pytest.mark.contract("H3", "X2", "X3")
@pytest.mark.parametrize("kind", ["call", "pure_callback", "io_callback"])
def test_a_wide_result_is_refused_before_anything_runs(kind: str) -> None:
    """Guards against jax-ml/jax#12186."""
    seen: list[Any] = []
    wide = jax.ShapeDtypeStruct((), np.int64)
    ways = {
        "call": lambda x: hcb.call(seen.append, x, result_shape=wide),
        "pure_callback": lambda x: hcb.pure_callback(seen.append, wide, x),
        "io_callback": lambda x: hcb.io_callback(seen.append, wide, x),
    }
    with pytest.raises(ValueError, match="x64"):
        ways[kind](np.int32(1))
    assert seen == []


@pytest.mark.contract("B3")
def test_a_wide_operand_shares_its_memory_with_a_wide_result() -> None:
    value = as_jax_array(WIDE["int64"])

    def add(_: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] += 1

    f = hcb.buffer_callback(add, value, input_output_aliases={0: 0})
    same(f(value), WIDE["int64"] + 1)
    same(f(WIDE["int64"]), WIDE["int64"] + 1)
    with pytest.raises(ValueError, match="different abstract value int32"):
        hcb.buffer_callback(add, jax.ShapeDtypeStruct((2,), np.int32), input_output_aliases={0: 0})(value)


STAGED: dict[str, Any] = {"jit": jax.jit, "eager": lambda f: f}


@pytest.mark.contract("H27")
@in_turns(("name", "stage"), WIDE, STAGED)
def test_installed_callbacks_give_what_those_of_jax_give(name: str, stage: str) -> None:
    seen: list[Any] = []

    def note(x: Any) -> Any:
        seen.append((np.asarray(x).dtype, np.asarray(x).tolist()))
        return np.float32(0)

    def fill(_: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] = note(np.array(np.asarray(x)))

    def run() -> list[Any]:
        seen.clear()
        for value in (WIDE[name], as_jax_array(WIDE[name])):
            for callback in (
                lambda x: jax.pure_callback(note, SCALAR, x),
                lambda x: io_callback(note, SCALAR, x),
                lambda x: jax.debug.callback(note, x),
                lambda x: jax.debug.callback(ordered=True)(note, x),
                buffer_callback(fill, SCALAR),
            ):
                STAGED[stage](lambda callback=callback, value=value: callback(value))()
                jax.effects_barrier()
        return [*seen]

    expected = run()
    with hcb.installed():
        assert run() == expected
    assert len(expected) == 10
