"""Random programs: the oracle of vmaps in vmaps, of derivatives of all modes and in each other, and of prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from conformance.fuzz.description import Block, Branch, Call, Collective, Compute, Input, Loop, Program, Wrapped
from conformance.fuzz.expected import Expected, ExpectedCall, UnjudgedError
from conformance.fuzz.matching import judge
from conformance.fuzz.oracle import expect
from conformance.fuzz.printed import printed_values, values_of_id_print
from conformance.oracle.history import Event

pytestmark = pytest.mark.contract("C63")


def a_program(*statements: Any, results: Sequence[str] = (), layout: str = "jit", devices: int = 1) -> Program:
    inputs = (Input("f0", 2), Input("v0", 0), Input("i0", 2))
    return Program(layout, devices, inputs, Block(("f0", "v0", "i0"), statements, tuple(results)))


def callback(label: int, operand: str, target: str, kind: str = "id_tap", method: str = "sequential") -> Call:
    return Call(target, label, kind, (operand,), "tuple", method)


def calls(expected: Expected) -> list[tuple[int, Any]]:
    return [(one.label, one.leaves[1].tolist()) for one in expected.calls]


def results(expected: Expected) -> list[Any]:
    return [one.tolist() for one in expected.results]


# vmap in vmap.

RISING = Loop(
    ("f20", "v2"),
    "scan",
    4,
    ("f1",),
    Block(("f21", "f22"), (Compute("f23", "one_more", ("f21",)),), ("f23", "f23")),
    None,
    "v1",
)
"""In each outer lane, a vector of the next four numbers."""


def in_two_vmaps(*statements: Any, result: str) -> Program:
    inner = Wrapped(("v3",), "vmap", ("v2", "f1"), Block(("f3", "f4"), statements, (result,)))
    body = Block(("f1",), (Compute("v1", "spread", ("f1",)), RISING, inner, Compute("f5", "sum", ("v3",))), ("f5",))
    return a_program(Wrapped(("v9",), "vmap", ("v0",), body), results=["v9"])


TABLE = [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7]]


def test_a_tap_in_two_vmaps_sees_the_lanes_of_both_the_outer_first() -> None:
    (expected,) = expect(in_two_vmaps(callback(1, "f3", "f6"), result="f6"))
    assert [(one.leaves[1].tolist(), one.lanes) for one in expected.calls] == [(TABLE, 2)]
    assert results(expected) == [[10, 14, 2, 6]]


def test_a_sequential_call_in_two_vmaps_runs_for_each_lane_of_both_in_any_order() -> None:
    (expected,) = expect(in_two_vmaps(callback(1, "f3", "f6", "call"), result="f6"))
    assert sorted(value for _, value in calls(expected)) == sorted(value for row in TABLE for value in row)
    assert len({one.group for one in expected.calls}) == 1
    assert expected.calls[0].group > 0


def test_a_call_whose_operand_varies_in_one_vmap_alone_runs_once_for_its_lanes() -> None:
    (expected,) = expect(in_two_vmaps(callback(1, "f4", "f6", "call"), result="f6"))
    assert calls(expected) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert {one.group for one in expected.calls} == {0}


def stacked(leaves: Any, *dims: tuple[int | None, ...]) -> Event:
    transforms = tuple(("batch", {"batch_dims": one}) for one in dims)
    return Event(0, "1", (np.asarray(0, np.int32), np.asarray(leaves, np.float32)), transforms=transforms)


def kinds_found(due: Sequence[ExpectedCall], *events: Event) -> list[str]:
    return [one.kind for one in judge([Expected(list(due))], [()], events)]


DUE = ExpectedCall(1, "id_tap", (np.zeros((4, 4), np.int32), np.asarray(TABLE, np.float32)), 2)


def test_the_axes_of_two_vmaps_are_those_that_the_tap_is_told() -> None:
    by_inner = np.asarray(TABLE).T
    # The inner entry is the first: its axis is that of the value before the outer vmap.
    assert kinds_found([DUE], stacked(TABLE, (None, 0), (None, 0))) == []
    assert kinds_found([DUE], stacked(by_inner, (None, 0), (None, 1))) == []


@pytest.mark.parametrize(
    "dims",
    [((None, 0),), ((None, 0), (None, None)), ((None, 0), (None, 2)), ()],
    ids=["an entry is missing", "an axis is missing", "an axis is too large", "no entry"],
)
def test_a_tap_that_is_told_wrong_axes_is_found(dims: Any) -> None:
    assert kinds_found([DUE], stacked(TABLE, *dims)) == ["wrong operand"]


def test_exchanged_vmaps_are_found() -> None:
    due = ExpectedCall(1, "id_tap", (np.zeros((4, 4), np.int32), np.arange(16, dtype=np.float32).reshape(4, 4)), 2)
    turned = np.arange(16).reshape(4, 4).T
    assert kinds_found([due], stacked(turned, (None, 0), (None, 0))) == ["wrong operand"]


def test_lanes_that_are_alike_need_no_entry_of_their_vmap() -> None:
    rows = np.broadcast_to(np.asarray([[5], [6], [7], [8]], np.float32), (4, 4))
    due = ExpectedCall(1, "id_tap", (np.zeros((4, 4), np.int32), rows), 2)
    assert kinds_found([due], stacked([5, 6, 7, 8], (None, 0))) == []
    assert kinds_found([due], stacked([5, 6, 7, 9], (None, 0))) == ["wrong operand"]


def one_call(value: float, label: int = 1, group: int = 0, **options: Any) -> ExpectedCall:
    return ExpectedCall(label, "call", (np.int32(0), np.float32(value)), group=group, **options)


def one_event(value: float, label: int = 1) -> Event:
    return Event(0, str(label), (np.asarray(0, np.int32), np.asarray(value, np.float32)))


GROUPED = [one_call(0, 2), one_call(1, group=3), one_call(2, group=3), one_call(3, group=3), one_call(9, 4)]


@pytest.mark.parametrize(
    ("ran", "kind"),
    [
        ([(0, 2), (2, 1), (3, 1), (1, 1), (9, 4)], []),
        ([(0, 2), (2, 1), (3, 1), (9, 4)], ["lost"]),
        ([(0, 2), (2, 1), (3, 1), (9, 4), (1, 1)], ["order"]),
        ([(2, 1), (0, 2), (3, 1), (1, 1), (9, 4)], ["order"]),
        ([(0, 2), (2, 1), (2, 1), (1, 1), (9, 4)], ["duplicate"]),
    ],
)
def test_calls_of_a_group_come_together_and_each_once(ran: list[tuple[float, int]], kind: list[str]) -> None:
    assert kinds_found(GROUPED, *(one_event(value, label) for value, label in ran)) == kind


def test_a_group_of_two_runs_is_two_groups() -> None:
    due = [Expected(GROUPED[1:3])]
    mixed = [one_event(1), one_event(1), one_event(2), one_event(2)]
    assert [one.kind for one in judge(due, [(), ()], mixed)] == ["order"]


# Derivatives.


def pushed(*statements: Any, result: str, tangent: str = "f0") -> Program:
    body = Block(("f1",), statements, (result,))
    return a_program(Wrapped(("f8", "f9"), "jvp", ("f0", tangent), body), results=["f8", "f9"])


SQUARE = Compute("f2", "multiply", ("f1", "f1"))


def test_forward_mode_gives_the_derivative_along_the_tangent_and_taps_primal_values_once() -> None:
    (expected,) = expect(pushed(SQUARE, callback(1, "f2", "f3"), result="f3"))
    assert calls(expected) == [(1, 4)]
    assert results(expected) == [4, 8]


def custom_jvp(kept: str = "f4") -> Wrapped:
    body = Block(("f3",), (callback(1, "f3", "f30", "call"),), ("f3",))
    rule = Block((kept, "f5"), (callback(2, "f5", "f6"), Compute("f7", "triple", ("f6",))), ("f7",))
    return Wrapped(("f10",), "custom_jvp", ("f2",), body, rule)


def test_forward_mode_taps_tangents_in_a_rule_after_the_function() -> None:
    (expected,) = expect(pushed(SQUARE, custom_jvp(), result="f10"))
    assert calls(expected) == [(1, 4), (2, 8)]
    assert results(expected) == [4, 24]


def test_a_rule_that_gets_a_zero_tangent_may_run_or_not_and_its_function_runs() -> None:
    zero = Compute("f11", "subtract", ("f0", "f0"))
    program = pushed(SQUARE, custom_jvp(), result="f10", tangent="f11")
    (expected,) = expect(a_program(zero, *program.body.statements, results=["f9"]))
    assert [(one.label, one.optional) for one in expected.calls] == [(1, False), (2, True)]


def test_forward_mode_of_a_loop_whose_trip_count_depends_on_data() -> None:
    body = Block(("i9", "f3"), (Compute("f4", "multiply", ("f3", "f1")), callback(1, "f4", "f5")), ("f5",))
    inside = Block(("f1", "i1"), (Loop(("f6",), "fori", "i1", ("f1",), body),), ("f6",))
    (expected,) = expect(a_program(Wrapped(("f8", "f9"), "jvp", ("f0", "i0", "f0"), inside), results=["f8", "f9"]))
    # The cube of two, and its derivative times two.
    assert calls(expected) == [(1, 4), (1, 8)]
    assert results(expected) == [8, 24]


CUBE = (Compute("f2", "multiply", ("f1", "f1")), Compute("f3", "multiply", ("f2", "f1")))


@pytest.mark.parametrize(
    ("outer", "inner", "second"),
    [("grad", "grad", 12), ("jvp", "grad", 24), ("grad", "jvp", 24), ("jvp", "jvp", 48)],
)
def test_the_derivative_of_a_derivative(outer: str, inner: str, second: int) -> None:
    """Of the cube at two, along a tangent of two where it is forward mode."""
    along = {"grad": (), "jvp": ("f7",)}
    function = Block(("f1",), (*CUBE, callback(1, "f3", "f4")), ("f4",))
    both = Wrapped(("f5", "f6"), inner, ("f12", *along[inner]), function)
    two = Compute("f7", "to_float", ("i12",))
    middle = Block(("f12", "i12"), (two, both), ("f6",))
    operands = ("f0", "i0", *(("f0",) if outer == "jvp" else ()))
    (expected,) = expect(a_program(Wrapped(("f8", "f9"), outer, operands, middle), results=["f8", "f9"]))
    assert calls(expected) == [(1, 8)]
    assert results(expected) == [{"grad": 12, "jvp": 24}[inner], second]


def test_a_rule_runs_again_for_the_derivative_around_it() -> None:
    rule = Block(("f4", "f5"), (callback(2, "f4", "f40"), callback(3, "f5", "f6")), ("f6",))
    body = Block(("f3",), (callback(1, "f3", "f30"),), ("f30",))
    custom = Wrapped(("f10",), "custom_jvp", ("f2",), body, rule)
    inside = Wrapped(("f11", "f12"), "grad", ("f13",), Block(("f1",), (SQUARE, custom), ("f10",)))
    outside = Wrapped(("f8", "f9"), "grad", ("f0",), Block(("f13",), (inside,), ("f12",)))
    (expected,) = expect(a_program(outside, results=["f8", "f9"]))
    # Forward: the function, its rule for the outer derivative, and for the inner one. Then the inner cotangent, and
    # the outer one: nothing but zeros, since the derivative does not depend on the function's result.
    assert [(one.label, one.leaves[1].tolist(), one.optional) for one in expected.calls] == [
        (1, 4, False),
        (2, 4, False),
        (2, 4, False),
        (3, 1, False),
        (3, 0, True),
    ]
    assert results(expected) == [4, 2]


def test_a_checkpoint_in_two_derivatives_is_not_judged() -> None:
    checkpoint = Wrapped(("f3",), "checkpoint", ("f1",), Block(("f2",), (callback(1, "f2", "f4"),), ("f4",)))
    inside = Wrapped(("f5", "f6"), "grad", ("f7",), Block(("f1",), (checkpoint,), ("f3",)))
    outside = Wrapped(("f8", "f9"), "jvp", ("f0", "f0"), Block(("f7",), (inside,), ("f6",)))
    with pytest.raises(UnjudgedError, match="derivatives of derivatives"):
        expect(a_program(outside))


def test_the_derivative_by_a_vector_that_vmap_takes_apart_is_a_vector() -> None:
    square = Wrapped(("v2",), "vmap", ("v1",), Block(("f3",), (Compute("f4", "multiply", ("f3", "f3")),), ("f4",)))
    body = Block(("v1",), (square, Compute("f5", "sum", ("v2",))), ("f5",))
    (expected,) = expect(a_program(Wrapped(("f8", "v9"), "grad", ("v0",), body), results=["v9"]))
    assert results(expected) == [[0, 2, 4, 6]]


def test_the_derivative_by_what_all_lanes_share_is_the_sum_of_theirs() -> None:
    times = Block(("f3", "f4"), (Compute("f5", "multiply", ("f3", "f4")),), ("f5",))
    body = Block(
        ("f1", "f2"),
        (
            Compute("v1", "spread", ("f2",)),
            Wrapped(("v2",), "vmap", ("v1", "f1"), times),
            Compute("f6", "sum", ("v2",)),
        ),
        ("f6",),
    )
    (expected,) = expect(a_program(Wrapped(("f8", "f9"), "grad", ("f0", "f0"), body), results=["f9"]))
    assert results(expected) == [8]


# Collectives.


@pytest.mark.parametrize(
    ("operation", "slopes"),
    # Inputs 2 and 3; the squares of the results are differentiated on each device, and the slopes meet again.
    [("psum", [20, 20]), ("ppermute", [4, 6]), ("all_gather", [32, 64])],
)
def test_a_collective_in_a_derivative_takes_the_slopes_back(operation: str, slopes: list[int]) -> None:
    body = Block(("f1",), (Collective("f2", operation, "f1"), Compute("f3", "multiply", ("f2", "f2"))), ("f3",))
    found = expect(a_program(Wrapped(("f8", "f9"), "grad", ("f0",), body), results=["f9"], layout="pmap", devices=2))
    assert [results(one)[0] for one in found] == slopes


def test_a_collective_in_forward_mode_and_in_a_vmap() -> None:
    body = Block(("f1",), (Collective("f2", "psum", "f1"), callback(1, "f2", "f3")), ("f3",))
    lanes = Wrapped(("v9",), "vmap", ("v0",), body)
    along = Wrapped(("f8", "f9"), "jvp", ("f0", "f0"), Block(("f11",), (Collective("f12", "psum", "f11"),), ("f12",)))
    first, second = expect(a_program(lanes, along, results=["v9", "f9"], layout="shard_map", devices=2))
    assert calls(first) == calls(second) == [(1, [1, 3, 5, 7])]
    assert results(first) == results(second) == [[1, 3, 5, 7], 5]


# Prints.


@pytest.mark.parametrize(
    ("text", "tree", "values"),
    [
        ("( 0 ( 1. 2 ) )\n", tuple, [0, 1.0, 2]),
        ("( 0 [ [0. 1. 2. 3.] -2.5 ] )\n", list, [0, [0.0, 1.0, 2.0, 3.0], -2.5]),
        ("( [0 0]\n  { a=[[ 0.  1.]\n [10. 11.]]\n    b=3 } )\n", dict, [[0, 0], [[0.0, 1.0], [10.0, 11.0]], 3]),
    ],
)
def test_the_text_of_a_print_has_its_values(text: str, tree: type, values: list[Any]) -> None:
    found = values_of_id_print(text, tree, len(values) - 1)
    assert [one.tolist() for one in found] == values
    assert [one.dtype for one in found] == [np.float32 if "." in str(one) else np.int32 for one in values]


@pytest.mark.parametrize("text", ["( 0 [ 1. 2 ] )", "( 0 ( 1. ) )", "( 0 ( 1. 2 3 ) )", "( 0 ( 1. 2 ) ) 4"])
def test_a_print_of_another_tree_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        values_of_id_print(text, tuple, 2)


def test_the_text_of_a_debug_print_has_its_values() -> None:
    assert [one.tolist() for one in printed_values("1; 2.0; [0. 1.]")] == [1, 2.0, [0.0, 1.0]]


def test_a_callback_in_a_batched_branch_runs_for_each_lane_even_if_its_operand_is_the_same() -> None:
    left = Block(("f3",), (callback(1, "f3", "f4", "debug_callback"),), ("f4",))
    right = Block(("f5",), (), ("f5",))
    body = Block(
        ("f1", "f2"), (Compute("i2", "to_whole", ("f1",)), Branch(("f6",), "i2", ("f2",), (left, right))), ("f6",)
    )
    (expected,) = expect(a_program(Wrapped(("v1",), "vmap", ("v0", "f0"), body), results=["v1"]))
    assert calls(expected) == [(1, 2)] * 4


# Pure callbacks.


def test_a_pure_callback_may_be_called_in_a_loop_of_no_step_and_in_a_branch_that_is_not_taken() -> None:
    zero = Compute("i1", "minus_whole", ("i0",))
    body = Block(("i9", "f1"), (callback(1, "f0", "f2", "pure_callback"), callback(2, "f0", "f3")), ("f2",))
    loop = Loop(("f4",), "fori", "i1", ("f0",), body)
    taken = Block(("f5",), (), ("f5",))
    other = Block(("f6",), (callback(3, "f6", "f7", "pure_callback"), callback(4, "f6", "f8", "call")), ("f7",))
    branch = Branch(("f9",), "i1", ("f4",), (taken, other))
    (expected,) = expect(a_program(zero, loop, branch, results=["f9"]))
    assert [(one.label, one.leaves[1], one.optional) for one in expected.calls] == [(1, 2, True), (3, 2, True)]
    assert kinds_found(expected.calls, one_event(2, 3)) == []
    assert kinds_found(expected.calls, one_event(5, 3)) == ["wrong operand"]
