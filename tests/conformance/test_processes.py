"""Cells in several processes: the model of each, and the verdict on all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from conformance.model.worlds import Need
from conformance.oracle.checkers import Anomaly
from conformance.oracle.history import Event, History
from conformance.oracle.observations import Observation, Wanted, judge_together, merged
from conformance.oracle.verdicts import Stage, Verdict
from conformance.planning.cells import CaseCell, Cell, ProgramCell, UnknownCellError, parse_cell
from conformance.planning.processes import USUAL, plan_over_processes

pytestmark = pytest.mark.contract("C35")


def cell_of(name: str) -> ProgramCell:
    cell = parse_cell(f"hostcb/{name}")
    assert isinstance(cell, ProgramCell)
    return cell


def devices_in(name: str) -> list[set[int]]:
    cell = cell_of(name)
    return [
        {event.device for event in cell.prediction_in(process).events} for process in range(cell.topology.processes)
    ]


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("id_tap/jit/cpu-2x2", [{0}, {2}]),
        ("id_tap/shard_map/cpu-2x2", [{0, 1}, {2, 3}]),
        ("id_tap/pmap/cpu-4x1", [{0}, {1}, {2}, {3}]),
        ("id_tap/pjit/cpu-2x2", [{0}, set()]),
        ("id_tap_device_index/pjit/cpu-2x2", [set(), {3}]),
        ("debug_callback_partitioned/pjit/cpu-2x2", [{0, 1}, {2, 3}]),
        ("buffer_callback/pjit/cpu-2x2", [{0}, {2}]),
        # What is outside of the mesh has an array of all processes, of which one device calls back.
        ("id_tap/grad.pjit/cpu-2x2", [{0}, set()]),
        ("debug_callback_partitioned/grad.pjit/cpu-2x2", [{0, 1}, {2, 3}]),
    ],
)
def test_each_process_has_the_callbacks_of_its_own_devices(name: str, devices: list[set[int]]) -> None:
    assert devices_in(name) == devices


def test_the_processes_together_have_what_one_process_has() -> None:
    one, both = cell_of("call_device/shard_map/cpu-4dev"), cell_of("call_device/shard_map/cpu-2x2")
    events = [event for process in range(2) for event in both.prediction_in(process).events]
    alone = sorted((event.device, event.site, event.leaves[0].tolist()) for event in one.prediction.events)
    assert sorted((event.device, event.site, event.leaves[0].tolist()) for event in events) == alone
    assert all(both.prediction_in(process).results == one.prediction.results for process in range(2))


def test_pmap_sums_over_the_devices_of_its_process() -> None:
    both, one = cell_of("id_tap/pmap/cpu-2x2"), cell_of("id_tap/pmap/cpu-4dev")
    sums = [sum(both.prediction_in(process).results[run] for process in range(2)) for run in range(2)]
    assert np.array_equal(sums, one.prediction.results)


@pytest.mark.parametrize(
    ("cell_id", "words"),
    [
        ("hostcb/id_tap/jit/cpu-2x2+last", "placement last leaves out devices"),
        ("hostcb/id_tap/pjit.pmap/cpu-2x2", "a pmap takes the part of its own process"),
        ("hostcb/id_tap/grad.custom_vjp.pjit/cpu-2x2", "nothing says in which processes a cotangent"),
        ("hostcb/id_tap/table.grad.can_be_differentiated/cpu-2x2", "table"),
        ("hostcb/id_tap/case.raises.jit/cpu-2x2", "this case runs in one process"),
        ("hostcb/id_tap/case.barrier_of_each_process.jit/cpu-8dev", "this case needs several processes"),
    ],
)
def test_what_means_nothing_there_is_refused_in_words(cell_id: str, words: str) -> None:
    with pytest.raises(UnknownCellError, match=words):
        parse_cell(cell_id)


@pytest.mark.parametrize("implementation", ["hostcb", "jax"])
def test_every_callback_is_planned_in_several_processes(implementation: str) -> None:
    plan = plan_over_processes([implementation], [USUAL])
    named = {cell.callback_name for cell in plan.cells} | {one.id.split("/")[1] for one in plan.ineligible}
    programs = {cell.program.name for cell in plan.cells if isinstance(cell, ProgramCell)}
    whole = parse_cell(f"{implementation}/io_callback/jit/cpu-1dev", any_release=True)
    assert whole.callback_name in named
    assert programs >= {"pjit", "shard_map", "pmap", "jit", "pjit.scan", "shard_map.while_body", "pjit.vmap"}
    assert any(isinstance(cell, CaseCell) for cell in plan.cells)
    # A usual run has a minute for them.
    assert len(plan.cells) <= 170


def events_of(cell: ProgramCell, process: int) -> list[Event]:
    """A history as it must be, in which every callback takes a millisecond."""
    return [
        Event(
            *(number, event.site, event.leaves, event.leaves, event.transforms),
            event.device if cell.callback.receives_device else None,
            begin=number * 2_000_000,
            end=number * 2_000_000 + 1_000_000,
            process=process,
        )
        for number, event in enumerate(cell.prediction_in(process).events)
        if event.need is not Need.ANY_NUMBER
    ]


def seen_in(cell: ProgramCell) -> list[Observation]:
    return [
        Observation(
            process,
            History(tuple(events_of(cell, process)), 10**12),
            [[np.float32(result)] * 2 for result in cell.prediction_in(process).results],
        )
        for process in range(cell.topology.processes)
    ]


def verdict_on(cell: ProgramCell, seen: Sequence[Observation]) -> tuple[Verdict, list[Anomaly]]:
    predictions = [cell.prediction_in(process) for process in range(cell.topology.processes)]
    sent = [Observation.from_json(json.loads(json.dumps(one.as_json()))) for one in seen]
    wanted = [Wanted(prediction.events, prediction.results) for prediction in predictions]
    return judge_together(wanted, sent, "cpu", cell.callback.ordered)


def with_events(seen: Sequence[Observation], change: Any) -> list[Observation]:
    """The second process's events are changed."""
    second = seen[1]
    return [seen[0], dataclasses.replace(second, history=History(tuple(change([*second.history.events])), 10**12))]


