"""Random programs: their description, the oracle, and the comparison. Programs run in `test_conformance_fuzzing.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from conformance.fuzz.campaign import Campaign
from conformance.fuzz.corpus import kept
from conformance.fuzz.description import Block, Branch, Call, Compute, Input, Loop, Program, Wrapped, from_json, to_json
from conformance.fuzz.drawing import programs
from conformance.fuzz.expected import Expected, ExpectedCall, UnjudgedError, UnknownOperationError
from conformance.fuzz.interpreter import Interpreter
from conformance.fuzz.matching import ORDERS_OF_JAX, judge
from conformance.fuzz.oracle import expect
from conformance.fuzz.source import function_of
from conformance.fuzz.trying import Answer
from conformance.oracle.history import Event

pytestmark = pytest.mark.contract("C63")


def a_program(*statements: Any, results: Sequence[str] = (), layout: str = "jit", devices: int = 1) -> Program:
    inputs = (Input("f0", 1), Input("v0", 0), Input("i0", 2))
    return Program(layout, devices, inputs, Block(("f0", "v0", "i0"), statements, tuple(results)))


def tap(label: int, operand: str, target: str, kind: str = "id_tap") -> Call:
    return Call(target, label, kind, (operand,), "tuple")


def calls(expected: Expected) -> list[tuple[int, Any]]:
    return [(one.label, one.leaves[1].tolist()) for one in expected.calls]


def test_a_loop_runs_as_often_as_its_operand_says_with_what_it_carries() -> None:
    body = Block(("i9", "f1"), (Compute("f2", "one_more", ("f1",)), tap(1, "f2", "f3", "call")), ("f3",))
    loop = Loop(("f4",), "fori", "i0", ("f0",), body)
    (expected,) = expect(a_program(loop, tap(2, "f4", "f5"), results=["f5"]))
    # The call with label 1 answers twice its operand, plus one.
    assert calls(expected) == [(1, 2.0), (1, 6.0), (2, 13.0)]
    assert [one.tolist() for one in expected.results] == [13.0]


def test_a_tap_in_a_batched_branch_sees_all_lanes_false_branch_first() -> None:
    branches = tuple(
        Block((f"f{place}",), (tap(place, f"f{place}", f"f{place}0"),), (f"f{place}0",)) for place in (3, 4)
    )
    on = Compute("i2", "to_whole", ("f2",))
    body = Block(("f2",), (on, Branch(("f5",), "i2", ("f2",), branches)), ("f5",))
    (expected,) = expect(a_program(Wrapped(("v1",), "vmap", ("v0",), body), results=["v1"]))
    assert [(one.label, one.lanes) for one in expected.calls] == [(3, 1), (4, 1)]
    assert calls(expected) == [(3, [0.0, 1.0, 2.0, 3.0]), (4, [0.0, 1.0, 2.0, 3.0])]


def test_a_batched_loop_goes_on_until_the_last_lane_is_done() -> None:
    inner = Block(("i9", "f3"), (Compute("f4", "one_more", ("f3",)), tap(1, "f3", "f5")), ("f4",))
    body = Block(("f2",), (Compute("i2", "to_whole", ("f2",)), Loop(("f6",), "fori", "i2", ("f2",), inner)), ("f6",))
    (expected,) = expect(a_program(Wrapped(("v1",), "vmap", ("v0",), body), results=["v1"]))
    assert calls(expected) == [(1, [0, 1, 2, 3]), (1, [0, 2, 3, 4]), (1, [0, 2, 4, 5])]
    assert expected.results[0].tolist() == [0, 2, 4, 6]


def differentiated(*statements: Any, result: str) -> Program:
    body = Block(("f1",), statements, (result,))
    return a_program(Wrapped(("f8", "f9"), "grad", ("f0",), body), results=["f8", "f9"])


def test_a_rule_of_cotangents_calls_back_after_all_that_is_before_it() -> None:
    body = Block(("f2",), (Compute("f3", "twice", ("f2",)),), ("f3",))
    rule = Block(("f4", "f5"), (tap(7, "f5", "f6"), Compute("f7", "triple", ("f6",))), ("f7",))
    custom = Wrapped(("f10",), "custom_vjp", ("f1",), body, rule)
    twice = Compute("f11", "twice", ("f10",))
    (expected,) = expect(differentiated(custom, twice, tap(8, "f11", "f12"), result="f12"))
    assert calls(expected) == [(8, 4.0), (7, 2.0)]
    assert [one.tolist() for one in expected.results] == [4.0, 6.0]


def test_a_checkpoint_taps_again_and_keeps_the_result_of_a_call() -> None:
    inside = (tap(1, "f2", "f3", "call"), tap(2, "f2", "f4"), Compute("f5", "multiply", ("f4", "f4")))
    checkpoint = Wrapped(("f6",), "checkpoint", ("f1",), Block(("f2",), inside, ("f5",)))
    (expected,) = expect(differentiated(checkpoint, result="f6"))
    assert [one.label for one in expected.calls] == [1, 2, 2]


def test_a_tapped_tangent_is_tapped_with_the_cotangent() -> None:
    body = Block(("f2",), (), ("f2",))
    rule = Block(("f3", "f4"), (tap(1, "f4", "f5"), Compute("f6", "negative", ("f5",))), ("f6",))
    custom = Wrapped(("f7",), "custom_jvp", ("f1",), body, rule)
    (expected,) = expect(differentiated(custom, Compute("f10", "twice", ("f7",)), result="f10"))
    assert calls(expected) == [(1, -2.0)]
    assert expected.results[1].tolist() == -2.0


def test_what_is_not_promised_is_not_judged() -> None:
    branches = (Block(("f3",), (tap(1, "f3", "f4", "io_callback"),), ("f4",)), Block(("f5",), (), ("f5",)))
    body = Block(("f2",), (Compute("i2", "to_whole", ("f2",)), Branch(("f6",), "i2", ("f2",), branches)), ("f6",))
    with pytest.raises(UnjudgedError, match="refused where a batched predicate"):
        expect(a_program(Wrapped(("v1",), "vmap", ("v0",), body), results=["v1"]))


def test_an_operation_that_the_oracle_lacks_is_an_error_with_its_name() -> None:
    import jax

    jaxpr = jax.make_jaxpr(jax.lax.sin)(np.float32(1))
    with pytest.raises(UnknownOperationError, match="'sin'"):
        Interpreter(0, lambda device, array: [array]).run(jaxpr, [np.float32(1)])


def test_devices_meet_in_collectives_with_their_own_values() -> None:
    from conformance.fuzz.description import Collective

    summed = Collective("f1", "psum", "f0")
    first, second = expect(a_program(summed, tap(1, "f0", "f2"), results=["f1"], layout="pmap", devices=2))
    assert first.results == second.results == (3.0,)
    assert (calls(first), calls(second)) == ([(1, 1.0)], [(1, 2.0)])


@settings(max_examples=20, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
@given(programs(4))
def test_a_program_survives_its_file_and_has_a_source(program: Program) -> None:
    assert from_json(json.loads(json.dumps(to_json(program)))) == program
    compile(function_of(program), "<program>", "exec")


def asked(number: int) -> list[Program]:
    seen: list[Program] = []

    def ask(program: Program) -> Answer:
        seen.append(program)
        return Answer()

    Campaign(ask).run(60, number, 4, most=15)
    return seen


def test_equal_seeds_draw_equal_programs() -> None:
    assert asked(7) == asked(7)
    assert asked(7) != asked(8)


def test_a_finding_is_made_small_and_is_not_found_twice() -> None:
    def ask(program: Program) -> Answer:
        return Answer("crash", "SIGSEGV") if "while_loop" in function_of(program) else Answer()

    campaign = Campaign(ask)
    campaign.run(60, 1, 4, most=60)
    (finding,) = campaign.findings
    assert len(finding.program.body.statements) <= 3
    assert campaign.again["crash SIGSEGV"] > 0
    assert campaign.tried == 60


def test_an_error_of_the_suite_ends_a_campaign() -> None:
    def ask(program: Program) -> Answer:
        raise UnknownOperationError("no sin")

    with pytest.raises(UnknownOperationError):
        Campaign(ask).run(60, 1, 4)


def test_the_corpus_has_programs_of_every_layout_that_the_oracle_judges() -> None:
    found = list(kept())
    assert {one.program.layout for one in found} == {"jit", "eager", "mesh", "pmap", "shard_map"}
    for one in found:
        assert any(each.calls for each in expect(one.program)), one.name


# The comparison, with planted defects.

DUE = [
    ExpectedCall(label, kind, (np.int32(0), np.float32(label)))
    for label, kind in ((1, "id_tap"), (2, "call"), (3, "io_callback"))
]


def event(label: int, value: float | None = None, place: int = 0) -> Event:
    return Event(
        place, str(label), (np.asarray(0, np.int32), np.asarray(label if value is None else value, np.float32))
    )


def judged(*events: Event, due: Sequence[ExpectedCall] = DUE, **options: Any) -> list[str]:
    expected = [Expected(list(due), (np.asarray(0, np.float32),))]
    return [one.kind for one in judge(expected, [(np.asarray(0, np.float32),)], events, **options)]


def test_a_right_history_has_no_anomaly() -> None:
    assert judged(event(3), event(1), event(2)) == []


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([event(1), event(3)], "lost"),
        ([event(2), event(1), event(3)], "order"),
        ([event(1), event(2), event(2), event(3)], "duplicate"),
        ([event(1), event(2, 5), event(3)], "wrong operand"),
        ([event(1), event(2), event(3), event(9)], "unexpected"),
        ([event(1), event(2)], "lost"),
        ([event(1), event(2), event(3), event(3)], "duplicate"),
    ],
)
def test_a_defect_of_a_history_is_named(events: list[Event], kind: str) -> None:
    assert judged(*events) == [kind]


def test_an_optional_call_may_be_left_out_and_is_in_its_place_if_not() -> None:
    due = [DUE[0], replace(DUE[1], optional=True), replace(DUE[0], label=4)]
    assert judged(event(1), event(4, 1), due=due) == []
    assert judged(event(1), event(2), event(4, 1), due=due) == []
    assert judged(event(2), event(1), event(4, 1), due=due) == ["order"]


def test_orders_of_jax_are_apart() -> None:
    due = [replace(DUE[0], kind="io_callback_ordered"), replace(DUE[1], kind="debug_callback_ordered")]
    assert judged(event(2), event(1), due=due) == ["order"]
    assert judged(event(2), event(1), due=due, orders=ORDERS_OF_JAX) == []


def test_a_pure_callback_may_run_more_often_with_possible_operands_alone() -> None:
    due = [replace(DUE[0], kind="pure_callback")]
    assert judged(due=due) == judged(event(1), event(1), due=due) == []
    assert judged(event(1, 4), due=due) == ["wrong operand"]


def test_a_wrong_result_is_an_anomaly() -> None:
    expected = [Expected([], (np.asarray(1, np.float32),))]
    (found,) = judge(expected, [(np.asarray(2, np.float32),)], [])
    assert (found.kind, found.witness) == ("result", "device 0: result 0 is 2.0, expected 1.0")
