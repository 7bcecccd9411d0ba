"""External callbacks in the suite: what the model expects of them, and broken ones that cells must catch."""

from __future__ import annotations

import ctypes
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from conformance.cases.harness.running import run_case
from conformance.implementations import load
from conformance.implementations.external import ExternalCallbacks
from conformance.implementations.host_functions import PrintedCallbacks
from conformance.implementations.jax import NAMESPACE, Jax
from conformance.model.programs import Prediction, Program
from conformance.model.worlds import ExpectedEvent, Need, RefusalError
from conformance.oracle.checkers import judge
from conformance.oracle.history import Event, History, Recorder
from conformance.oracle.verdicts import Outcome, Verdict
from conformance.planning.cells import CaseCell, ProgramCell, TableCell, parse_cell
from conformance.spec.external_callbacks import ALL_CALLBACKS
from conformance.spec.support_table import TABLE
from conformance.worker.execution import run_cell, run_table_cell

pytestmark = pytest.mark.contract("C5")

CALLBACKS = {callback.name: callback for callback in ALL_CALLBACKS}


def predict(callback: str, program: str, devices: int = 2) -> Prediction:
    return Program(tuple(program.split("."))).prediction(CALLBACKS[callback], devices, inputs=[3.0])


def sites(callback: str, program: str) -> list[str]:
    return [event.site for event in predict(callback, program).events]


# The model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("callback", ["pure_callback", "buffer_callback", "dlpack_callback"])
def test_what_is_pure_and_unused_is_not_called_in_a_program(callback: str) -> None:
    assert sites(callback, "jit") == ["first", "last"]
    assert sites(callback, "scan") == ["first", "last"] * 2
    assert sites(callback, "eager") == ["first", "unused", "last"]
    assert {event.need for event in predict(callback, "jit").events} == {Need.AT_LEAST_ONCE}


@pytest.mark.parametrize(
    "callback", ["io_callback", "io_callback_ordered", "debug_callback", "buffer_callback_side_effect"]
)
def test_effects_are_never_dropped(callback: str) -> None:
    assert sites(callback, "jit") == ["first", "unused", "last"]
    assert {event.need for event in predict(callback, "jit").events} == {Need.ONCE}


def test_a_derivative_may_do_without_what_is_pure() -> None:
    assert {event.need for event in predict("pure_callback", "grad.custom_jvp").events} == {Need.ANY_NUMBER}
    assert sites("io_callback", "grad.custom_jvp") == ["first", "unused", "last", "forward_end"]


def test_debug_callbacks_run_for_every_lane_and_again_in_a_checkpoint() -> None:
    values = [event.leaves[0].item() for event in predict("debug_callback", "vmap").events]
    assert values == [7.0, 9.0, 15.0, 19.0, 21.0, 36.0]
    assert sites("debug_callback", "grad.remat").count("first") == 2
    assert predict("debug_callback", "jit").results == (np.asarray(21.0),)


def test_nobody_says_how_often_a_batched_condition_is_evaluated() -> None:
    def needs(callback: str) -> set[Need]:
        return {event.need for event in predict(callback, "vmap.while_cond").events}

    assert needs("debug_callback") == {Need.AT_LEAST_ONCE}
    assert needs("debug_callback_ordered") == {Need.ONCE}


def test_shards_of_a_partitioned_callback() -> None:
    first = [event for event in predict("debug_callback_partitioned", "pjit").events if event.site == "first"]
    assert [(event.device, event.leaves[0].tolist()) for event in first] == [(0, [7.0]), (1, [9.0])]


def test_a_mixture_takes_turns() -> None:
    callback = CALLBACKS["call_print_and_tap"]
    assert [callback.at(site).name for site in ("first", "unused", "last")] == [
        "call",
        "debug_print_ordered",
        "id_tap",
    ]
    # The call's result is one more: last is (7 + 1) * 3. The tap returns what it was given.
    assert predict("call_print_and_tap", "jit").results == (np.asarray(24.0),)


