"""Right histories are accepted, each wrong one is refused with its evidence; rates of failure, and time limits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest
from suite_runs import Patch

from conformance.engine.conclusions import Conclusion, conclude_repeated
from conformance.expectations.entries import Expectation, Expectations
from conformance.model.programs import Program, all_programs
from conformance.model.transforms import TRANSFORMS
from conformance.model.worlds import ExpectedEvent, Need, RefusalError
from conformance.oracle import fair_deadline
from conformance.oracle.checkers import Anomaly, check_results, check_transforms, judge, match
from conformance.oracle.fair_deadline import MOST, FairDeadline
from conformance.oracle.history import Event, History, Recorder
from conformance.oracle.repetition import Repetition, chance_of_difference, interval
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict
from conformance.spec.data import ELEMENT_TYPES
from conformance.spec.external_callbacks import callback_named
from conformance.spec.support_table import TABLE

pytestmark = pytest.mark.contract("C5")

STEPS = 8
BATCH = (("batch", {"batch_dims": (0,)}),)


def value(number: float) -> tuple[np.ndarray]:
    return (np.asarray([number, number + 0.5], np.float32),)


EXPECTED = [
    ExpectedEvent("tap", device, value(100 * device + step), BATCH) for device in (0, 1) for step in range(STEPS)
]

Events: TypeAlias = list[Event]


def right() -> Events:
    """All events, those of the two devices by turns."""
    return [
        Event(place, "tap", each.leaves, each.leaves, BATCH, each.device, each.device, 10 * place, 10 * place + 5)
        for place, each in enumerate(EXPECTED[step + STEPS * device] for step in range(STEPS) for device in (0, 1))
    ]


def with_fields(place: int, **fields: Any) -> Callable[[Events], Events]:
    return lambda events: [*events[:place], replace(events[place], **fields), *events[place + 1 :]]


def with_operand(numbers: Any, dtype: Any) -> Callable[[Events], Events]:
    leaves = (np.asarray(numbers, dtype),)
    return with_fields(6, leaves=leaves, kept=leaves)


def swapped(a: int, b: int) -> Callable[[Events], Events]:
    """Two callbacks have each other's operand, and not time or device."""

    def swap(events: Events) -> Events:
        for here, there in ((a, events[b]), (b, events[a])):
            events[here] = replace(events[here], leaves=there.leaves, kept=there.kept)
        return events

    return swap


def without_devices(events: Events) -> Events:
    return [replace(event, device=None) for event in events]


def verdict(
    events: Sequence[Event], barrier: int | None = None, expected: Any = EXPECTED, **more: Any
) -> list[Anomaly]:
    return judge(expected, [], History(tuple(events), barrier), [], "cpu", **more)


def seen(*numbers: int, device: int | None = None) -> Events:
    """One callback after another, with these operands."""
    return [Event(i, "tap", value(n), device=device, begin=i, end=i) for i, n in enumerate(numbers)]


def wanted(*numbers: int, device: int = 0, need: Need = Need.ONCE) -> list[ExpectedEvent]:
    return [ExpectedEvent("tap", device, value(n), need=need) for n in numbers]


LAST = right()[-1]

WRONG: dict[str, tuple[Callable[[Events], Events], str, str]] = {
    "lost": (lambda events: [*events[:13], *events[14:]], "lost", "cpu:1 never ran #7 (tap"),
    "twice": (lambda events: [*events, replace(LAST, begin=1000, end=1001)], "duplicate", "once too often"),
    "neighbours": (swapped(11, 13), "order", "cpu:1 ran #7 (tap float32[2] [106.0, 106.5]) before #6 (tap"),
    "no devices": (lambda events: without_devices(swapped(10, 12)(events)), "order", "before #6"),
    "other device": (with_fields(4, device=1), "wrong device", "ran on cpu:1, expected cpu:0"),
    "value": (with_operand([3, 3.25], np.float32), "wrong operand", "where #4 (tap"),
    "dtype": (with_operand(np.float32([3, 3.5]).view(np.int32), np.int32), "wrong operand", "where #4 (tap"),
    "stale": (with_operand([2, 2.5], np.float32), "stale operand", "where #4 (tap"),
    "nowhere": (lambda events: [*events, replace(LAST, site="nowhere", begin=1000, end=1001)], "unexpected", "no such"),
    "transforms": (with_fields(4, transforms=()), "wrong transforms", "received ()"),
    "overlap": (with_fields(4, end=10**6), "overlap", "while #3 (tap"),
    "torn": (with_fields(4, kept=value(77)), "torn operand", "later became"),
}


