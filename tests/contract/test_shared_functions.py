"""H18: one host function in several callbacks, or equal ones: each callback is the one that the program asks for."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import STAGES, Record

import hostcb as hcb
from hostcb._primitive import eager

pytestmark = pytest.mark.contract("H18")

X = np.array([1, 2, 3], np.float32)
ONE = jax.ShapeDtypeStruct((3,), np.float32)


class Noting:
    """What it does depends on nothing but its operand, so that only the callback around it differs."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    def __call__(self, arg: Any, transforms: Any = None, *, device: Any = None) -> Any:
        self.seen.append((int(arg[0] - X[0]), device is not None))
        return np.asarray(arg)


def unused(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda function, x: (call(function, x), x)[1]


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "tap": hcb.id_tap,
    "tap_device": lambda function, x: hcb.id_tap(function, x, tap_with_device=True),
    "call": lambda function, x: hcb.call(function, x, result_shape=ONE),
    "call_device": lambda function, x: hcb.call(function, x, result_shape=ONE, call_with_device=True),
    "pure": lambda function, x: hcb.pure_callback(function, ONE, x),
    "pure_unused": unused(lambda function, x: hcb.pure_callback(function, ONE, x)),
    "io_unused": unused(lambda function, x: hcb.io_callback(function, ONE, x)),
    "io_ordered": lambda function, x: hcb.io_callback(function, ONE, x, ordered=True),
    "debug": unused(lambda function, x: hcb.debug.callback(function, x)),
    "debug_ordered": unused(lambda function, x: hcb.debug.callback(function, x, ordered=True)),
}


@pytest.mark.contract("H1", "H3", "X2", "X3", "X4")
@pytest.mark.parametrize("ways", [[*WAYS], [*WAYS][::-1]], ids=["forward", "backward"])
def test_all_ways_in_one_program(ways: list[str]) -> None:
    """With and without the device, pure and not, ordered and not; a pure callback that is unused does not run."""
    function = Noting()
    helpers.finish(jax.jit(lambda x: [WAYS[way](function, x + n) for n, way in enumerate(ways)])(X))
    expected = {n: way.endswith("_device") for n, way in enumerate(ways) if way != "pure_unused"}
    assert sorted(function.seen) == sorted(expected.items())


@pytest.mark.contract("H1")
@STAGES
def test_taps_with_and_without_a_result(stage: Any) -> None:
    record = Record()

    @stage
    def program(x: Any) -> Any:
        tap = lambda x, **options: hcb.id_tap(record.tap, x, **options)
        return tap(x), tap(x + 1, result=x * 5), tap(x + 2), tap(x, result=-x)

    results = helpers.finish(program(jnp.float32(1)))
    assert [float(each) for each in results] == [1, 5, 3, -1]
    assert record.values == [1, 2, 3, 1]


@pytest.mark.contract("H3")
def test_calls_with_results_in_other_trees() -> None:
    trees: list[Any] = [ONE, None, (ONE,), [ONE], {"a": ONE}, {"b": ONE}, (ONE, None), ()]
    pending: list[Any] = []

    def function(arg: Any) -> Any:
        return jax.tree.map(lambda _: np.asarray(arg), pending.pop(0))

    program = jax.jit(lambda x: [hcb.call(function, x, result_shape=tree) for tree in trees])
    for _ in range(2):
        pending.extend(trees)
        results = helpers.finish(program(X))
        assert [jax.tree.structure(each) for each in results] == [jax.tree.structure(each) for each in trees]
        assert all(np.array_equal(leaf, X) for leaf in jax.tree.leaves(results))


@pytest.mark.contract("H5", "X3", "X4")
def test_a_function_that_was_used_without_an_order_keeps_it_where_it_is_asked_for() -> None:
    record = Record()
    called = lambda x: (record.add("called"), np.float32(0))[1]
    # Whatever JAX and the library keep of these lives as long as they do.
    before = [
        jax.jit(lambda x: hcb.debug.callback(called, x)).trace(np.float32(1)),
        jax.jit(lambda x: hcb.io_callback(called, jnp.float32(0), x)).trace(np.float32(1)),
    ]

    def tapped(step: Any, x: Any) -> Any:
        hcb.id_tap(lambda *_: record.add("tapped"), step)
        return x

    program = jax.jit(lambda x: hcb.debug.callback(called, jax.lax.fori_loop(0, 10, tapped, x), ordered=True))
    for _ in range(10):
        program(np.float32(1))
    hcb.barrier_wait()
    assert record.args == [*["tapped"] * 10, "called"] * 10
    with pytest.raises(ValueError, match="ordered"):
        jax.vmap(lambda x: hcb.io_callback(called, jnp.float32(0), x, ordered=True))(X)
    assert before


