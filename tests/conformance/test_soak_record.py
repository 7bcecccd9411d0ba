"""What a soak draws, and its record: a right history is forgotten, and each wrong one is found."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import jax
import numpy as np
import pytest

from conformance.soak import disturbing
from conformance.soak.disturbing import Signals
from conformance.soak.doing import Doer
from conformance.soak.programs import Program
from conformance.soak.record import MOST_KEPT, ONE_IN, PlantedError, Record, Run
from conformance.soak.specs import (
    CALLBACKS,
    STEPS,
    Form,
    Layout,
    ProgramSpec,
    Shape,
    base_code,
    drawn_program,
    parts_of,
)

pytestmark = pytest.mark.contract("C64")

TAPS = ProgramSpec(Layout.ONE_DEVICE, Form.SCAN, ("id_tap",), 3)
MIXED = ProgramSpec(Layout.ONE_DEVICE, Form.WHILE_CONDITION, ("id_print", "io_callback", "pure_callback", "call"), 3)
SPREAD = ProgramSpec(Layout.PMAP, Form.SCAN, ("id_tap", "call"), 2)
ARRAYS = ProgramSpec(Layout.ONE_DEVICE, Form.SCAN, ("id_tap",), 900, size=4)


@pytest.fixture
def record() -> Record:
    return Record()


def begun(record: Record, spec: ProgramSpec = TAPS, thread: str = "one") -> Run:
    return record.begin(thread, Shape(spec, spec.trips), (4, 5) if spec is SPREAD else (0,))


def call(record: Record, run: Run, *places: int, slot: int = 0, site: str = "", **more: Any) -> None:
    for place in places:
        code = base_code(run.number, slot) + place
        record.saw(site or run.shape.steps[place].site, run.shape.spec, code, **more)


def judged(record: Record) -> list[str]:
    record.judge()
    return [anomaly.kind for anomaly in record.anomalies]


def test_a_thread_repeats_what_its_seed_gives(
    record: Record, devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Program, "compile_ahead", lambda program: None)

    def runs(seed: int, name: str) -> list[str]:
        doer, found = Doer(name, seed, record, None, devices[:2]), list[str]()
        doer._dispatch = lambda program, run: found.append(f"{run.shape.spec} {run.shape.trips} {[*run.effects]}")  # type: ignore[method-assign]
        for act in doer.acts(3, 40):
            if act == doer._run or "lambda" in act.__qualname__:
                act()
        return found

    assert runs(0, "a") == runs(0, "a")
    assert len({*map(str, (runs(0, "a"), runs(0, "b"), runs(1, "a")))}) == 3


def test_every_program_is_drawn_and_has_codes() -> None:
    specs = [drawn_program(Random(seed), 8) for seed in range(600)]
    assert {kind for spec in specs for kind in spec.kinds} == {*CALLBACKS}
    assert {spec.layout for spec in specs} == {*Layout} - {Layout.EAGER}
    assert {spec.form for spec in specs} == {*Form}
    assert {len(Shape(spec, spec.trips).steps) < STEPS for spec in specs} == {True}
    assert {drawn_program(Random(seed), 1).layout for seed in range(50)} == {Layout.ONE_DEVICE}
    code = base_code(262_143, 7) + STEPS - 1
    assert (code, parts_of(code)) == (np.iinfo(np.int32).max, (262_143, 7, STEPS - 1))


@pytest.mark.parametrize("spec", [TAPS, MIXED, SPREAD])
def test_a_right_history_is_forgotten(record: Record, spec: ProgramSpec) -> None:
    run = begun(record, spec)
    assert record.waiting() == [f"{run}: 0 of {len(run.shape.steps) * len(run.devices)} callbacks"]
    for slot in range(len(run.devices)):
        call(record, run, *range(len(run.shape.steps)), slot=slot)
    record.fetched(run, [run.shape.result(run.number, slot) for slot in range(len(run.devices))])
    run.returned = time.monotonic_ns()
    record.barrier(time.monotonic_ns() + 1)
    assert record.waiting() == judged(record) == []
    assert record.events == len(run.shape.steps) * len(run.devices)
    # Its callbacks belong to no run any more.
    call(record, run, 0)
    assert judged(record) == ["unexpected"]


def test_a_result_is_the_sum_of_what_callbacks_return(record: Record) -> None:
    run = begun(record, ProgramSpec(Layout.ONE_DEVICE, Form.SCAN, ("call",), 900))
    returned = [record.saw("place 0", None, base_code(run.number, 0) + place) for place in range(900)]
    assert run.shape.result(run.number, 0) == np.sum(returned, dtype=np.int32)
    record.fetched(run, [5])
    assert judged(record) == ["result"]


@pytest.mark.parametrize(
    ("places", "kinds"),
    [
        ((0,), ["lost", "lost"]),
        ((0, 2, 1), ["order"]),
        ((0, 1, 2, 2), ["duplicate"]),
        ((0, 1, 2, 7), ["unexpected"]),
    ],
)
def test_wrong_histories_of_taps(record: Record, places: tuple[int, ...], kinds: list[str]) -> None:
    run = begun(record)
    for place in places:
        record.saw("place 0", run.shape.spec, base_code(run.number, 0) + place)
    assert judged(record) == kinds


def test_unordered_callbacks_have_no_order_and_pure_ones_may_run_again(record: Record) -> None:
    run = begun(record, ProgramSpec(Layout.ONE_DEVICE, Form.SCAN, ("io_callback", "pure_callback"), 2))
    call(record, run, 3, 2, 1, 1, 0)
    assert judged(record) == []
    call(record, begun(record, run.shape.spec), 0, 1, 3)
    assert judged(record) == ["lost"]


def test_a_wrong_function_and_a_wrong_device(record: Record) -> None:
    run = begun(record)
    call(record, run, 0, site="place 1")
    call(record, run, 1, device=3)
    call(record, run, 2, device=0)
    assert judged(record) == ["unexpected", "lost", "wrong device"]


def test_callbacks_that_overlap_and_callbacks_after_their_barrier(record: Record) -> None:
    run = begun(record)
    run.effects = {(0, 0): lambda: call(record, run, 1)}
    call(record, run, 0)
    run.returned = time.monotonic_ns()
    record.barrier(time.monotonic_ns() + 1, thread="another one")
    call(record, run, 2)
    assert judged(record) == ["overlap"]
    late = begun(record, thread="two")
    call(record, late, 0)
    late.returned = time.monotonic_ns()
    record.barrier(time.monotonic_ns() + 1, thread="two")
    call(record, late, 1, 2)
    assert judged(record)[1:] == ["early barrier"] * 2


@pytest.mark.parametrize(
    ("thread", "had_returned", "kinds"),
    [("one", False, ["order"]), ("two", True, ["order of programs"]), ("two", False, [])],
)
def test_the_order_of_programs(record: Record, thread: str, had_returned: bool, kinds: list[str]) -> None:
    """Those that start at once in two threads have none."""
    first = begun(record)
    first.returned = time.monotonic_ns() - 1 if had_returned else first.returned
    second = begun(record, thread=thread)
    call(record, second, 0, 1, 2)
    call(record, first, 0, 1, 2)
    assert judged(record) == kinds


@pytest.mark.parametrize(
    "data", [np.full(4, 6, np.float32), np.full(3, 5, np.float32), np.full(4, 5, np.int8), np.array([5, 5, 5, 4], "f4")]
)
def test_wrong_data(record: Record, data: Any) -> None:
    run = begun(record, ARRAYS)
    for place in range(900):
        call(record, run, place, data=data if place == 5 else np.full(4, place & 127, np.float32))
    assert judged(record) == ["wrong operand"]


def test_data_that_change_while_a_callback_keeps_them(record: Record) -> None:
    """A few arrays are kept, and not each."""
    run, buffer = begun(record, ARRAYS), np.empty(4, np.float32)
    for place in range(900):
        buffer[...] = place & 127
        call(record, run, place, data=buffer)
    assert len(record._kept) == MOST_KEPT < 900 // ONE_IN
    assert {*judged(record)} == {"torn operand"}


@pytest.mark.parametrize(("ends", "kinds"), [(True, []), (False, ["lost"])])
def test_failures(record: Record, ends: bool, kinds: list[str]) -> None:
    """After one that ends the computation nothing runs; a tap that raises does not end it."""
    run = begun(record)
    run.fails_at = (0, 1) if ends else None
    run.effects = {(0, 1): record.plan_failure((run.number, 0, 1), "a failure")}
    with pytest.raises(PlantedError) as raised:
        call(record, run, 0, 1)
    error = raised.value
    record.reported([error])
    assert (judged(record), record.failures) == (kinds, 1)
    record.reported([error, ValueError("of somebody else")])
    assert judged(record)[len(kinds) :] == ["wrong failure"] * 2


def test_wrong_errors_and_failures_that_no_barrier_reports(record: Record) -> None:
    run, other = begun(record), PlantedError(7, 0, 1)
    record.raised(run, other, in_thread=False)
    run.fails_at = (0, 1)
    record.raised(run, other, in_thread=False)
    right = PlantedError(run.number, 0, 1)
    record.raised(run, right, in_thread=False)
    record.raised(run, right, in_thread=True)
    record.fetched(run, [0])
    with pytest.raises(PlantedError):
        record.plan_failure((run.number, 0, 1), "a failure")()
    call(record, run, 0, 1)
    assert judged(record) == ["error", "wrong error", "wrong error", "no error", "failure not reported"]


def test_the_handler_of_signals(record: Record, devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """It does nothing while all callbacks must be here, though a signal may still come; its error is not swallowed."""
    monkeypatch.setattr(disturbing, "HANDLERS_TAP", True)
    signals, tapped = Signals(0, record, None, devices[:1]), list[Run]()
    monkeypatch.setattr(signals, "_random", type("Always", (Random,), {"random": lambda self: 0.0})())
    monkeypatch.setattr(signals._program, "tap", tapped.append)
    with signals.off():
        signals._handle()
        assert (tapped, signals.count, judged(record)) == ([], 0, [])
    signals._handle()
    assert (len(tapped), signals.count) == (1, 1)
    monkeypatch.setattr(signals._program, "tap", lambda run: 1 / 0)
    signals._handle()
    (anomaly,) = record.anomalies
    assert anomaly.witness.startswith("the handler of signal 2: Traceback")
