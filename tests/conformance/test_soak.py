"""The suite's own proofs: mutants die of the right reason, and the soak finds wrong histories and leaks."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import suite_runs
from suite_runs import Patch
from support.subprocesses import run_program

from conformance.engine.first_cells import FIRST_CELLS, kills_in
from conformance.mutants import MUTANTS
from conformance.mutants.matrix import Matrix, Row
from conformance.mutants.mutant import Mutant
from conformance.mutants.trials import cells_of, planned_cells, run
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import Plan
from conformance.planning.processes import USUAL, plan_over_processes
from conformance.soak import disturbing
from conformance.soak.disturbing import Signals
from conformance.soak.growth import ALLOWED, BLOCKS, LEAST_SAMPLES, Found, slope_of
from conformance.soak.record import PlantedError, Record, Run
from conformance.soak.specs import CALLBACKS, STEPS, Form, Layout, ProgramSpec, Shape, base_code, drawn_program
from conformance.spec.errors import CommandError

pytestmark = pytest.mark.contract("C64")

# Mutants.

CELL = "id_tap/jit/cpu-1dev"
LOST = "lost at callback"
PASS = Outcome(Verdict.PASS)


def mutant(name: str, symptom: str = LOST, words: str = "", home: str = "conformance.mutants") -> Mutant:
    return Mutant(name, "it is broken", lambda library: {}, (CELL,), (symptom,), words, home)


def fails(kind: str, stage: Stage | None = Stage.CALLBACK) -> Outcome:
    return Outcome(Verdict.FAIL, stage, f"{kind}: the evidence", anomaly=kind)


def matrix_of(outcome: Outcome, control: Outcome = PASS, symptom: str = LOST, words: str = "") -> Matrix:
    matrix = Matrix([Row(broken := mutant("mutant", symptom, words))])
    matrix.add_control(CELL, control)
    matrix.add(broken, CELL, outcome)
    return matrix


@pytest.mark.contract("C6")
def test_a_kill_is_a_failure_for_the_right_reason() -> None:
    other = "killed for another reason"
    for symptom, words, outcome, fate in (
        (LOST, "", fails("lost"), "killed"),
        ("hang", "", Outcome(Verdict.HANG, reason="no answer for 10 s"), "killed"),
        ("lost at *", "", fails("lost", Stage.EXIT), "killed"),
        ("lost at *", "", fails("lost", None), other),
        (LOST, "evidence", fails("lost"), "killed"),
        (LOST, "other words", fails("lost"), other),
        (LOST, "", PASS, "survived"),
        (LOST, "", fails("duplicate"), other),
        (LOST, "", fails("lost", Stage.EXIT), other),
    ):
        matrix = matrix_of(outcome, symptom=symptom, words=words)
        killed = fate == "killed"
        assert ([row.fate for row in matrix.rows], matrix.exit_code) == ([fate], 0 if killed else 1)
        assert matrix.idle_cells == ([] if killed else [CELL])
    # A cell that fails without the mutant shows nothing.
    matrix = matrix_of(fails("lost"), control=fails("lost"))
    assert (matrix.exit_code, matrix.rows[0].kills) == (1, [])
    assert matrix.problems == [f"{CELL} fails without any mutant: fail: lost: the evidence"]
    matrix = matrix_of(Outcome(Verdict.HARNESS_ERROR, reason="Traceback"))
    assert matrix.exit_code == 1 and "the suite itself failed" in matrix.problems[0]
    assert Matrix([]).exit_code == 2


@pytest.mark.contract("C6")
def test_mutants_are_killed_and_what_is_not_broken_survives(tmp_path: Path) -> None:
    (late,) = (broken for broken in MUTANTS if broken.name == "late")
    harmless = mutant("IMPLEMENTATION", home="conformance.implementations.hostcb")
    matrix = run([late, harmless], tmp_path, 1, 60.0)
    assert [row.fate for row in matrix.rows] == ["killed", "survived"]
    assert (matrix.exit_code, matrix.problems) == (1, [])
    assert [{trial.outcome.anomaly for trial in row.kills} for row in matrix.rows] == [{"early barrier"}, set()]
    wrong = Mutant("wrong", "", lambda library: {}, ("id_tap/no_such_program/*",), (LOST,))
    with pytest.raises(CommandError, match="no_such_program"):
        cells_of(wrong, planned_cells())
    assert len({broken.name for broken in MUTANTS}) == len(MUTANTS) >= 80


@pytest.mark.contract("C6")
def test_a_run_begins_with_planned_cells_that_kill_the_mutants(cpu_plan: Plan) -> None:
    """`mutants --rank` renews the file."""
    first = kills_in(FIRST_CELLS.read_text())
    planned = {cell.id for cell in (*cpu_plan.cells, *plan_over_processes(("hostcb",), [USUAL]).cells)}
    assert {f"hostcb/{cell}" for cell in first} <= planned
    assert {mutant for killed in first.values() for mutant in killed} <= {mutant.name for mutant in MUTANTS}
    assert len({mutant for killed in first.values() for mutant in killed}) >= 0.95 * len(MUTANTS)


# The soak.


def spec(*kinds: str, trips: int = 3, layout: Layout = Layout.ONE_DEVICE, **more: Any) -> ProgramSpec:
    return ProgramSpec(layout, more.pop("form", Form.SCAN), kinds, trips, **more)


TAPS, SPREAD = spec("id_tap"), spec("id_tap", "call", trips=2, layout=Layout.PMAP)
MIXED = spec("id_print", "io_callback", "pure_callback", "call", form=Form.WHILE_CONDITION)
ARRAYS = spec("id_tap", trips=900, size=4)


class Soak(Record):
    """A record, with what runs."""

    def begun(self, spec: ProgramSpec = TAPS, thread: str = "one") -> Run:
        return self.begin(thread, Shape(spec, spec.trips), (4, 5) if spec is SPREAD else (0,))

    def call(self, run: Run, *places: int, slot: int = 0, site: str = "", **more: Any) -> Any:
        for place in places:
            code = base_code(run.number, slot) + place
            steps = run.shape.steps
            result = self.saw(site or steps[min(place, len(steps) - 1)].site, run.shape.spec, code, **more)
        return result

    def returned(self, run: Run, thread: str | None = None) -> None:
        """Its dispatch is over, and then a barrier."""
        run.returned = time.monotonic_ns()
        self.barrier(time.monotonic_ns() + 1, thread)

    def judged(self) -> list[str]:
        """The kinds of the anomalies since the last time."""
        self.judge()
        found, self.anomalies = self.anomalies, []
        return [anomaly.kind for anomaly in found]


@pytest.mark.parametrize("spec", [MIXED, SPREAD])
def test_a_right_history_is_forgotten(spec: ProgramSpec) -> None:
    record = Soak()
    run = record.begun(spec)
    count = len(run.shape.steps) * len(run.devices)
    for slot in range(len(run.devices)):
        record.call(run, *range(len(run.shape.steps)), slot=slot)
    record.fetched(run, [run.shape.result(run.number, slot) for slot in range(len(run.devices))])
    record.returned(run)
    assert record.waiting() == record.judged() == []
    assert record.events == count
    # Its callbacks belong to no run any more.
    record.call(run, 0)
    assert record.judged() == ["unexpected"]


UNORDERED = spec("io_callback", "pure_callback", trips=2)


@pytest.mark.parametrize(
    ("spec", "places", "kinds"),
    [
        (TAPS, (0,), ["lost", "lost"]),
        (TAPS, (0, 2, 1), ["order"]),
        (TAPS, (0, 1, 2, 2), ["duplicate"]),
        # Unordered callbacks have no order, and pure ones may run again.
        (UNORDERED, (3, 2, 1, 1, 0), []),
        (UNORDERED, (0, 1, 3), ["lost"]),
    ],
)
def test_wrong_histories(spec: ProgramSpec, places: tuple[int, ...], kinds: list[str]) -> None:
    record = Soak()
    record.call(record.begun(spec), *places)
    assert record.judged() == kinds


def test_wrong_results_functions_devices_and_times() -> None:
    """Callbacks that overlap, and callbacks that run after the barrier of their thread."""
    record = Soak()
    run = record.begun()
    record.call(run, 0, site="place 1")
    record.call(run, 1, device=3)
    record.call(run, 2, device=0)
    record.saw("place 0", SPREAD, base_code(record.begun().number, 0))
    assert record.judged() == ["unexpected", "unexpected", *["lost"] * 4, "wrong device"]
    run = record.begun()
    run.effects = {(0, 0): lambda: record.call(run, 1)}
    record.call(run, 0)
    record.returned(run, "another one")
    record.call(run, 2)
    assert record.judged() == ["overlap"]
    late = record.begun(thread="two")
    record.call(late, 0)
    record.returned(late, "two")
    record.call(late, 1, 2)
    assert record.judged() == ["early barrier"] * 2
    # A result is the sum of what callbacks return.
    run = record.begun(spec("call", trips=900))
    found = [record.call(run, place) for place in range(900)]
    assert run.shape.result(run.number, 0) == np.sum(found, dtype=np.int32)
    record.fetched(run, [5])
    assert record.judged() == ["result"]


def test_the_order_of_programs() -> None:
    """Those that start at once in two threads have none."""
    for thread, had_returned, kinds in (
        ("one", False, "order"),
        ("two", True, "order of programs"),
        ("two", False, ""),
    ):
        record = Soak()
        first = record.begun()
        first.returned = time.monotonic_ns() - 1 if had_returned else first.returned
        second = record.begun(thread=thread)
        record.call(second, 0, 1, 2)
        record.call(first, 0, 1, 2)
        assert record.judged() == [*filter(None, [kinds])]


def test_wrong_data_and_data_that_change_while_a_callback_keeps_them() -> None:
    wrong = (np.full(4, 6, np.float32), np.full(3, 5, np.float32), np.full(4, 5, np.int8), np.array([5, 5, 5, 4], "f4"))
    for data in wrong:
        record = Soak()
        run = record.begun(ARRAYS)
        for place in range(900):
            record.call(run, place, data=data if place == 5 else np.full(4, place & 127, np.float32))
        assert record.judged() == ["wrong operand"]
    record, buffer = Soak(), np.empty(4, np.float32)
    run = record.begun(ARRAYS)
    for place in range(900):
        buffer[...] = place & 127
        record.call(run, place, data=buffer)
    assert {*record.judged()} == {"torn operand"}


@pytest.mark.parametrize(("ends", "kinds"), [(True, []), (False, ["lost"])])
def test_failures_and_errors(ends: bool, kinds: list[str]) -> None:
    """After one that ends the computation nothing runs; a tap that raises does not end it."""
    record = Soak()
    run = record.begun()
    run.fails_at = (0, 1) if ends else None
    run.effects = {(0, 1): record.plan_failure((run.number, 0, 1), "a failure")}
    with pytest.raises(PlantedError) as raised:
        record.call(run, 0, 1)
    error = raised.value
    record.reported([error])
    assert (record.judged(), record.failures) == (kinds, 1)
    record.reported([error, ValueError("of somebody else")])
    assert record.judged() == ["wrong failure"] * 2
    # What a program raises is the error that was planted in it, and each failure of a tap is reported.
    run, other = record.begun(), PlantedError(7, 0, 1)
    record.raised(run, other, in_thread=False)
    run.fails_at = (0, 1)
    record.raised(run, other, in_thread=False)
    record.fetched(run, [0])
    with pytest.raises(PlantedError):
        record.plan_failure((run.number, 0, 1), "a failure")()
    record.call(run, 0, 1)
    assert record.judged() == ["error", "wrong error", "no error", "failure not reported"]


# What grows.

PLACES = [20_000.0 * number for number in range(60)]


def test_a_leak_is_found_in_noise_and_fails_the_soak() -> None:
    """56 bytes an event are a quarter of the noise from one sample to the next; now and then a sample is far off."""
    for seed in range(5):
        drawn = random.Random(seed)
        noise = [1e9 + drawn.gauss(0, 5e6) + (5e7 if drawn.random() < 0.05 else 0) for _ in PLACES]
        leak = [value + 56.0 * place for value, place in zip(noise, PLACES, strict=True)]
        still, leaking = slope_of(PLACES, noise), slope_of(PLACES, leak)
        assert still and leaking
        assert still.low_slope <= 0.0 < leaking.low_slope <= 56.0 <= leaking.high_slope
    # As caches do, before the warm-up is over.
    filled = slope_of(PLACES, [min(place, PLACES[50]) for place in PLACES], first=PLACES[50])
    assert filled and filled.low_slope <= 0.0
    assert slope_of(PLACES[:LEAST_SAMPLES], [1.0] * LEAST_SAMPLES) is None

    def found_of(values: list[dict[str, float]]) -> Found:
        return Found(Record(), [(10_000 * number, each) for number, each in enumerate(values)], 0, 60.0)

    flat = dict.fromkeys(ALLOWED, 100.0)
    assert found_of([flat] * 20).exit_code == 0
    for name, allowed in ALLOWED.items():
        # One more in a thousand events; of memory as much as an object.
        each = (0.001 + 4 * allowed) * 10_000
        soak = found_of([{**flat, name: 100.0 + each * number} for number in range(20)])
        assert (soak.growing, soak.exit_code) == ([name], 1)
    soak = found_of([])
    soak.record.note("lost", "run 7")
    assert (soak.exit_code, "FAILED: lost: run 7" in soak.summary()) == (1, True)


# Short soaks of hostcb and of broken ones, in one process.

SHORT = {"events": 1500, "threads": 2}
BROKEN = {
    "conformance.mutants:dropped": ("lost",),
    "conformance.mutants:neighbours_swapped": ("order",),
    "conformance.mutants:duplicated": ("duplicate",),
    "reusing": ("wrong operand", "torn operand", "order", "duplicate", "unexpected"),
    "conformance.mutants:early_barrier": ("lost", "early barrier", "unexpected", "failure not reported"),
}


@pytest.mark.thorough
def test_a_short_soak_finds_each_defect_and_nothing_in_hostcb() -> None:
    """The slope of memory says nothing in so short a time."""
    asked = {"hostcb": SHORT, **dict.fromkeys(BROKEN, SHORT)}
    asked["leaking"] = {"events": 10_000, "threads": 1, "acts": 2, "programs": 1, "warm_up": 0}
    found = run_program("soaks.py", json.dumps(asked), devices=2).json()
    assert found["hostcb"]["anomalies"] == found["leaking"]["anomalies"] == []
    assert found["hostcb"]["events"] >= SHORT["events"]
    assert BLOCKS in found["leaking"]["growing"] and BLOCKS not in found["hostcb"]["growing"]
    for name, kinds in BROKEN.items():
        assert found[name]["anomalies"][0].startswith(kinds), name


# The process.

SOAK = (*suite_runs.SUITE, "soak", "--devices", "2")
HANGS = """\
import threading
import hostcb
from conformance.implementations.hostcb import Hostcb
from conformance.soak.doing import Doer
IMPLEMENTATION = Hostcb(hostcb)
def hangs(doer):
    threading.Event().wait()
