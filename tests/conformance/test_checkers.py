"""The checkers accept a right history, and refuse each kind of wrong one with its evidence."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest

from conformance.model.worlds import ExpectedEvent, Need
from conformance.oracle.checkers import Anomaly, check_order, check_results, check_transforms, judge, match
from conformance.oracle.history import Event, History, Recorder
from conformance.oracle.verdicts import Outcome, Stage, Verdict

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


def at(device: int, step: int) -> int:
    return 2 * step + device


def with_fields(place: int, **fields: Any) -> Callable[[Events], Events]:
    return lambda events: [*events[:place], replace(events[place], **fields), *events[place + 1 :]]


def with_operand(*leaves: Any) -> Callable[[Events], Events]:
    return with_fields(at(0, 3), leaves=leaves, kept=leaves)


def swapped(a: int, b: int) -> Callable[[Events], Events]:
    """Two callbacks have each other's operand, and not time or device."""

    def swap(events: Events) -> Events:
        for here, there in ((a, events[b]), (b, events[a])):
            events[here] = replace(events[here], leaves=there.leaves, kept=there.kept)
        return events

    return swap


def without_devices(events: Events) -> Events:
    return [replace(event, device=None) for event in events]


def verdict(events: Sequence[Event], barrier: int | None = None) -> list[Anomaly]:
    return judge(EXPECTED, [], History(tuple(events), barrier), [], "cpu")


LAST = right()[-1]

WRONG: dict[str, tuple[Callable[[Events], Events], str, str]] = {
    "lost": (lambda events: [*events[: at(1, 6)], *events[at(1, 6) + 1 :]], "lost", "cpu:1 never ran #7 (tap"),
    "last lost": (lambda events: events[:-1], "lost", "cpu:1 never ran #8 (tap"),
    "twice": (lambda events: [*events, replace(LAST, begin=1000, end=1001)], "duplicate", "once too often"),
    "neighbours": (swapped(at(1, 5), at(1, 6)), "order", "cpu:1 ran #7 (tap float32[2] [106.0, 106.5]) before #6 (tap"),
    "last two": (swapped(at(1, 6), at(1, 7)), "order", "cpu:1 ran #8 (tap"),
    "no devices": (lambda events: without_devices(swapped(at(0, 5), at(0, 6))(events)), "order", "before #6"),
    "other device": (with_fields(at(0, 2), device=1), "wrong device", "ran on cpu:1, expected cpu:0"),
    "value": (with_operand(np.asarray([3, 3.25], np.float32)), "wrong operand", "where #4 (tap"),
    "dtype": (with_operand(np.asarray([3, 3.5])), "wrong operand", "where #4 (tap"),
    "rank": (with_operand(np.asarray([[3, 3.5]], np.float32)), "wrong operand", "where #4 (tap"),
    "stale": (with_operand(*value(2)), "stale operand", "where #4 (tap"),
    "nowhere": (lambda events: [*events, replace(LAST, site="nowhere", begin=1000, end=1001)], "unexpected", "no such"),
    "transforms": (with_fields(at(0, 2), transforms=()), "wrong transforms", "received ()"),
    "overlap": (with_fields(at(0, 2), end=10**6), "overlap", "while #3 (tap"),
    "torn": (with_fields(at(0, 2), kept=value(77)), "torn operand", "later became"),
}


@pytest.mark.parametrize(("change", "kind", "evidence"), WRONG.values(), ids=WRONG)
def test_a_wrong_history_is_refused(change: Callable[[Events], Events], kind: str, evidence: str) -> None:
    anomalies = verdict(change(right()))
    assert {(anomaly.kind, anomaly.stage) for anomaly in anomalies} == {(kind, Stage.CALLBACK)}, anomalies
    assert evidence in anomalies[0].witness


def test_right_histories_are_accepted() -> None:
    """The devices may run their callbacks in any order, a callback may not receive its device, and a barrier waits."""
    one_after_another = sorted(right(), key=lambda event: event.device or 0)
    retimed = [replace(e, sequence=i, begin=10 * i, end=10 * i + 5) for i, e in enumerate(one_after_another)]
    for events in (right(), without_devices(right()), retimed):
        assert verdict(events) == []
    assert verdict(right(), barrier=LAST.end) == []
    (anomaly,) = verdict(right(), barrier=LAST.end - 1)
    assert (anomaly.kind, anomaly.stage) == ("early barrier", Stage.BARRIER)


def test_results_are_compared_with_their_type_and_the_sign_of_a_zero() -> None:
    ones, zero = np.asarray([1, 2], np.float32), np.zeros((), np.float32)
    assert check_results([np.asarray([1.0, 2.0]), zero], [ones, zero]) == []
    for wrong in (ones[:1], ones + 1, ones.astype(np.float64)):
        assert [anomaly.kind for anomaly in check_results([ones], [wrong])] == ["result"]
    assert check_results([zero], [-zero]) and check_results([ones], [])


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
        expected = [ExpectedEvent("tap", 0, value(n), need=need) for n in (1, 2, 1)]
        history = History(tuple(Event(place, "tap", value(n)) for place, n in enumerate(ran)))
        found = judge(expected, [], history, [], "cpu", ordered=False)
        assert [anomaly.kind for anomaly in found] == kinds, (need, ran)


def test_equal_operands_are_matched_in_program_order() -> None:
    """As in rematerialisation: the first value comes back after the second."""
    expected = [ExpectedEvent("tap", 0, value(n)) for n in (1, 2, 1)]
    late = [Event(i, "tap", value(n), begin=i, end=i) for i, n in enumerate((1, 1, 2))]
    assert [position for position, _ in match(expected, late).pairs] == [0, 2, 1]
    assert ["ran #3" in each.witness for each in judge(expected, [], History(tuple(late)), [], "cpu")] == [True]


def test_equal_operands_of_two_devices_have_no_order() -> None:
    """Elements of few values: device 0 sees 1, 2 and 3, device 1 sees 2, 1 and 4, and no event says its device."""
    expected = [ExpectedEvent("tap", d, value(n)) for d, numbers in enumerate(((1, 2, 3), (2, 1, 4))) for n in numbers]

    def wrong(*numbers: int, device: int | None = None) -> bool:
        recorded = [Event(i, "tap", value(n), device=device, begin=i, end=i) for i, n in enumerate(numbers)]
        return any(each.kind == "order" for each in judge(expected, [], History(tuple(recorded)), [], "cpu"))

    assert not wrong(2, 1, 4, 1, 2, 3)
    assert not wrong(1, 2, 2, 1, 3, 4)
    assert wrong(2, 1, 3, 1, 2, 4, device=0)
    # Where events say their devices, each belongs to its own.
    equal = [ExpectedEvent("tap", device, value(1)) for device in (0, 1)]
    recorded = [Event(i, "tap", value(1), device=device, begin=i, end=i) for i, device in enumerate((1, 0))]
    assert judge(equal, [], History(tuple(recorded)), [], "cpu") == []


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


def test_a_wrong_order_names_its_events_and_the_worker_reports_them() -> None:
    one, two = (np.float32(number) for number in (1, 2))
    expected = [ExpectedEvent("first", 0, (one,)), ExpectedEvent("last", 0, (two,))]
    recorded = [Event(5, "last", (two,), device=0), Event(6, "first", (one,), device=0)]
    (found,) = check_order(match(expected, recorded), "cpu")
    assert found.evidence == ((5, 2), (6, 1))
    outcome = Outcome(Verdict.FAIL, Stage.CALLBACK, evidence=found.evidence)
    assert Outcome.from_json(json.loads(json.dumps(outcome.as_json()))) == outcome