@pytest.mark.parametrize(("change", "kind", "evidence"), WRONG.values(), ids=WRONG)
def test_a_wrong_history_is_refused(change: Callable[[Events], Events], kind: str, evidence: str) -> None:
    anomalies = verdict(change(right()))
    assert {(anomaly.kind, anomaly.stage) for anomaly in anomalies} == {(kind, Stage.CALLBACK)}, anomalies
    assert evidence in anomalies[0].witness
    numbered = re.findall(r"#(\d+)", anomalies[0].witness)
    assert [str(number) for _, number in anomalies[0].evidence] == (numbered if kind != "lost" else [])


def test_right_histories_are_accepted_and_the_worker_reports_the_events_of_a_wrong_order() -> None:
    """The devices may run their callbacks in any order, a callback may not receive its device, and a barrier waits."""
    one_after_another = sorted(right(), key=lambda event: event.device or 0)
    retimed = [replace(e, sequence=i, begin=10 * i, end=10 * i + 5) for i, e in enumerate(one_after_another)]
    for events in (right(), without_devices(right()), retimed):
        assert verdict(events) == []
    assert verdict(right(), barrier=LAST.end) == []
    (anomaly,) = verdict(right(), barrier=LAST.end - 1)
    assert (anomaly.kind, anomaly.stage) == ("early barrier", Stage.BARRIER)
    (found, *_) = verdict(swapped(11, 13)(right()))
    assert found.evidence == ((11, 7), (13, 6))
    outcome = Outcome(Verdict.FAIL, Stage.CALLBACK, evidence=found.evidence)
    assert Outcome.from_json(json.loads(json.dumps(outcome.as_json()))) == outcome


def test_results_are_compared_with_their_type_and_the_sign_of_a_zero() -> None:
    ones, zero = np.asarray([1, 2], np.float32), np.zeros((), np.float32)
    assert check_results([np.asarray([1.0, 2.0]), zero], [ones, zero]) == []
    for wrong in (ones[:1], ones + 1, ones.astype(np.float64)):
        assert [anomaly.kind for anomaly in check_results([ones], [wrong])] == ["result"]
    assert check_results([zero], [-zero]) and check_results([ones], [])


# The model of programs. Cells compare the most of it with JAX: here is what they cannot show.


def test_the_table_says_what_the_callbacks_promise_and_programs_can_be_judged() -> None:
    """Each pair of transforms, numbers that are exact in float32, and no value twice where a checker would mix them."""
    rows, columns = {each.row for each in TABLE}, {each.column for each in TABLE if "footnote" not in each.column}
    assert len(rows) * len(columns) == sum(each.column in columns for each in TABLE)
    for entry in TABLE:
        for name in entry.programs:
            try:
                Program(tuple(name.split("."))).prediction(callback_named(entry.callback), 2)
            except RefusalError:
                assert not entry.supported, (entry, name)
    programs, composable = all_programs(), len(TRANSFORMS) - 1
    assert len({program.name for program in programs}) == len(programs)
    assert sum(len(program.names) == 2 for program in programs) == composable**2
    for program in programs:
        prediction = program.prediction(callback_named("id_tap"), 8)
        for result in prediction.results:
            assert np.float32(result) == result and abs(result) < 2**24, program.name
        # Recomputation and elements that have finished show a value again.
        if not {"remat", "vmap", "custom_vjp"} & {*program.names}:
            found = program.prediction(callback_named("id_tap"), 8, inputs=[3.0]).events
            assert len({(each.site, each.leaves[0].tobytes()) for each in found}) == len(found), program.name


# Callbacks that may run again, or need not run.


def test_how_often_an_unordered_callback_runs() -> None:
    for need, ran, kinds in (
        (Need.ONCE, [1, 2, 1], []),
        (Need.ONCE, [1, 2], ["lost"]),
        (Need.ONCE, [1, 2, 1, 1], ["duplicate"]),
        (Need.AT_LEAST_ONCE, [1, 1, 1, 2, 2], []),
        (Need.AT_LEAST_ONCE, [1], ["lost"]),
        (Need.AT_LEAST_ONCE, [1, 2, 3], ["unexpected"]),
        (Need.ANY_NUMBER, [], []),
        (Need.ANY_NUMBER, [1, 1], []),
        (Need.ANY_NUMBER, [3], ["unexpected"]),
    ):
        found = verdict(seen(*ran), expected=wanted(1, 2, 1, need=need), ordered=False)
        assert [anomaly.kind for anomaly in found] == kinds, (need, ran)


