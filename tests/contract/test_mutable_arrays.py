"""Mutable arrays (`jax.Ref`) as operands: their value at that point of the program travels (H1, H2, H3, X2, X3, X4)."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs.mutable_arrays import CASES, KINDS, UNDIFFERENTIATED
from support.helpers import Record
from support.subprocesses import run_program

import hostcb as hcb

TWICE = ("scan", "fori_loop", "while_loop", "grad_of_scan")


@functools.cache
def outcomes() -> dict[tuple[str, str], tuple[Any, str | None]]:
    ended = run_program("mutable_arrays.py", devices=1, timeout=200).check()
    lines = [line for line in ended.lines if line.startswith("[")]
    return {(kind, place): (seen, error) for kind, place, seen, error in map(json.loads, lines)}


@pytest.mark.contract("X4")
@pytest.mark.parametrize(("kind", "place"), [(kind, place.__name__) for kind, place in CASES])
def test_the_value_at_that_point_travels(kind: str, place: str) -> None:
    seen, error = outcomes()[kind, place]
    if place == "grad" and kind in UNDIFFERENTIATED:
        assert error is not None and "jax.custom_jvp" in error, error
        return
    assert error is None, error
    if kind == "pure_callback" and place == "grad_of_scan":
        assert seen == [], "the result is not used, so nothing need be called"
        return
    assert seen == ([[1.0, 2.0], [12.0, 13.0]] if place in TWICE else [[1.0, 2.0]])


def fresh() -> Any:
    return jax.new_ref(jnp.arange(2.0))


@pytest.mark.contract("H1")
def test_a_tap_returns_the_mutable_array_itself() -> None:
    record = Record()

    def program(pair: Any) -> Any:
        tapped = hcb.id_tap(record.tap, pair)
        assert tapped["a"] is pair["a"]
        tapped["a"][...] += 1
        hcb.id_tap(record.tap, pair)
        return tapped["b"]

    pair = {"a": fresh(), "b": jnp.ones(1)}
    program(pair)
    jax.jit(program)(pair)
    hcb.barrier_wait()
    assert [value["a"] for value in record.values] == [[0, 1], [1, 2], [1, 2], [2, 3]]


@pytest.mark.contract("H3")
def test_a_mutable_array_may_stand_for_a_result() -> None:
    r = fresh()

    @jax.jit
    def program() -> Any:
        r[...] = hcb.call(lambda x: x * 2, r, result_shape=r)

    program()
    program()
    assert r[...].tolist() == [0, 4]


@pytest.mark.contract("X2")
@pytest.mark.parametrize("vmap_method", ["sequential", "expand_dims", "broadcast_all"])
def test_under_vmap(vmap_method: str) -> None:
    def program(x: Any) -> Any:
        r = jax.new_ref(x)
        r[...] += 1
        result = hcb.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct((2,), np.float32), r,
                                   vmap_method=vmap_method)  # fmt: skip
        r[...] += 1
        return result

    assert jax.jit(jax.vmap(program))(jnp.arange(6.0).reshape(3, 2)).tolist() == [[2, 4], [6, 8], [10, 12]]


@pytest.mark.contract("H7")
def test_a_tap_under_vmap_sees_all_elements() -> None:
    record = Record()

    def program(x: Any) -> Any:
        r = jax.new_ref(x)
        r[...] += 1
        hcb.id_tap(record.tap, r)
        r[...] += 1
        return r[...]

    jax.vmap(program)(jnp.arange(3.0))
    hcb.barrier_wait()
    assert record.values == [[1, 2, 3]]
    assert record.transforms == [(("batch", {"batch_dims": (0,)}),)]


@pytest.mark.contract("H1")
def test_mutable_arrays_of_keys_and_of_other_types() -> None:
    record = Record()
    keys, flags = jax.new_ref(jax.random.split(jax.random.key(0), 2)), jax.new_ref(jnp.array([True, False]))
    small = jax.new_ref(jnp.arange(4, dtype=jnp.int4))
    scalar, empty = jax.new_ref(jnp.float32(3)), jax.new_ref(jnp.zeros((0, 2)))
    tree = [keys, flags, small, scalar, empty]
    hcb.id_tap(record.tap, tree)
    jax.jit(lambda: hcb.id_tap(record.tap, tree) and None)()
    hcb.barrier_wait()
    expected = [jax.random.key_data(keys[...]).tolist(), [True, False], [0, 1, 2, 3], 3, []]
    assert record.values == [expected] * 2


@pytest.mark.contract("X4")
def test_each_device_of_a_mesh_has_its_part() -> None:
    record = Record()
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    x = jax.device_put(jnp.arange(8.0), jax.sharding.NamedSharding(mesh, spec))

    def part(x: Any) -> Any:
        r = jax.new_ref(x)
        r[...] += 1
        hcb.debug.callback(record.add, r, ordered=True)
        r[...] += 1
        return r[...]

    out = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))(x)
    assert out.tolist() == list(range(2, 10))
    whole = jax.new_ref(x)
    jax.jit(lambda: hcb.debug.callback(record.add, whole, ordered=True))()
    hcb.barrier_wait()
    assert sorted(record.values[:8]) == [[i + 1] for i in range(8)]
    assert record.values[8:] == [list(range(8))]


IN_PLACE = {
    "buffer_callback": lambda **aliases: hcb.buffer_callback(print, fresh(), **aliases),
    "dlpack_callback": lambda **aliases: hcb.dlpack_callback(print, fresh(), in_place=True, **aliases),
}


@pytest.mark.contract("B2")
@pytest.mark.parametrize("kind", IN_PLACE)
@pytest.mark.parametrize("aliases", [{}, {"input_output_aliases": {0: 0}}], ids=["plain", "aliased"])
@pytest.mark.parametrize("place", ["argument", "closed_over", "eager", "part"])
def test_memory_of_mutable_arrays_is_not_to_be_had(kind: str, aliases: Any, place: str) -> None:
    callback, r = IN_PLACE[kind](**aliases), fresh()
    run = {
        "argument": lambda: jax.jit(callback)(r),
        "closed_over": lambda: jax.jit(lambda: callback(r))(),
        "eager": lambda: callback(r),
        "part": lambda: jax.jit(lambda r: callback(r.at[:]))(r),
    }[place]
    with pytest.raises(TypeError, match=rf"{kind}: .*mutable array.*ref\[\.\.\.\]"):
        run()


@pytest.mark.contract("B2")
def test_the_shapes_of_results_are_not_asked_of_a_mutable_array() -> None:
    """The function of shapes knows arrays alone, and could fail in words of its own."""
    callback = hcb.dlpack_callback(np.from_dlpack, lambda x: pytest.fail("the shapes are asked for"))
    with pytest.raises(TypeError, match=r"dlpack_callback: .*mutable array.*ref\[\.\.\.\]"):
        callback(fresh())


@pytest.mark.contract("B1")
def test_the_value_of_a_mutable_array_is_taken() -> None:
    r = fresh()

    @jax.jit
    def program() -> None:
        r[...] = hcb.buffer_callback(lambda _, out, x: np.copyto(np.asarray(out), np.asarray(x) + 1), r)(r[...])

    program()
    assert r[...].tolist() == [1, 2]


@pytest.mark.contract("H7")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "print" not in kind])
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
def test_conditions_that_would_see_old_values_are_refused(kind: str, nested: bool) -> None:
    """JAX evaluates the condition with the value from before the loop, for its own callbacks and without any."""

    def program(x: Any) -> Any:
        r = jax.new_ref(x)

        def condition(step: Any) -> Any:
            result = KINDS[kind](r)
            return (step < 2) & (True if result is None else jnp.sum(result) < 100)

        def body(step: Any) -> Any:
            r[...] += 1
            return step + 1

        if nested:
            jax.lax.scan(lambda c, _: (c, jax.lax.while_loop(condition, body, 0)), 0, None, length=2)
        else:
            jax.lax.while_loop(condition, body, 0)
        return r[...]

    with pytest.raises(NotImplementedError, match="while_loop"):
        jax.jit(program)(jnp.arange(2.0))


@pytest.mark.contract("H4")
def test_conditions_with_mutable_arrays_that_do_not_change() -> None:
    record = Record()

    def program(x: Any) -> Any:
        r, other = jax.new_ref(x), jax.new_ref(x)

        def condition(step: Any) -> Any:
            hcb.id_tap(record.tap, r)
            hcb.debug.callback(record.add, r)
            return step < 2

        def body(step: Any) -> Any:
            other[...] += r[...]
            return step + 1

        jax.lax.while_loop(condition, body, 0)
        return other[...]

    assert jax.jit(program)(jnp.arange(2.0)).tolist() == [0, 3]
    hcb.barrier_wait()
    assert record.values == [[0, 1]] * 6


@pytest.mark.contract("X4")
def test_loops_of_mutable_arrays_without_callbacks_are_jax_s_own() -> None:
    def program(x: Any) -> Any:
        r = jax.new_ref(x)

        def body(step: Any) -> Any:
            r[...] += 1
            return step + 1

        jax.lax.while_loop(lambda step: (step < 2) & (r[0] < 100), body, 0)
        return r[...]

    assert jax.jit(program)(jnp.arange(2.0)).tolist() == [2, 3]


def in_scan(ref: Any) -> None:
    jax.lax.scan(lambda carry, _: (jax.ref.addupdate(ref, ..., jnp.ones(2)), (carry, None))[1], 0, None, length=2)


def doubled(ref: Any) -> None:
    ref[...] = ref[...] * 2


CHANGES: dict[str, Any] = {
    "sets": doubled,
    "sets a part": lambda ref: ref.__setitem__(1, jnp.float32(7)),
    "adds": lambda ref: jax.ref.addupdate(ref, ..., jnp.ones(2)),
    "adds to a part": lambda ref: jax.ref.addupdate(ref, 0, jnp.float32(1)),
    "swaps": lambda ref: jax.ref.swap(ref, ..., jnp.ones(2)),
    "in jit": lambda ref: jax.jit(doubled)(ref),
    "in a scan": in_scan,
    "in a branch": lambda ref: jax.lax.cond(ref[0] > 1, lambda: doubled(ref), lambda: None),
}


@pytest.mark.contract("H4")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("branch", [False, True], ids=["condition", "branch in the condition"])
def test_conditions_are_refused_however_the_body_changes_what_they_use(change: str, branch: bool) -> None:
    def program(x: Any) -> Any:
        r = jax.new_ref(x)
        call = lambda value: hcb.call(lambda value: value, value, result_shape=value)

        def condition(step: Any) -> Any:
            value = jax.lax.cond(r[1] > 0, call, lambda value: value, r[...]) if branch else call(r[...])
            return (step < 2) & (value[0] < 100)

        jax.lax.while_loop(condition, lambda step: (CHANGES[change](r), step + 1)[1], 0)
        return r[...]

    with pytest.raises(NotImplementedError, match="while_loop"):
        jax.jit(program)(jnp.arange(2.0))