Doer._run = hangs
"""


@pytest.mark.usefixtures("sigint_reaches_programs")
def test_an_interrupt_ends_it_and_a_hang_has_its_stacks(tmp_path: Path) -> None:
    process = suite_runs.started(tmp_path, *SOAK)
    assert process.stderr and process.stderr.readline()
    process.send_signal(signal.SIGINT)
    ended = suite_runs.end(process)
    assert (ended.returncode, ended.stderr.startswith("interrupted: ")) == (0, True), ended.stdout + ended.stderr
    assert "every callback was right" in ended.stdout
    (tmp_path / "hanging.py").write_text(HANGS)
    hung = suite_runs.ran(tmp_path, *SOAK, "--implementation", "hanging", "--threads", "1", "--deadline", "12")
    assert hung.returncode == 1 and "in hangs" in hung.stderr[hung.stderr.index("Timeout (") :]


def test_the_handler_of_signals(devices: list[jax.Device], monkeypatch: Patch) -> None:
    """It does nothing while all callbacks must be here, though a signal may still come; its error is not swallowed."""
    record = Soak()
    monkeypatch.setattr(disturbing, "HANDLERS_TAP", True)
    signals, tapped = Signals(0, record, None, devices[:1]), list[Run]()
    monkeypatch.setattr(signals, "_random", type("Always", (random.Random,), {"random": lambda self: 0.0})())
    monkeypatch.setattr(signals._program, "tap", tapped.append)
    with signals.off():
        signals._handle()
    assert (tapped, record.judged()) == ([], [])
    signals._handle()
    assert len(tapped) == 1
    monkeypatch.setattr(signals._program, "tap", lambda run: 1 / 0)
    signals._handle()
    (anomaly,) = record.anomalies
    assert "ZeroDivisionError" in anomaly.witness


def test_every_program_is_drawn() -> None:
    specs = [drawn_program(random.Random(seed), 8) for seed in range(600)]
    assert {kind for spec in specs for kind in spec.kinds} == {*CALLBACKS}
    assert ({spec.layout for spec in specs}, {spec.form for spec in specs}) == ({*Layout} - {Layout.EAGER}, {*Form})
    assert all(len(Shape(spec, spec.trips).steps) < STEPS for spec in specs)
