"""The ledger of a soak: a right history is forgotten, and each wrong one is found when it comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from conformance.soak.codes import POSITIONS, RESULT_MARK, base_code, parts_of
from conformance.soak.keeping import MOST_KEPT, ONE_IN
from conformance.soak.ledger import MOST_OUTSTANDING, Ledger
from conformance.soak.runs import PlantedError, Run
from conformance.soak.shapes import BRANCHES, FORI, ONE_DEVICE, PMAP, SCAN, WHILE_CONDITION, ProgramSpec, Shape

pytestmark = pytest.mark.contract("C64")

SPEC = ProgramSpec(ONE_DEVICE, FORI, ("id_tap", "io_callback", "pure_callback"), 3)
TAPS = ProgramSpec(ONE_DEVICE, FORI, ("id_tap",), 3)
SPREAD = ProgramSpec(PMAP, SCAN, ("id_tap", "call"), 2)


def begun(
    ledger: Ledger, spec: ProgramSpec = SPEC, lane: str = "one", devices: tuple[int, ...] = (0,), **more: Any
) -> Run:
    run = Run(ledger.new_number(), lane, Shape(spec, spec.trips), devices, **more)
    ledger.begin(run)
    return run


def came(ledger: Ledger, run: Run, position: int, slot: int = 0, **more: Any) -> Any:
    """The callback of one step."""
    told: dict[str, Any] = {"data": None, "device": None, **more}
    site = told.pop("site", run.shape.steps[position].site)
    return ledger.saw(site, run.shape.spec, base_code(run.number, slot) + position, **told)


def all_came(ledger: Ledger, run: Run) -> None:
    for slot in range(len(run.devices)):
        for position in run.shape.steps:
            came(ledger, run, position, slot)


def over(ledger: Ledger, run: Run) -> None:
    """Its dispatch has returned, and its results are there."""
    ledger.returned(run)
    ledger.fetched(run, [run.shape.result(run.number, slot) for slot in range(len(run.devices))])


def kinds(ledger: Ledger) -> list[str]:
    return [anomaly.kind for anomaly in ledger.anomalies]


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    yield Ledger()


# What is right is forgotten -----------------------------------------------------------------------


@pytest.mark.parametrize("spec", [SPEC, SPREAD, ProgramSpec(ONE_DEVICE, BRANCHES, ("id_tap", "id_print"), 4)])
def test_a_right_history_leaves_nothing(ledger: Ledger, spec: ProgramSpec) -> None:
    for _ in range(3):
        run = begun(ledger, spec, devices=(4, 5) if spec is SPREAD else (4,))
        all_came(ledger, run)
        over(ledger, run)
        ledger.settle(ledger.tick(), "a barrier")
    ledger.check_empty()
    ledger.check_reported()
    assert (kinds(ledger), ledger.outstanding, ledger.runs) == ([], {}, 3)
    assert (
        ledger.events == sum(ledger.by_kind.values()) == 3 * spec.trips * len(spec.kinds) * (2 if spec is SPREAD else 1)
    )


def test_a_thread_that_is_held_up_while_it_forgets_holds_up_no_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may come there and wait for a program whose callback forgets a run: with a lock an hour hung."""
    held, other = begun(ledger), begun(ledger, lane="two", devices=(1,))
    for run in (held, other):
        all_came(ledger, run)
        over(ledger, run)
    entered, release = threading.Event(), threading.Event()
    counted = Run.events.fget

    def events(run: Run) -> Any:
        if run is held:
            entered.set()
            release.wait(60)
        return counted(run)

    monkeypatch.setattr(Run, "events", property(events))
    first = threading.Thread(target=ledger.settle_one, args=(held, "here"), daemon=True)
    second = threading.Thread(target=ledger.settle_one, args=(other, "there"), daemon=True)
    first.start()
    try:
        assert entered.wait(30)
        second.start()
        second.join(30)
        assert not second.is_alive() and ledger.runs == 1
    finally:
        release.set()
        first.join(30)
    assert (ledger.runs, kinds(ledger)) == (2, [])


def test_unordered_callbacks_come_in_any_order(ledger: Ledger) -> None:
    run = begun(ledger)
    for position in (8, 1, 5, 0, 2, 4, 3, 7, 6, 2):
        came(ledger, run, position)
    over(ledger, run)
    ledger.settle(ledger.tick(), "a barrier")
    assert kinds(ledger) == []


def test_the_condition_of_a_loop_comes_once_more_than_its_body() -> None:
    shape = Shape(ProgramSpec(ONE_DEVICE, WHILE_CONDITION, ("call",), 5), 2)
    assert [step.kind for _, step in sorted(shape.steps.items())] == ["id_tap", "call", "id_tap", "call", "id_tap"]


