"""Random programs: it is open whether JAX batches a derivative, unless its lanes differ, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import data

from conformance.fuzz.corpus import kept
from conformance.fuzz.description import (
    Block,
    Branch,
    Call,
    Compute,
    Input,
    Loop,
    Program,
    Wrapped,
    statements_of,
)
from conformance.fuzz.drawing import DEEPEST, Drawer, Place
from conformance.fuzz.expected import Expected, UnjudgedError
from conformance.fuzz.matching import judge
from conformance.fuzz.oracle import expect
from conformance.oracle.history import Event

pytestmark = pytest.mark.contract("C63")

CORPUS = {one.name: one.program for one in kept()}


def a_program(*statements: Any, results: Sequence[str] = ()) -> Program:
    inputs = (Input("f0", 2), Input("v0", 1), Input("i0", 2))
    return Program("jit", 1, inputs, Block(("f0", "v0", "i0"), statements, tuple(results)))


def callback(operand: str, kind: str = "debug_callback_ordered", method: str = "sequential") -> Call:
    return Call("f99" if operand[0] == "f" else "v99", 1, kind, (operand,), "tuple", method)


def in_lanes(*statements: Any, result: str = "f1") -> Program:
    """`f1` differs among the lanes of a vmap, and `f2` and `i2` do not."""
    body = Block(("f1", "f2", "i2"), statements, (result,))
    return a_program(Wrapped(("v1",), "vmap", ("v0", "f0", "i0"), body), results=["v1"])


def slope_of(operation: str) -> Wrapped:
    """`f6` is the derivative of the operation by what does not differ."""
    function = Block(("f3", "f4"), (Compute("f7", operation, ("f3", "f4")),), ("f7",))
    return Wrapped(("f5", "f6"), "grad", ("f2", "f1"), function)


UNREACHED = Wrapped(("f5", "f6"), "grad", ("f2", "f1"), Block(("f3", "f4"), (), ("f4",)))


def found(expected: Expected, *leaves: Any) -> list[str]:
    """The anomalies of a program that ran its callback with these."""
    events = [
        Event(place, "1", (np.asarray(0, np.int32), np.asarray(one, np.float32))) for place, one in enumerate(leaves)
    ]
    return [one.kind for one in judge([expected], [expected.results], events)]


@pytest.mark.parametrize(("derivative", "value"), [(UNREACHED, 0), (slope_of("add"), 1)], ids=["zero", "one"])
@pytest.mark.parametrize("kind", ["debug_callback_ordered", "debug_callback", "call"])
def test_a_slope_that_is_alike_in_all_lanes_comes_once_or_for_each(derivative: Wrapped, value: int, kind: str) -> None:
    stopped = Compute("f8", "stop", ("f6",))
    (expected,) = expect(in_lanes(derivative, stopped, callback("f8", kind)))
    assert found(expected, value) == found(expected, *[value] * 4) == []
    assert found(expected) == ["lost"]
    assert found(expected, *[value] * 5) == ["duplicate"]
    assert found(expected, value + 1) != []


def test_a_slope_that_differs_comes_for_each_lane() -> None:
    (expected,) = expect(in_lanes(slope_of("multiply"), callback("f6")))
    assert found(expected, 1, 2, 3, 4) == []
    assert found(expected, 1) == ["lost"]


def test_a_value_that_is_no_derivative_comes_for_each_lane_even_if_all_are_alike() -> None:
    alike = Compute("f3", "subtract", ("f1", "f1"))
    (expected,) = expect(in_lanes(alike, callback("f3")))
    assert found(expected, 0) == ["lost"]
    (expected,) = expect(in_lanes(callback("f2")))
    assert found(expected, 2, 2) == ["duplicate"]


def test_the_primal_value_beside_a_slope_is_not_open() -> None:
    (expected,) = expect(in_lanes(Wrapped(("f5", "f6"), "grad", ("f2",), Block(("f3",), (), ("f3",))), callback("f5")))
    assert found(expected, 2) == []
    assert found(expected, 2, 2) == ["duplicate"]


def test_a_slope_alike_in_all_lanes_comes_stacked_or_not_where_lanes_are_stacked() -> None:
    (expected,) = expect(
        in_lanes(slope_of("add"), Compute("f8", "stop", ("f6",)), callback("f8", "call", "broadcast_all"))
    )
    assert found(expected, 1) == found(expected, [1] * 4) == []
    assert found(expected, *[1] * 4) == ["duplicate"]
    assert found(expected, [1, 1, 1, 2]) == ["wrong operand"]


def test_a_tangent_is_batched_by_a_branch_that_does_not_run() -> None:
    (expected,) = expect(CORPUS["tangent_of_branch"])
    assert [(one.label, one.leaves[1], one.optional) for one in expected.calls] == [
        (1, 2, False),
        (2, 0, False),
        *[(2, 0, True)] * 3,
    ]


def test_what_a_loop_carries_is_open_if_a_slope_comes_into_it() -> None:
    loop = Loop(("f8",), "fori", 2, ("f2",), Block(("i9", "f9"), (callback("f9"),), ("f6",)))
    (expected,) = expect(in_lanes(slope_of("add"), loop))
    # Its first operand is no derivative, but JAX batches it if it batches the second.
    assert found(expected, 2, 1) == found(expected, *[2] * 4, *[1] * 4) == []
    assert found(expected, 2) == ["lost"]


def branching(*statements: Any) -> Program:
    other = Block(("f10",), (), ("f10",))
    branch = Branch(("f9",), "i8", ("f2",), (other, Block(("f8",), statements, ("f8",))))
    return in_lanes(slope_of("add"), Compute("i8", "to_whole", ("f6",)), branch, result="f9")


def test_a_callback_behind_a_predicate_that_may_be_batched_is_not_judged() -> None:
    with pytest.raises(UnjudgedError, match="whether JAX batches the predicate"):
        expect(branching(callback("f8")))
    (expected,) = expect(branching(Compute("f11", "one_more", ("f8",))))
    assert [one.tolist() for one in expected.results] == [[2, 2, 2, 2]]
    # A pure one gets its operand with lanes or without.
    (expected,) = expect(branching(callback("f8", "pure_callback", "broadcast_all")))
    assert found(expected, 2, [2] * 4) == []
    assert found(expected, [2, 2, 2, 3]) == ["wrong operand"]


def rule_of(*statements: Any, result: str, reached: str) -> Program:
    """The derivative of a function with a rule, of which `f3` depends on its result and `f2` does not."""
    rule = Block(("f5", "f6"), statements, (result,))
    custom = Wrapped(("f8",), "custom_vjp", ("f3",), Block(("f4",), (), ("f4",)), rule)
    body = Block(("f3", "f2"), (custom,), (reached,))
    return a_program(Wrapped(("f10", "f11"), "grad", ("f0", "f0"), body), results=["f11"])


def test_a_rule_that_gives_something_for_nothing_is_not_judged_where_it_may_not_run() -> None:
    with pytest.raises(UnjudgedError, match="whether a rule runs"):
        expect(rule_of(result="f5", reached="f2"))
    (expected,) = expect(rule_of(result="f5", reached="f8"))
    assert [one.tolist() for one in expected.results] == [2]


def test_the_callbacks_of_a_rule_that_may_not_run_may_be_missing() -> None:
    times = Compute("f7", "multiply", ("f5", "f6"))
    (expected,) = expect(rule_of(callback("f6"), times, result="f7", reached="f2"))
    assert found(expected) == found(expected, 0) == []
    assert [one.tolist() for one in expected.results] == [0]


def test_the_cotangents_of_lanes_inside_of_a_derivative_are_those_of_each() -> None:
    """The vmap between two derivatives is inside of the outer one: what it leaves open does not change a sum."""
    square = Compute("f7", "multiply", ("f3", "f3"))
    inner = Wrapped(("f5", "f6"), "grad", ("f2", "f1"), Block(("f3", "f4"), (square,), ("f7",)))
    lanes = Wrapped(("v2",), "vmap", ("v1", "f20"), Block(("f1", "f2"), (inner,), ("f6",)))
    body = Block(("f20", "f21"), (Compute("v1", "spread", ("f21",)), lanes, Compute("f22", "sum", ("v2",))), ("f22",))
    (expected,) = expect(a_program(Wrapped(("f8", "f9"), "grad", ("f0", "f0"), body), results=["f8", "f9"]))
    # Twice the variable in each of four lanes.
    assert [one.tolist() for one in expected.results] == [0, 8]


@pytest.mark.parametrize("own", [False, True], ids=["JAX", "hostcb"])
def test_effects_in_a_loop_that_is_differentiated_are_drawn_for_hostcb_alone(own: bool) -> None:
    seen: set[str] = set()

    @settings(max_examples=60, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @seed(1)
    @given(data())
    def drawn(data: Any) -> None:
        drawer = Drawer(data.draw, ("io_callback", "debug_callback", "pure_callback"), own=own)
        loop = drawer.loop(["f0", "v0", "i0"], [], Place(depth=DEEPEST - 1, derivatives=("grad",)))
        assert isinstance(loop, Loop)
        seen.update(one.kind for one in statements_of(loop.body) if isinstance(one, Call))

    drawn()
    assert seen == {"pure_callback", *(("io_callback", "debug_callback") if own else ())}