CELL = "id_tap_device/shard_map/cpu-2x2"


@pytest.mark.parametrize(
    "name", [CELL, "id_tap/jit/cpu-2x1", "pure_callback/pjit/cpu-2x2", "call/pmap+int8-matrix-dict/cpu-2x2"]
)
def test_a_right_history_passes(name: str) -> None:
    cell = cell_of(name)
    assert verdict_on(cell, seen_in(cell)) == (Verdict.PASS, [])


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda events: events[1:], "lost", "cpu:2 in process 1 never ran #1"),
        (lambda events: [*events, events[0]], "duplicate", "once too often in process 1"),
        (
            lambda events: [dataclasses.replace(events[0], device=0), *events[1:]],
            "wrong device",
            "expected cpu:2 in process 1",
        ),
        (lambda events: [events[1], events[0], *events[2:]], "order", "cpu:2 in process 1 ran #2"),
        (lambda events: [dataclasses.replace(events[0], end=10**13), *events[1:]], "overlap", "cpu:2 in process 1"),
    ],
)
def test_what_is_wrong_in_one_process_is_found_there(change: Any, kind: str, words: str) -> None:
    cell = cell_of(CELL)
    verdict, anomalies = verdict_on(cell, with_events(seen_in(cell), change))
    assert (verdict, anomalies[0].kind) == (Verdict.FAIL, kind)
    assert words in anomalies[0].witness


def test_a_callback_of_another_process_is_named() -> None:
    cell = cell_of(CELL)
    seen = seen_in(cell)
    stray = seen[0].history.events[0]
    _, anomalies = verdict_on(cell, with_events(seen, lambda events: [*events, stray]))
    assert anomalies[0].kind == "wrong process"
    assert anomalies[0].witness.startswith("process 1 ran first")


def test_one_run_of_a_pure_callback_does_not_stand_for_another_process() -> None:
    cell = cell_of("pure_callback/jit/cpu-2x1")
    _, anomalies = verdict_on(cell, with_events(seen_in(cell), lambda events: []))
    assert anomalies[0].kind == "lost"


def test_the_results_of_every_process_and_device_are_judged() -> None:
    cell = cell_of(CELL)
    for wrong, words in ((0, "run 0 in process 1 gave"), (1, "the devices in process 1 have different results")):
        seen = seen_in(cell)
        parts = [list(parts) for parts in seen[1].results]
        parts[0][wrong] = np.float32(-1)
        _, anomalies = verdict_on(cell, [seen[0], dataclasses.replace(seen[1], results=parts)])
        assert [anomaly.kind for anomaly in anomalies] == ["result"]
        assert words in anomalies[0].witness


def test_a_barrier_is_about_the_callbacks_of_its_own_process() -> None:
    cell = cell_of(CELL)
    seen = seen_in(cell)
    early = [dataclasses.replace(one, history=dataclasses.replace(one.history, barrier_returned=0)) for one in seen]
    _, anomalies = verdict_on(cell, [seen[0], early[1]])
    assert anomalies[0].kind == "early barrier"
    assert all(anomaly.witness.startswith("process 1: ") for anomaly in anomalies)


def test_an_error_and_a_refusal_of_one_process_alone() -> None:
    cell = cell_of(CELL)
    seen = seen_in(cell)
    error = Observation(1, verdict=Verdict.FAIL, anomalies=(Anomaly("error", Stage.DISPATCH, "it failed"),))
    verdict, anomalies = verdict_on(cell, [seen[0], error])
    assert (verdict, anomalies[0].witness) == (Verdict.FAIL, "process 1: it failed")
    _, anomalies = verdict_on(cell, [seen[0], Observation(1, refused=True)])
    assert anomalies[0].witness == "the program ran in process 0, and must be refused"
    assert verdict_on(cell, [Observation(0, refused=True), Observation(1, refused=True)]) == (Verdict.PASS, [])


def test_histories_are_merged_by_the_clock_and_keep_the_order_of_each_process() -> None:
    def event(site: str, begin: int) -> Event:
        return Event(0, site, (), begin=begin)

    # A thread may be held up between its place in the history and its look at the clock.
    first = Observation(0, History((event("a", 5), event("b", 4), event("c", 9))))
    second = Observation(1, History((event("x", 4), event("y", 7))))
    history = merged([first, second])
    assert [one.site for one in history.events] == ["x", "a", "b", "y", "c"]
    assert [one.sequence for one in history.events] == list(range(5))


def test_a_smaller_cell_has_one_process_or_two_devices() -> None:
    from conformance.minimising.steps import simpler

    found: list[Cell] = [cell for _, cell in simpler(cell_of("id_tap/pjit/cpu-4x2"))]
    assert {cell.topology.name for cell in found} == {"cpu-4x2", "cpu-8dev", "cpu-2x1"}
