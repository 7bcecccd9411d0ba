"""The record of a soak: a right history is forgotten, and each wrong one is found."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.soak.codes import POSITIONS, RESULT_MARK, base_code, parts_of
from conformance.soak.record import MOST_KEPT, ONE_IN, PlantedError, Record, Run
from conformance.soak.shapes import FORI, ONE_DEVICE, PMAP, SCAN, WHILE_CONDITION, ProgramSpec, Shape

pytestmark = pytest.mark.contract("C64")

SPEC = ProgramSpec(ONE_DEVICE, FORI, ("id_tap", "io_callback", "pure_callback"), 3)
TAPS = ProgramSpec(ONE_DEVICE, FORI, ("id_tap",), 3)
SPREAD = ProgramSpec(PMAP, SCAN, ("id_tap", "call"), 2)
ARRAYS = ProgramSpec(ONE_DEVICE, FORI, ("id_tap",), 900, size=4)


@pytest.fixture
def record() -> Record:
    return Record()


def begun(record: Record, spec: ProgramSpec = SPEC, lane: str = "one", **more: Any) -> Run:
    devices = (4, 5) if spec is SPREAD else (0,)
    run = Run(record.new_number(), lane, Shape(spec, spec.trips), devices, **more)
    record.begin(run)
    return run


def call(record: Record, run: Run, *positions: int, slot: int = 0, **more: Any) -> Any:
    """The callbacks of some steps; the result of the last one."""
    result = None
    for position in positions:
        arguments = {"name": run.shape.steps[position].name, **more}
        result = record.saw(arguments.pop("name"), run.shape.spec, base_code(run.number, slot) + position, **arguments)
    return result


def returned(record: Record, run: Run) -> None:
    """Its dispatch has returned, and a barrier after it."""
    run.returned = time.monotonic_ns()
    record.barrier(time.monotonic_ns() + 1)


def judged(record: Record) -> list[str]:
    record.judge()
    return [anomaly.kind for anomaly in record.anomalies]


@pytest.mark.parametrize("spec", [SPEC, SPREAD, ProgramSpec(ONE_DEVICE, WHILE_CONDITION, ("call", "id_print"), 4)])
def test_a_right_history_is_forgotten(record: Record, spec: ProgramSpec) -> None:
    for _ in range(2):
        run = begun(record, spec)
        for slot in range(len(run.devices)):
            call(record, run, *run.shape.steps, slot=slot)
        record.fetched(run, [run.shape.result(run.number, slot) for slot in range(len(run.devices))])
        returned(record, run)
    assert judged(record) == []
    assert (record.runs, record.waiting(), record._runs) == (2, [], {})
    assert record.events == record.by_kind.total() == 2 * len(run.shape.steps) * len(run.devices)


def test_unordered_callbacks_come_in_any_order_and_pure_ones_again(record: Record) -> None:
    run = begun(record)
    call(record, run, 8, 1, 5, 0, 2, 4, 3, 7, 6, 2)
    assert judged(record) == []


def test_the_condition_of_a_loop_runs_once_more_than_its_body() -> None:
    shape = Shape(ProgramSpec(ONE_DEVICE, WHILE_CONDITION, ("call",), 5), 2)
    assert [step.kind for _, step in sorted(shape.steps.items())] == ["id_tap", "call", "id_tap", "call", "id_tap"]


def test_codes_are_int32_and_come_apart_again() -> None:
    code = base_code(262_143, 7) + POSITIONS - 1
    assert code == np.iinfo(np.int32).max
    assert parts_of(code) == (262_143, 7, POSITIONS - 1)


def test_results_are_sums_as_int32(record: Record) -> None:
    run = begun(record, ProgramSpec(ONE_DEVICE, FORI, ("call",), 900))
    results = [call(record, run, position) for position in run.shape.steps]
    assert results[0] == base_code(run.number, 0) ^ RESULT_MARK
    assert run.shape.result(run.number, 0) == np.sum(results, dtype=np.int32)


@pytest.mark.parametrize(
    ("positions", "kinds"),
    [
        ((0,), ["lost", "lost"]),
        ((0, 2, 1), ["order"]),
        ((0, 1, 2, 2), ["duplicate"]),
        ((0, 1, 2, 7), ["unexpected"]),
    ],
)
def test_taps_of_one_device(record: Record, positions: tuple[int, ...], kinds: list[str]) -> None:
    run = begun(record, TAPS)
    for position in positions:
        record.saw("place 0", TAPS, base_code(run.number, 0) + position)
    assert judged(record) == kinds


def test_a_run_that_waits_is_told(record: Record) -> None:
    run = begun(record, TAPS)
    call(record, run, 0)
    (words,) = record.waiting()
    assert words == f"run {run.number} of one ({TAPS}; 3 rounds): 1 of 3 callbacks"


@pytest.mark.parametrize(("step", "kinds"), [(1, ["lost"]), (2, ["lost"])])
def test_an_unordered_callback_that_is_lost(record: Record, step: int, kinds: list[str]) -> None:
    run = begun(record)
    call(record, run, *(position for position in run.shape.steps if position != step))
    assert judged(record) == kinds


def test_callbacks_of_one_device_overlap(record: Record) -> None:
    run = begun(record, TAPS)
    run.effects = {(0, 0): lambda: call(record, run, 1)}
    call(record, run, 0, 2)
    assert judged(record) == ["overlap"]


def test_a_callback_after_a_barrier_that_waits_for_it(record: Record) -> None:
    run, other = begun(record, TAPS), begun(record, TAPS, "two")
    for one in (run, other):
        call(record, one, 0)
        one.returned = time.monotonic_ns()
    # One of `jax.effects_barrier`, which knows the programs of its own thread alone.
    record.barrier(time.monotonic_ns() + 1, lane="one")
    for one in (run, other):
        call(record, one, 1, 2)
    assert judged(record) == ["early barrier", "early barrier"]
    assert all(f"{base_code(run.number, 0) + step}" in str(record.anomalies[step - 1]) for step in (1, 2))


def test_programs_of_one_thread_are_in_the_order_of_their_dispatch(record: Record) -> None:
    first, second = begun(record, TAPS), begun(record, TAPS)
    call(record, second, 0, 1, 2)
    call(record, first, 0, 1, 2)
    assert judged(record) == ["order"]


@pytest.mark.parametrize(("had_returned", "kinds"), [(True, ["order of programs"]), (False, [])])
def test_programs_of_two_threads(record: Record, had_returned: bool, kinds: list[str]) -> None:
    """Those that start at once have no order."""
    first = begun(record, TAPS)
    if had_returned:
        first.returned = time.monotonic_ns() - 1
    second = begun(record, TAPS, "two")
    call(record, second, 0)
    call(record, first, 0, 1, 2)
    call(record, second, 1, 2)
    assert judged(record) == kinds


def test_a_callback_of_no_program(record: Record) -> None:
    run = begun(record, TAPS)
    call(record, run, 0, 1, 2)
    assert judged(record) == []
    call(record, run, 2)
    assert judged(record) == ["unexpected"]


def test_wrong_function_device_and_result(record: Record) -> None:
    run = begun(record, TAPS)
    call(record, run, 0, name="place 1")
    call(record, run, 1, device=3)
    call(record, run, 2, device=0)
    record.fetched(run, [5])
    assert judged(record) == ["result", "unexpected", "lost", "wrong device"]


@pytest.mark.parametrize(
    "data", [np.full(4, 6, np.float32), np.full(3, 5, np.float32), np.full(4, 5, np.int8), np.array([5, 5, 5, 4], "f4")]
)
def test_wrong_data(record: Record, data: Any) -> None:
    run = begun(record, ARRAYS)
    for position in run.shape.steps:
        call(record, run, position, data=data if position == 5 else np.full(4, position & 127, np.float32))
    assert judged(record) == ["wrong operand"]


@pytest.mark.parametrize("count", [2 * ONE_IN, 900])
def test_data_that_change_while_a_callback_keeps_them(record: Record, count: int) -> None:
    """A few arrays are kept, and not each."""
    run, buffer = begun(record, replace(ARRAYS, trips=count)), np.empty(4, np.float32)
    for position in range(count):
        buffer[...] = position & 127
        call(record, run, position, data=buffer)
    assert len(record._kept) == min(count // ONE_IN, MOST_KEPT)
    assert {*judged(record)} == {"torn operand"}


def failing(record: Record, position: int, ends: bool) -> tuple[Run, PlantedError]:
    """A run whose callback has raised at this step."""
    run = begun(record, TAPS)
    run.fails_at = (0, position) if ends else None
    run.effects = {(0, position): record.plan_failure((run.number, 0, position), "a failure")}
    call(record, run, *range(position))
    with pytest.raises(PlantedError) as raised:
        call(record, run, position)
    return run, raised.value


def ended_by(error: BaseException, cause: BaseException | None) -> RuntimeError:
    ended = RuntimeError(f"INTERNAL: callback failed: {error}")
    ended.__cause__ = cause
    return ended


@pytest.mark.parametrize(("ends", "kinds"), [(True, []), (False, ["lost"])])
def test_after_a_failure_that_ends_the_computation_nothing_runs(record: Record, ends: bool, kinds: list[str]) -> None:
    """A tap that raises does not end it."""
    run, error = failing(record, 1, ends)
    if ends:
        record.raised(run, ended_by(error, error), in_thread=True)
    record.reported([str(error)])
    assert (judged(record), record.failures) == (kinds, 1)


def test_an_error_of_another_run_or_without_its_cause(record: Record) -> None:
    run, error = failing(record, 1, ends=True)
    record.raised(run, ended_by(PlantedError(run.number + 1, 0, 1), error), in_thread=True)
    record.raised(run, ended_by(error, None), in_thread=False)
    record.raised(run, ended_by(error, None), in_thread=True)
    assert [anomaly.kind for anomaly in record.anomalies] == ["wrong error"] * 2


def test_failures_are_reported_once(record: Record) -> None:
    run, error = failing(record, 0, ends=False)
    call(record, run, 1, 2)
    failing(record, 2, ends=False)
    record.reported([str(error), str(error), "ValueError: of somebody else"])
    assert judged(record) == ["wrong failure", "wrong failure", "failure not reported"]