@pytest.mark.parametrize(
    ("callback", "program", "refused"),
    [
        ("pure_callback", "vmap", "vmap"),
        ("pure_callback", "grad", "differentiation"),
        ("io_callback", "jvp", "differentiation"),
        ("io_callback", "vmap.cond", "vmap of a predicate"),
        ("io_callback", "vmap.while_body", "vmap of a predicate"),
        ("io_callback", "grad.remat.detached", "checkpoint"),
        ("io_callback_ordered", "vmap", "vmap"),
        ("buffer_callback", "vmap", "vmap"),
        ("buffer_callback_side_effect", "pjit", "a mesh"),
        ("dlpack_callback_side_effect", "vmap.cond", "vmap of a predicate"),
    ],
)
def test_refusals(callback: str, program: str, refused: str) -> None:
    with pytest.raises(RefusalError) as caught:
        predict(callback, program)
    assert caught.value.transforms == (refused,)


@pytest.mark.parametrize(
    ("callback", "program"),
    [
        ("pure_callback", "jvp.custom_jvp"),
        ("pure_callback_sequential", "vmap"),
        ("pure_callback_sequential", "vmap.cond"),
        ("io_callback", "vmap"),
        ("io_callback", "grad.scan.detached"),
        ("io_callback", "jit.remat"),
        ("io_callback_ordered", "scan"),
        ("debug_callback_ordered", "vmap.while_body"),
        ("buffer_callback", "pjit"),
    ],
)
def test_no_refusals(callback: str, program: str) -> None:
    assert predict(callback, program).events


# The checkers -------------------------------------------------------------------------------------


def recorded(prediction: Prediction) -> list[Event]:
    return [
        Event(number, event.site, event.leaves, event.leaves, event.transforms, None, 0, 10 * number, 10 * number + 5)
        for number, event in enumerate(prediction.events)
    ]


def kinds(callback: str, program: str, change: Callable[[list[Event]], list[Event]]) -> set[str]:
    """The anomalies that the checkers find in a good history after a change."""
    prediction = predict(callback, program)
    history = History(tuple(change(recorded(prediction))))
    anomalies = judge(prediction.events, [], history, [], "cpu", CALLBACKS[callback].ordered)
    return {anomaly.kind for anomaly in anomalies}


def twice(events: list[Event]) -> list[Event]:
    return [*events, *events[-1:]]


@pytest.mark.parametrize("callback", ["io_callback", "io_callback_ordered", "debug_print", "pure_callback"])
def test_good_histories(callback: str) -> None:
    assert kinds(callback, "scan", lambda events: events) == set()


@pytest.mark.parametrize("callback", ["io_callback", "io_callback_ordered", "debug_print", "pure_callback"])
def test_a_dropped_callback(callback: str) -> None:
    assert kinds(callback, "scan", lambda events: events[:1] + events[2:]) == {"lost"}


def test_a_duplicate() -> None:
    assert kinds("io_callback", "scan", twice) == {"duplicate"}
    assert kinds("debug_callback_ordered", "scan", twice) >= {"duplicate"}
    assert kinds("pure_callback", "scan", twice) == set()


def test_another_order() -> None:
    assert kinds("io_callback_ordered", "scan", lambda events: events[::-1]) == {"order", "overlap"}
    assert kinds("debug_print_ordered", "jit", lambda events: events[::-1]) == {"order", "overlap"}
    assert kinds("io_and_debug_ordered", "jit", lambda events: events[::-1]) == {"order", "overlap"}
    assert kinds("io_callback", "scan", lambda events: events[::-1]) == set()
    assert kinds("pure_callback", "scan", lambda events: events[::-1]) == set()


def test_a_pure_callback_that_nobody_needs() -> None:
    needless = Event(9, "unused", (np.asarray(15, np.float32),))
    assert kinds("pure_callback", "jit", lambda events: [*events, needless]) == {"unexpected"}


def test_one_run_serves_all_evaluations_that_look_alike() -> None:
    leaves = (np.asarray(1, np.float32),)
    expected = [ExpectedEvent("first", 0, leaves, need=Need.AT_LEAST_ONCE)] * 3
    one = (Event(0, "first", leaves),)
    assert judge(expected, [], History(one), [], "cpu", ordered=False) == []
    assert [a.kind for a in judge(expected[:1], [], History(()), [], "cpu", ordered=False)] == ["lost"]
    optional = [ExpectedEvent("first", 0, leaves, need=Need.ANY_NUMBER)]
    assert judge(optional, [], History(()), [], "cpu", ordered=False) == []


# Broken implementations ---------------------------------------------------------------------------