def test_a_run_that_a_barrier_does_not_cover_may_still_wait(ledger: Ledger) -> None:
    before = ledger.tick()
    run = begun(ledger)
    ledger.returned(run)
    ledger.settle(before, "a barrier")
    other = begun(ledger, lane="two")
    ledger.returned(other)
    ledger.settle(ledger.tick(), "jax.effects_barrier", lane="three")
    assert (kinds(ledger), len(ledger.outstanding)) == ([], 2)


def test_codes_are_int32_and_come_apart_again() -> None:
    code = base_code(262_143, 7) + POSITIONS - 1
    assert code == np.iinfo(np.int32).max
    assert parts_of(code) == (262_143, 7, POSITIONS - 1)


def test_results_are_sums_as_int32(ledger: Ledger) -> None:
    run = begun(ledger, ProgramSpec(ONE_DEVICE, FORI, ("call",), 900))
    returned = [came(ledger, run, position) for position in run.shape.steps]
    assert returned[0] == base_code(run.number, 0) ^ RESULT_MARK
    with np.errstate(over="ignore"):
        assert run.shape.result(run.number, 0) == np.sum(returned, dtype=np.int32)


# What is wrong is found ---------------------------------------------------------------------------


def test_lost(ledger: Ledger) -> None:
    run = begun(ledger, TAPS)
    came(ledger, run, 0)
    ledger.returned(run)
    ledger.settle(ledger.tick(), "a barrier of one")
    (anomaly,) = ledger.anomalies
    assert anomaly.kind == "lost"
    assert anomaly.witness.endswith("still waits for device 0: ordered steps 1, 2")
    assert ledger.failed.is_set()


def test_lost_of_one_device(ledger: Ledger) -> None:
    run = begun(ledger, SPREAD, devices=(2, 3))
    for position in run.shape.steps:
        came(ledger, run, position, slot=1)
    ledger.returned(run)
    ledger.settle(ledger.tick(), "a barrier")
    assert kinds(ledger) == ["lost"]
    assert "device 2" in ledger.anomalies[0].witness


def test_a_pure_callback_is_needed_by_the_result(ledger: Ledger) -> None:
    run = begun(ledger)
    for position in (0, 1, 3, 4, 6, 7, 2, 5):
        came(ledger, run, position)
    ledger.settle(ledger.tick(), "a barrier")
    assert kinds(ledger) == []
    over(ledger, run)
    assert kinds(ledger) == ["lost"]


@pytest.mark.parametrize(("positions", "kind"), [((0, 2), "order"), ((0, 0), "doubled"), ((0, 1, 2, 2), "doubled")])
def test_order_on_a_device(ledger: Ledger, positions: tuple[int, ...], kind: str) -> None:
    run = begun(ledger, TAPS)
    for position in positions:
        came(ledger, run, position)
    assert kinds(ledger) == [kind]


def test_an_unordered_callback_that_comes_twice(ledger: Ledger) -> None:
    run = begun(ledger)
    came(ledger, run, 1)
    came(ledger, run, 1)
    assert kinds(ledger) == ["doubled"]


def test_programs_of_one_thread_are_in_the_order_of_their_dispatch(ledger: Ledger) -> None:
    first, second = begun(ledger, TAPS), begun(ledger, TAPS)
    came(ledger, first, 0)
    came(ledger, second, 0)
    assert kinds(ledger) == ["order of programs"]


def test_a_program_of_another_thread_comes_after_what_had_returned(ledger: Ledger) -> None:
    first = begun(ledger, TAPS)
    ledger.returned(first)
    came(ledger, begun(ledger, TAPS, "two"), 0)
    assert kinds(ledger) == ["order of programs"]


def test_programs_that_two_threads_start_at_once_come_in_either_order(ledger: Ledger) -> None:
    begun(ledger, TAPS)
    came(ledger, begun(ledger, TAPS, "two"), 0)
    elsewhere = begun(ledger, TAPS, "one", devices=(1,))
    came(ledger, elsewhere, 0)
    assert kinds(ledger) == []


def test_a_callback_of_no_program(ledger: Ledger) -> None:
    run = begun(ledger, TAPS)
    all_came(ledger, run)
    over(ledger, run)
    ledger.settle(ledger.tick(), "a barrier")
    came(ledger, run, 2)
    ledger.saw(0, TAPS, base_code(77, 0), None, None)
    assert kinds(ledger) == ["no program", "no program"]
    assert "which was over: one" in ledger.anomalies[0].witness
    assert "not known" in ledger.anomalies[1].witness