def test_equal_operands_are_matched_in_program_order_and_on_their_devices() -> None:
    """As in rematerialisation: the first value comes back after the second."""
    late = seen(1, 1, 2)
    assert [position for position, _ in match(wanted(1, 2, 1), late).pairs] == [0, 2, 1]
    assert ["ran #3" in each.witness for each in verdict(late, expected=wanted(1, 2, 1))] == [True]
    # Device 0 sees 1, 2 and 3, device 1 sees 2, 1 and 4, and no event says its device: they have no order.
    expected = [*wanted(1, 2, 3), *wanted(2, 1, 4, device=1)]
    for numbers, device, order in (
        ((2, 1, 4, 1, 2, 3), None, False),
        ((1, 2, 2, 1, 3, 4), None, False),
        ((2, 1, 3, 1, 2, 4), 0, True),
    ):
        found = verdict(seen(*numbers, device=device), expected=expected)
        assert any(each.kind == "order" for each in found) is order
    # Where events say their devices, each belongs to its own.
    recorded = [replace(event, device=device) for event, device in zip(seen(1, 1), (1, 0), strict=True)]
    assert verdict(recorded, expected=[*wanted(1), *wanted(1, device=1)]) == []


# Axes of batches.


def batches(*dims: int | None) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The `transforms` of a tap of one array under nested vmaps, the innermost first."""
    return tuple(("batch", {"batch_dims": (dim,)}) for dim in dims)


CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
"""As the model has it: of 2 outer and 3 inner batch elements, each with 4 numbers."""


def test_transforms_say_which_axes_are_batches() -> None:
    right_ones = [((0, 1, 2), (0, 0)), ((1, 0, 2), (0, 1)), ((2, 1, 0), (1, 2)), ((0, 2, 1), (1, 0))]
    wrong_ones = [((2, 1, 0), dims) for dims in ((0, 1), (1, 0), (0, 5), (0,), (None, 0), (-1, 0))]
    for axes, dims in (*right_ones, *wrong_ones):
        expected = ExpectedEvent("tap", 0, (CUBE,), batches(0, 0))
        matching = match([expected], [Event(0, "tap", (CUBE.transpose(axes),), transforms=batches(*dims))])
        assert (matching.lost, matching.surplus) == ((), ())
        kinds = [] if (axes, dims) in right_ones else ["wrong transforms"]
        assert [each.kind for each in check_transforms(matching)] == kinds, (axes, dims)
    # A printed batch may be any axis, too.
    printed = ExpectedEvent("tap", 0, (np.asarray(f"{CUBE}"),), batches(0, 0), array=CUBE)
    text = (np.asarray(f"{CUBE.transpose(2, 1, 0)}"),)
    assert check_transforms(match([printed], [Event(0, "tap", text, transforms=batches(1, 2))])) == []
    assert match([printed], [Event(0, "tap", text, transforms=batches(0, 2))]).surplus
    # The mark of a cotangent may not be lost.
    marked = (*batches(0), ("transpose", {}))
    cotangent = [ExpectedEvent("tap", 0, (CUBE[0],), marked)]
    for transforms, right in ((marked, True), (batches(0), False), (marked[::-1], False)):
        matching = match(cotangent, [Event(0, "tap", (CUBE[0],), transforms=transforms)])
        assert (check_transforms(matching) == []) is right


def test_the_recorder_copies_operands_and_survives_an_exception() -> None:
    recorder = Recorder()
    recorder.start()
    operand = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="planted"), recorder.callback("tap", {"b": operand, "a": 7}):
        raise ValueError("planted")
    operand += 1
    (event,) = recorder.history().events
    assert [leaf.tolist() for leaf in event.leaves] == [7, [0, 0]]
    assert [leaf.tolist() for leaf in event.kept] == [7, [1, 1]]


def test_operands_of_each_type_fit_into_the_results() -> None:
    """A worker that could not write its history would end, and its cell would be a crash."""
    for element in ELEMENT_TYPES.values():
        operand = np.zeros(2, element.dtype)
        recorder = Recorder()
        with recorder.callback("first", operand):
            pass
        (event,) = recorder.history().events
        (shown,) = json.loads(json.dumps(event.as_json()))["value"]
        assert len(shown) == 2, element.name


# Chance is measured.

CELL = "jax/pure_callback/jit/cpu-1dev"
PASS = Outcome(Verdict.PASS, seconds=0.25)
FAIL = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: cpu:0 never ran #1", 0.5, anomaly="lost")
OTHER = Outcome(Verdict.FAIL, Stage.CALLBACK, "order: cpu:0 ran #2 before #1", 0.5, anomaly="order")
HANG = Outcome(Verdict.HANG, reason="no answer")
BROKEN = Outcome(Verdict.HARNESS_ERROR, reason="Traceback")
ENTRY = Expectation((CELL,), "fail", "planted", "none", "2026-01-01", Stage.CALLBACK)
UNLISTED, STRICT, BY_CHANCE = (
    Expectations(entries) for entries in ((), (ENTRY,), (replace(ENTRY, intermittent=True),))
)


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("outcomes", "expectations", "verdict", "status"),
    [
        ([PASS, PASS], UNLISTED, "pass", ExpectationStatus.AS_EXPECTED),
        ([PASS, FAIL], UNLISTED, "flake", ExpectationStatus.UNEXPECTED),
        ([PASS, FAIL], STRICT, "flake", ExpectationStatus.CHANGED_FAILURE),
        ([FAIL, OTHER], STRICT, "fail", ExpectationStatus.KNOWN_FAILURE),
        ([PASS, FAIL], BY_CHANCE, "fail", ExpectationStatus.KNOWN_FAILURE),
        ([PASS, FAIL, HANG], BY_CHANCE, "hang", ExpectationStatus.CHANGED_FAILURE),
        ([PASS, BROKEN], UNLISTED, "harness_error", ExpectationStatus.UNEXPECTED),
    ],
)
def test_conclusion_from_several_runs(
    outcomes: list[Outcome], expectations: Expectations, verdict: str, status: ExpectationStatus
) -> None:
    """A flake is a failure, unless the expectation says that the cell fails by chance."""
    conclusion = conclude_repeated(CELL, outcomes, expectations)
    assert conclusion.outcome.label == verdict
    assert expectations.status(CELL, conclusion.outcome) is status
    assert conclusion.outcome.seconds == pytest.approx(sum(outcome.seconds for outcome in outcomes))
    assert Conclusion.from_json(json.loads(json.dumps(conclusion.as_json()))) == conclusion
    repetition = conclusion.repetition
    assert repetition is not None
    failures = sum(one not in (PASS, BROKEN) for one in outcomes)
    assert (repetition.runs, repetition.failures) == (len(outcomes), failures)


@pytest.mark.contract("C7")
def test_rates_have_intervals_and_differences_a_chance() -> None:
    """Errors of the suite are left out. The table of Clopper and Pearson (1934), Fisher's tea, and one of textbooks."""
    assert Repetition.of([FAIL, BROKEN, FAIL]).rate == 1.0
    assert Repetition.of([BROKEN, BROKEN]).interval == (0.0, 1.0)
    repetition = Repetition.of([PASS, FAIL, OTHER, PASS, FAIL, FAIL, PASS, PASS])
    assert repetition.words == "4 of 8 runs failed: 50.0 %, 95 % interval 15.7 % to 84.3 %"
    assert [(way.count, way.witness) for way in repetition.ways] == [(4, ""), (3, FAIL.reason), (1, OTHER.reason)]
    for failed, runs, low, high in ((0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0), (13, 100, 0.0711, 0.2120)):
        assert interval(failed, runs, 0.95) == pytest.approx((low, high), abs=1e-4)
    for one, other, chance in (
        ({"pass": 3, "fail": 1}, {"pass": 1, "fail": 3}, 0.4857),
        # Neither fails more often; they fail in another way.
        ({"fail": 10, "pass": 10}, {"hang": 10, "pass": 10}, 3 * 0.000436),
    ):
        assert chance_of_difference(one, other) == pytest.approx(chance, rel=0.01)