def broken(**names: Any) -> Jax:
    return Jax(SimpleNamespace(**{**vars(NAMESPACE), **names}))


def io_for_pure(function: Any, wanted: Any, *args: Any, vmap_method: Any = None) -> Any:
    return NAMESPACE.io_callback(function, wanted, *args)


def pure_for_io(function: Any, wanted: Any, *args: Any, ordered: bool = False) -> Any:
    return NAMESPACE.pure_callback(function, wanted, *args, vmap_method="sequential")


def sequential_by_default(function: Any, wanted: Any, *args: Any, vmap_method: Any = None) -> Any:
    return NAMESPACE.pure_callback(function, wanted, *args, vmap_method=vmap_method or "sequential")


def expanding(function: Any, wanted: Any, *args: Any, vmap_method: Any = None) -> Any:
    return NAMESPACE.pure_callback(function, wanted, *args, vmap_method="expand_dims")


def unaliased(function: Any, wanted: Any, input_output_aliases: Any = None, **options: Any) -> Any:
    return NAMESPACE.buffer_callback(function, wanted, **options)


def debug(callback: Any = jax.debug.callback, print: Any = jax.debug.print) -> SimpleNamespace:  # noqa: A002
    return SimpleNamespace(callback=callback, print=print)


def doubled(function: Any, *args: Any, **options: Any) -> None:
    for _ in range(2):
        jax.debug.callback(function, *args, **options)


def gathered(function: Any, *args: Any, ordered: bool, partitioned: bool) -> None:
    jax.debug.callback(function, *args, ordered=ordered)


def mumbled(text: str, what: str, value: Any, ordered: bool) -> None:
    jax.debug.print("something: {value}", value=value, ordered=ordered)


MUTANTS = {
    "pure never elided": (broken(pure_callback=io_for_pure), "pure_callback/jit", "unexpected: unused"),
    "io elided": (broken(io_callback=pure_for_io), "io_callback/jit", "lost: cpu:0 never ran #2 (unused"),
    "vmap not refused": (broken(pure_callback=sequential_by_default), "pure_callback/vmap", "not refused"),
    "ordered vmap not refused": (broken(io_callback=pure_for_io), "io_callback_ordered/vmap", "not refused"),
    "method ignored": (broken(pure_callback=expanding), "pure_callback_broadcast_all/vmap", "wrong operand"),
    "not aliased": (broken(buffer_callback=unaliased), "buffer_callback_alias/jit", "they are to be aliased"),
    "twice": (broken(debug=debug(doubled)), "debug_callback/jit", "duplicate"),
    "not partitioned": (broken(debug=debug(gathered)), "debug_callback_partitioned/pjit", "wrong operand"),
    "lost print": (broken(debug=debug(print=mumbled)), "debug_print/jit", "lost"),
    "table: io may be dropped": (broken(io_callback=pure_for_io), "io_callback/table.guaranteed", "lost: in jit"),
}


def run(implementation: Any, cell_id: str, devices: Sequence[jax.Device]) -> Outcome:
    cell = parse_cell(cell_id)
    recorder = Recorder({device.id: index for index, device in enumerate(devices)})
    if isinstance(cell, TableCell):
        return run_table_cell(cell, implementation, recorder, devices)
    assert isinstance(cell, ProgramCell)
    return run_cell(cell, implementation, recorder, devices)


@pytest.mark.contract("C6")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant: str, devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # taken back after the test, whatever is installed in it
    implementation, cell, witness = MUTANTS[mutant]
    assert run(load("jax"), f"jax/{cell}/cpu-8dev", devices).verdict is Verdict.PASS
    outcome = run(implementation, f"jax/{cell}/cpu-8dev", devices)
    assert outcome.verdict is Verdict.FAIL
    assert witness in outcome.reason


def swallowing(function: Any, wanted: Any, *args: Any, **options: Any) -> Any:
    def host(operand: Any) -> Any:
        try:
            return function(operand)
        except ValueError:
            return np.zeros(wanted.shape, wanted.dtype)

    return NAMESPACE.pure_callback(host, wanted, *args, **options)


def unchecked(function: Any, wanted: Any, *args: Any, **options: Any) -> Any:
    def host(operand: Any) -> Any:
        return np.resize(np.asarray(function(operand)), wanted.shape).astype(wanted.dtype)

    return NAMESPACE.pure_callback(host, wanted, *args, **options)


