"""Cells of several processes: what the model expects in each, and the one verdict about all that they saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from conformance.model.worlds import Need
from conformance.oracle.checkers import Anomaly
from conformance.oracle.history import Event, History
from conformance.oracle.observations import Observation, Wanted, judge_together, merged
from conformance.oracle.verdicts import Stage, Verdict
from conformance.planning.cells import CaseCell, ProgramCell, UnknownCellError, parse_cell
from conformance.planning.processes import USUAL, plan_over_processes

pytestmark = pytest.mark.contract("C35")


def cell_of(name: str) -> ProgramCell:
    cell = parse_cell(f"hostcb/{name}")
    assert isinstance(cell, ProgramCell)
    return cell


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("id_tap/jit/cpu-2x2", [{0}, {2}]),
        ("id_tap/pjit/cpu-2x2", [{0}, set()]),
        ("id_tap_device_index/pjit/cpu-2x2", [set(), {3}]),
        ("debug_callback_partitioned/grad.pjit/cpu-2x2", [{0, 1}, {2, 3}]),
    ],
)
def test_each_process_has_the_callbacks_of_its_own_devices(name: str, devices: list[set[int]]) -> None:
    cell = cell_of(name)
    predictions = [cell.prediction_in(process) for process in range(cell.topology.processes)]
    assert [{event.device for event in prediction.events} for prediction in predictions] == devices


def test_what_is_planned() -> None:
    for implementation in ("hostcb", "jax"):
        plan = plan_over_processes([implementation], [USUAL])
        programs = {cell.program.name for cell in plan.cells if isinstance(cell, ProgramCell)}
        assert programs >= {"pjit", "shard_map", "pmap", "jit", "pjit.scan", "shard_map.while_body", "pjit.vmap"}
        assert any(isinstance(cell, CaseCell) for cell in plan.cells)
        assert len(plan.cells) <= 170, "a usual run has a minute for them"
        assert all(one.reason for one in plan.ineligible)
        for cell in plan.cells[::7]:
            assert parse_cell(cell.id, any_release=True) == cell, "each has a meaning"
    for name, words in {
        "jit/cpu-2x2+last": "placement last leaves out devices",
        "pjit.pmap/cpu-2x2": "a pmap takes the part of its own process",
        "grad.custom_vjp.pjit/cpu-2x2": "nothing says in which processes a cotangent",
        "case.tap_raises.jit/cpu-2x2": "this case runs in one process",
        "case.barrier_of_each_process.jit/cpu-8dev": "this case needs several processes",
    }.items():
        with pytest.raises(UnknownCellError, match=words):
            parse_cell(f"hostcb/id_tap/{name}")


# The verdict.


def seen_in(cell: ProgramCell) -> list[Observation]:
    """What the processes see when all is right; each callback takes a millisecond."""

    def seen(process: int) -> Observation:
        prediction = cell.prediction_in(process)
        needed = [event for event in prediction.events if event.need is not Need.ANY_NUMBER]
        events = [
            Event(
                *(number, event.site, event.leaves, event.leaves, event.transforms),
                event.device if cell.callback.receives_device else None,
                begin=number * 2_000_000,
                end=number * 2_000_000 + 1_000_000,
                process=process,
            )
            for number, event in enumerate(needed)
        ]
        results = [[np.float32(result)] * 2 for result in prediction.results]
        return Observation(process, History(tuple(events), 10**12), results)

    return [seen(process) for process in range(cell.topology.processes)]


def verdict_on(cell: ProgramCell, seen: Sequence[Observation]) -> tuple[Verdict, list[Anomaly]]:
    """As it is when the observations have travelled to the process that judges."""
    sent = [Observation.from_json(one.as_json()) for one in seen]
    predictions = [cell.prediction_in(process) for process in range(cell.topology.processes)]
    wanted = [Wanted(prediction.events, prediction.results) for prediction in predictions]
    return judge_together(wanted, sent, "cpu", cell.callback.ordered)


CELL = cell_of("id_tap_device/shard_map/cpu-2x2")
STRAY = seen_in(CELL)[0].history.events[0]
LATEST = 10**12


def with_events(change: Callable[[list[Event]], list[Event]], barrier: int = LATEST) -> list[Observation]:
    """The events of the second process are changed."""
    first, second = seen_in(CELL)
    return [first, replace(second, history=History(tuple(change([*second.history.events])), barrier))]


def with_result(part: int) -> list[Observation]:
    """A result of the second process is another one."""
    first, second = seen_in(CELL)
    parts = [list(parts) for parts in second.results]
    parts[0][part] = np.float32(-1)
    return [first, replace(second, results=parts)]


ERROR = Observation(1, verdict=Verdict.FAIL, anomalies=(Anomaly("error", Stage.DISPATCH, "it failed"),))


def test_right_observations_pass() -> None:
    for name in ("id_tap/jit/cpu-2x1", "pure_callback/pjit/cpu-2x2", "call/pmap+int8-matrix-dict/cpu-2x2"):
        cell = cell_of(name)
        assert verdict_on(cell, seen_in(cell)) == (Verdict.PASS, [])
    assert verdict_on(CELL, seen_in(CELL)) == (Verdict.PASS, [])
    assert verdict_on(CELL, [Observation(0, refused=True), Observation(1, refused=True)]) == (Verdict.PASS, [])


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        (with_events(lambda events: events[1:]), "lost", "cpu:2 in process 1 never ran #1"),
        (with_events(lambda events: [*events, events[0]]), "duplicate", "once too often in process 1"),
        (
            with_events(lambda events: [replace(events[0], device=0), *events[1:]]),
            "wrong device",
            "expected cpu:2 in process 1",
        ),
        (with_events(lambda events: [events[1], events[0], *events[2:]]), "order", "cpu:2 in process 1 ran #2"),
        (
            with_events(lambda events: [replace(events[0], end=10 * LATEST), *events[1:]]),
            "overlap",
            "cpu:2 in process 1",
        ),
        (with_events(lambda events: [*events, STRAY]), "wrong process", "process 1 ran first"),
        (with_events(lambda events: events, barrier=0), "early barrier", "process 1: "),
        (with_result(0), "result", "run 0 in process 1 gave"),
        (with_result(1), "result", "the devices in process 1 have different results"),
        ([seen_in(CELL)[0], ERROR], "error", "process 1: it failed"),
        ([seen_in(CELL)[0], Observation(1, refused=True)], "not refused", "ran in process 0, and must be refused"),
    ],
)
def test_what_is_wrong_in_one_process_is_found_there(seen: list[Observation], kind: str, words: str) -> None:
    verdict, anomalies = verdict_on(CELL, seen)
    assert (verdict, anomalies[0].kind) == (Verdict.FAIL, kind)
    assert words in anomalies[0].witness


def test_histories_are_merged_by_the_clock_and_keep_the_order_of_each_process() -> None:
    def history(**begins: int) -> History:
        return History(tuple(Event(0, site, (), begin=begin) for site, begin in begins.items()))

    # A thread may be held up between its place in the history and its look at the clock.
    events = merged([Observation(0, history(a=5, b=4, c=9)), Observation(1, history(x=4, y=7))]).events
    assert [(one.site, one.sequence) for one in events] == [("x", 0), ("a", 1), ("b", 2), ("y", 3), ("c", 4)]