def test_wrong_function_device_and_result(ledger: Ledger) -> None:
    run = begun(ledger, TAPS)
    came(ledger, run, 0, site=1)
    came(ledger, run, 1, device=3)
    came(ledger, run, 2, device=0)
    ledger.fetched(run, [5])
    assert kinds(ledger) == ["wrong function", "wrong device", "wrong result"]


@pytest.mark.parametrize(
    "data", [np.full(4, 6, np.float32), np.full(3, 5, np.float32), np.full(4, 5, np.int8), np.array([5, 5, 5, 4], "f4")]
)
def test_wrong_data(ledger: Ledger, data: Any) -> None:
    run = begun(ledger, ProgramSpec(ONE_DEVICE, FORI, ("id_tap",), 9, size=4))
    for position in range(5):
        came(ledger, run, position, data=np.full(4, position, np.float32))
    assert kinds(ledger) == []
    came(ledger, run, 5, data=data)
    assert kinds(ledger) == ["wrong operand"]


def test_data_that_change_while_a_callback_keeps_them(ledger: Ledger) -> None:
    run = begun(ledger, ProgramSpec(ONE_DEVICE, FORI, ("id_tap",), 900, size=4))
    buffer = np.empty(4, np.float32)
    for position in range(2 * ONE_IN):
        buffer[...] = position
        came(ledger, run, position, data=buffer)
    assert kinds(ledger) == []
    ledger._keeping.check_all()
    assert set(kinds(ledger)) == {"torn operand"}


def test_only_a_few_arrays_are_kept(ledger: Ledger) -> None:
    run = begun(ledger, ProgramSpec(ONE_DEVICE, FORI, ("id_tap",), 900, size=4))
    for position in range(900):
        came(ledger, run, position, data=np.full(4, position & 127, np.float32))
    assert (len(ledger._keeping._kept), kinds(ledger)) == (MOST_KEPT, [])


def test_a_ledger_that_forgets_nothing_is_found(ledger: Ledger) -> None:
    for _ in range(MOST_OUTSTANDING):
        begun(ledger, TAPS)
    assert kinds(ledger) == []
    begun(ledger, TAPS)
    assert kinds(ledger) == ["the ledger grows"]


# Failures -----------------------------------------------------------------------------------------


def failing(ledger: Ledger, position: int, ends: bool) -> tuple[Run, PlantedError]:
    """A run whose callback has raised at this step."""
    number = ledger.new_number()
    fail = ledger.plan_failure((number, 0, position), "a failure")
    at = (0, position)
    run = Run(number, "one", Shape(TAPS, 3), (0,), fails_at=at if ends else None, effects={at: fail})
    ledger.begin(run)
    for earlier in range(position):
        came(ledger, run, earlier)
    with pytest.raises(PlantedError) as raised:
        came(ledger, run, position)
    return run, raised.value


def ended_by(error: BaseException, cause: BaseException | None) -> RuntimeError:
    ended = RuntimeError(f"INTERNAL: callback failed: {error}")
    ended.__cause__ = cause
    return ended


def test_after_a_failure_that_ends_the_computation_nothing_comes(ledger: Ledger) -> None:
    run, error = failing(ledger, 1, ends=True)
    ledger.raised(run, ended_by(error, error), in_thread=True)
    ledger.returned(run)
    ledger.settle(ledger.tick(), "a barrier")
    ledger.reported([str(error)])
    ledger.check_reported()
    assert (kinds(ledger), ledger.failures) == ([], 1)


def test_a_tap_that_raises_does_not_end_the_computation(ledger: Ledger) -> None:
    run, error = failing(ledger, 1, ends=False)
    ledger.reported([str(error)])
    ledger.returned(run)
    ledger.settle(ledger.tick(), "a barrier")
    assert kinds(ledger) == ["lost"]


def test_an_error_of_another_run_or_without_its_cause(ledger: Ledger) -> None:
    run, error = failing(ledger, 1, ends=True)
    ledger.raised(run, ended_by(PlantedError(run.number + 1, 0, 1), error), in_thread=True)
    ledger.raised(run, ended_by(error, None), in_thread=False)
    assert kinds(ledger) == ["wrong error"]
    ledger.raised(run, ended_by(error, None), in_thread=True)
    assert kinds(ledger) == ["wrong error"] * 2


def test_failures_are_reported_once(ledger: Ledger) -> None:
    run, error = failing(ledger, 0, ends=False)
    for position in (1, 2):
        came(ledger, run, position)
    _, other = failing(ledger, 0, ends=False)
    ledger.reported([str(error), str(error), "ValueError: of somebody else"])
    ledger.check_reported()
    assert kinds(ledger) == ["wrong failure", "wrong failure", "failure not reported"]
    assert other.key[0] == 2