def with_one_buffer(function: Any, wanted: Any, *args: Any, **options: Any) -> Any:
    scratch = np.zeros(wanted.shape, wanted.dtype)

    def host(operand: Any) -> Any:
        scratch[...] = operand
        return function(scratch)

    return NAMESPACE.io_callback(host, wanted, *args, **options)


def with_the_operand_itself(function: Any, wanted: Any, operand: Any, **options: Any) -> Any:
    def host(context: Any, out: Any, buffer: Any) -> None:
        view = np.asarray(buffer)
        address = ctypes.cast(view.ctypes.data, ctypes.POINTER(ctypes.c_float))
        np.asarray(out)[...] = function(np.ctypeslib.as_array(address, shape=view.shape))

    return NAMESPACE.buffer_callback(host, wanted, has_side_effect=True)(operand)


def taking_anything(function: Any, wanted: Any, **options: Any) -> Any:
    def host(context: Any, out: Any, operand: Any) -> None:
        np.asarray(out)[...] = function(context, out, operand)

    return NAMESPACE.buffer_callback(host, wanted, **options)


FAULTY = {
    "swallowed": (broken(pure_callback=swallowing), "pure_callback/case.raises.jit", "swallowed error"),
    "unchecked": (broken(pure_callback=unchecked), "pure_callback/case.wrong_shape.jit", "swallowed error"),
    "reused": (broken(io_callback=with_one_buffer), "io_callback/case.keeps_its_operand.jit", "torn operand"),
    "lent": (broken(io_callback=with_the_operand_itself), "io_callback/case.changes_its_operand.jit", "result: "),
    "ignored": (broken(buffer_callback=taking_anything), "buffer_callback/case.returns_a_value.jit", "was accepted"),
}


@pytest.mark.parametrize("mutant", FAULTY)
def test_faults_are_caught(mutant: str, devices: list[jax.Device]) -> None:
    implementation, cell_id, witness = FAULTY[mutant]
    cell = parse_cell(f"jax/{cell_id}/cpu-8dev")
    assert isinstance(cell, CaseCell)
    outcome = run_case(cell.case, implementation, devices)
    assert outcome.verdict is Verdict.FAIL
    assert witness in outcome.reason


# The rest -----------------------------------------------------------------------------------------


def test_the_table_says_what_the_callbacks_promise() -> None:
    for entry in TABLE:
        for program in entry.programs:
            try:
                predict(entry.callback, program)
            except RefusalError:
                assert not entry.supported, (entry, program)


@pytest.mark.parametrize(
    "name", ["pure_callback/table.grad", "pure_callback/table.guaranteed", "debug_callback/table.returns"]
)
def test_a_wrong_entry_is_found(name: str, devices: list[jax.Device]) -> None:
    cell = parse_cell(f"jax/{name}/cpu-8dev")
    assert isinstance(cell, TableCell)
    wrong = replace(cell, entry=replace(cell.entry, supported=not cell.entry.supported))
    outcome = run_table_cell(wrong, load("jax"), Recorder(), devices)
    assert outcome.verdict is Verdict.FAIL
    assert "the table says" in outcome.reason


def test_every_column_has_its_entry_for_every_row() -> None:
    rows = {entry.row for entry in TABLE}
    columns = {entry.column for entry in TABLE if not entry.column.startswith("footnote")}
    assert len(rows) * len(columns) == sum(entry.column in columns for entry in TABLE)


@pytest.mark.parametrize("value", [np.float32(7), np.arange(8, dtype=np.float32), np.ones((40, 3), np.float32)])
def test_prints_are_read_back(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, recorder = io.StringIO(), Recorder()
    monkeypatch.setattr(sys, "stdout", stream)
    PrintedCallbacks.install(recorder)
    sys.stdout.write(PrintedCallbacks.FORMAT.format(what="first", value=value) + "\n")
    print("something else")
    (event,) = recorder.history().events
    assert event.site == "first"
    np.testing.assert_array_equal(event.leaves[0], value)
    assert event.leaves[0].dtype == np.float32
    assert stream.getvalue() == "something else\n"


@pytest.mark.contract("C2")
def test_implementations_are_found_by_name() -> None:
    for name in ("hostcb", "jax"):
        assert isinstance(load(name), ExternalCallbacks)