@dataclasses.dataclass(frozen=True)
class Scale:
    """Scales of 1, 1.0 and True are equal, and do not do the same."""

    by: object
    seen: list[str] = dataclasses.field(compare=False)

    def __call__(self, *args: Any) -> Any:
        self.seen.append(type(self.by).__name__)
        if len(args) < 3:
            return np.array(args[0])
        _, out, x = args
        np.asarray(out)[...] = np.asarray(x)
        return None


OF_EQUAL: dict[str, Callable[[Any, Any], Any]] = {
    **{way: WAYS[way] for way in ("tap", "call", "pure", "io_unused", "io_ordered", "debug", "debug_ordered")},
    "buffer": lambda function, x: hcb.buffer_callback(function, ONE)(x),
    "dlpack": lambda function, x: hcb.dlpack_callback(function, ONE)(x),
}


@pytest.mark.contract("X2", "X3", "X4", "B1", "D1")
@pytest.mark.parametrize("way", OF_EQUAL)
@STAGES
def test_programs_of_equal_functions_call_their_own(stage: Any, way: str) -> None:
    seen: list[str] = []
    for by in (1, True, 1.0):
        helpers.finish(stage(lambda x, by=by: OF_EQUAL[way](Scale(by, seen), x))(jnp.asarray(X)))
    assert seen == ["int", "bool", "float"]


class Column(Record):
    """A function that is equal to every other one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Column)

    def __hash__(self) -> int:
        return 1

    def __call__(self, arg: Any, transforms: Any = None) -> Any:
        self.add(arg)
        return np.asarray(arg)


@pytest.mark.contract("H1", "H3")
@pytest.mark.parametrize("way", ["tap", "call"])
def test_equal_functions_in_one_program_get_their_own_operands(way: str) -> None:
    through = {"tap": hcb.id_tap, "call": lambda function, x: hcb.call(function, x, result_shape=x)}[way]
    first, second = Column(), Column()
    both = lambda x: through(second, through(first, x) * 2)
    helpers.finish(jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, carry: both(carry), both(x)))(np.float32(1)))
    assert (first.values, second.values) == ([1, 2, 4], [2, 4, 8])


BUFFERS = pytest.mark.parametrize("kind", ["buffer", "dlpack"])


def adding(kind: str, number: int) -> tuple[Any, Any]:
    """A function that adds `number`, and a callback of it."""

    def function(*args: Any) -> Any:
        if kind == "dlpack":
            return np.asarray(args[0]) + np.float32(number)
        _, out, x = args
        np.asarray(out)[...] = np.asarray(x) + number
        return None

    return function, {"buffer": hcb.buffer_callback, "dlpack": hcb.dlpack_callback}[kind](function, ONE)


@BUFFERS
def test_of_more_functions_outside_jit_than_programs_are_kept_for_each_gives_its_own_result_again(kind: str) -> None:
    callbacks = [adding(kind, number)[1] for number in range(eager.MOST_COMPILED + 1)]
    # All but the last one fit; with it, the first ones are no longer kept.
    for count in (eager.MOST_COMPILED, eager.MOST_COMPILED, eager.MOST_COMPILED + 1, eager.MOST_COMPILED + 1):
        for number, callback in enumerate(callbacks[:count]):
            assert np.array_equal(callback(jnp.asarray(X)), X + number)


@BUFFERS
def test_of_many_functions_outside_jit_the_first_are_forgotten(kind: str) -> None:
    """Programs of the last ones are kept for their next use."""
    references = []
    for number in range(2 * eager.MOST_COMPILED):
        function, callback = adding(kind, number)
        assert np.array_equal(callback(jnp.asarray(X)), X + number)
        references.append(weakref.ref(function))
        del function, callback
    helpers.finish([])
    # On newer releases of JAX a program and its function are a cycle.
    gc.collect()
    alive = [number for number, each in enumerate(references[: eager.MOST_COMPILED - 1]) if each() is not None]
    assert not alive, f"functions {alive} of {len(references)} are still alive"