# A busy machine extends a time limit, a hang does not (docs/testing-the-suite.md).


def test_the_time_without_a_processor_is_added(monkeypatch: Patch) -> None:
    """That of the process which was kept longest, for each of its threads, and not for ever."""
    now = {"time": 0.0, "a": 0.0, "b": 0.0, "other": 0.0}
    threads = {1: ("a", "b"), 2: ("other",)}
    monkeypatch.setattr(fair_deadline.time, "monotonic", lambda: now["time"])
    monkeypatch.setattr(fair_deadline, "waited_for_processors", lambda pid: {name: now[name] for name in threads[pid]})
    assert FairDeadline(10.0, 1).wait(lambda seconds: 0) == 0
    for took, waited, left in (
        (9.5, 0.0, 0.5),
        (10.25, 0.0, -0.25),
        (12.0, 4.0, 2.0),
        # Threads that spin do not extend it for ever.
        (MOST * 10.0 - 1.0, 1e6, 1.0),
    ):
        # What a process waits in the first tenth does not count.
        now = {"time": 100.0, "a": 7.0, "b": 0.0, "other": 0.0}
        deadline = FairDeadline(10.0, 1, 2)
        assert deadline.pause() == 1.0
        now["time"] += 1.0
        assert deadline.pause() == deadline.left() == 9.0
        now = {"time": 100.0 + took, "a": 7.0 + waited * 0.75, "b": waited * 0.25, "other": waited / 2}
        assert deadline.left() == left
