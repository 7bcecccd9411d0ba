"""Every checker accepts a good history and names what is planted in a bad one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.model.worlds import ExpectedEvent
from conformance.oracle.checkers import Anomaly, check_order, check_results, check_transforms, judge, match
from conformance.oracle.history import Event, History, Recorder
from conformance.oracle.verdicts import Outcome, Stage, Verdict

pytestmark = pytest.mark.contract("C5")

DEVICES = 2
EVENTS_PER_DEVICE = 8
BATCH = (("batch", {"batch_dims": (0,)}),)


def value(number: float) -> tuple[np.ndarray]:
    return (np.asarray([number, number + 0.5], np.float32),)


def expected_events() -> list[ExpectedEvent]:
    return [
        ExpectedEvent("tap", device, value(100 * device + step), BATCH)
        for device in range(DEVICES)
        for step in range(EVENTS_PER_DEVICE)
    ]


def good_history() -> list[Event]:
    """All events, the devices interleaved."""
    by_step = sorted(expected_events(), key=lambda event: float(event.leaves[0][0]) % 100)
    return [
        Event(
            sequence=sequence,
            site=event.site,
            leaves=event.leaves,
            kept=event.leaves,
            transforms=event.transforms,
            device=event.device,
            thread=event.device,
            begin=10 * sequence,
            end=10 * sequence + 5,
        )
        for sequence, event in enumerate(by_step)
    ]


def verdict(events: Sequence[Event], barrier: int | None = None) -> list[Anomaly]:
    return judge(expected_events(), [], History(tuple(events), barrier), [], "cpu")


def index_of(events: Sequence[Event], device: int, step: int) -> int:
    wanted = float(100 * device + step)
    return next(i for i, event in enumerate(events) if event.leaves[0][0] == wanted)


def swap_operands(events: list[Event], a: int, b: int) -> None:
    """Exchange what two callbacks saw, not when or where they ran."""
    events[a], events[b] = (
        replace(events[a], leaves=events[b].leaves, kept=events[b].kept),
        replace(events[b], leaves=events[a].leaves, kept=events[a].kept),
    )


def only(anomalies: Sequence[Anomaly], kind: str) -> Anomaly:
    assert {anomaly.kind for anomaly in anomalies} == {kind}, [str(a) for a in anomalies]
    return anomalies[0]


def test_good_history_is_accepted() -> None:
    assert verdict(good_history()) == []


def test_good_history_without_devices_is_accepted() -> None:
    assert verdict([replace(event, device=None) for event in good_history()]) == []


def test_lost() -> None:
    events = good_history()
    del events[index_of(events, device=1, step=6)]
    assert "cpu:1 never ran #7 (tap" in only(verdict(events), "lost").witness


def test_everything_lost() -> None:
    assert len(verdict([])) == DEVICES * EVENTS_PER_DEVICE


def test_duplicate() -> None:
    events = good_history()
    events.append(replace(events[-1], begin=1000, end=1001))
    assert "once too often" in only(verdict(events), "duplicate").witness


def test_swapped_neighbours() -> None:
    events = good_history()
    swap_operands(events, index_of(events, 1, 5), index_of(events, 1, 6))
    assert verdict(events)[0].witness.startswith("cpu:1 ran #7 (tap")
    assert "before #6 (tap" in only(verdict(events), "order").witness


def test_swapped_neighbours_are_found_without_devices() -> None:
    events = [replace(event, device=None) for event in good_history()]
    swap_operands(events, index_of(events, 1, 5), index_of(events, 1, 6))
    assert "before #6" in only(verdict(events), "order").witness


def test_swapped_across_devices() -> None:
    events = good_history()
    swap_operands(events, index_of(events, 0, 3), index_of(events, 1, 3))
    assert any(anomaly.kind == "wrong device" for anomaly in verdict(events))


def test_interleaving_of_devices_is_free() -> None:
    by_device = sorted(good_history(), key=lambda event: event.device or 0)
    retimed = [replace(e, sequence=i, begin=i * 10, end=i * 10 + 5) for i, e in enumerate(by_device)]
    assert verdict(retimed) == []


def test_wrong_device() -> None:
    events = good_history()
    at = index_of(events, 0, 2)
    events[at] = replace(events[at], device=1)
    assert "ran on cpu:1, expected cpu:0" in only(verdict(events), "wrong device").witness


@pytest.mark.parametrize(
    "wrong",
    [
        np.asarray([3, 3.25], np.float32),
        np.asarray([3, 3.5], np.float64),
        np.asarray([[3, 3.5]], np.float32),
        np.asarray([3], np.float32),
    ],
    ids=["value", "dtype", "rank", "length"],
)
def test_wrong_operand(wrong: np.ndarray) -> None:
    events = good_history()
    at = index_of(events, 0, 3)
    events[at] = replace(events[at], leaves=(wrong,), kept=(wrong,))
    assert "where #4 (tap" in only(verdict(events), "wrong operand").witness


def test_stale_operand() -> None:
    events = good_history()
    at, before = index_of(events, 0, 3), index_of(events, 0, 2)
    events[at] = replace(events[at], leaves=events[before].leaves, kept=events[before].kept)
    assert "where #4 (tap" in only(verdict(events), "stale operand").witness


def test_unknown_site() -> None:
    events = good_history()
    events.append(replace(events[-1], site="nowhere", begin=1000, end=1001))
    assert "no such callback" in only(verdict(events), "unexpected").witness


def test_wrong_transforms() -> None:
    events = good_history()
    events[4] = replace(events[4], transforms=())
    assert "received ()" in only(verdict(events), "wrong transforms").witness


def test_overlap() -> None:
    events = good_history()
    at = index_of(events, 0, 4)
    events[at] = replace(events[at], end=10**6)
    assert "while #5 (tap" in only(verdict(events), "overlap").witness


def test_torn_operand() -> None:
    events = good_history()
    events[4] = replace(events[4], kept=value(77))
    assert "later became" in only(verdict(events), "torn operand").witness


def test_early_barrier() -> None:
    events = good_history()
    end = max(event.end for event in events)
    assert verdict(events, barrier=end) == []
    assert "after" in only(verdict(events, barrier=end - 1), "early barrier").witness
    assert verdict(events, barrier=end - 1)[0].stage is Stage.BARRIER


def test_results() -> None:
    right = np.asarray([1, 2], np.float32)
    wanted = [np.asarray([1.0, 2.0])]
    assert check_results(wanted, [right]) == []
    for wrong in (right[:1], right + 1, right.astype(np.float64)):
        assert only(check_results(wanted, [wrong]), "result").stage is Stage.RESULT
    assert check_results(wanted, []) != []
    zero = np.zeros((), np.float32)
    assert check_results([zero], [zero]) == []
    assert "-0.0, expected float32[] 0.0" in only(check_results([zero], [-zero]), "result").witness


def batches(*dims: int | None) -> tuple[tuple[str, dict[str, Any]], ...]:
    """What a tap of one array receives from nested vmaps, the innermost first."""
    return tuple(("batch", {"batch_dims": (dim,)}) for dim in dims)


CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
"""As the model has it: of 2 outer and 3 inner batch elements, each with 4 numbers."""

OF_NESTED = [ExpectedEvent("tap", 0, (CUBE,), batches(0, 0))]


@pytest.mark.parametrize(
    ("axes", "dims"),
    [((0, 1, 2), (0, 0)), ((1, 0, 2), (0, 1)), ((2, 1, 0), (1, 2)), ((0, 2, 1), (1, 0))],
)
def test_each_batch_may_be_any_axis(axes: tuple[int, ...], dims: tuple[int, ...]) -> None:
    matching = match(OF_NESTED, [Event(0, "tap", (CUBE.transpose(axes),), transforms=batches(*dims))])
    assert (matching.lost, matching.surplus, check_transforms(matching)) == ((), (), [])


@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (0, 5), (0,), (None, 0), (-1, 0)])
def test_wrong_batch_axes(dims: tuple[int | None, ...]) -> None:
    event = Event(0, "tap", (CUBE.transpose(2, 1, 0),), transforms=batches(*dims))
    matching = match(OF_NESTED, [event])
    assert (matching.lost, matching.surplus) == ((), ())
    witness = only(check_transforms(matching), "wrong transforms").witness
    assert witness.endswith("which are not the axes of its operand float32[4, 3, 2] " + str(event.leaves[0].tolist()))


def test_a_lost_transpose_entry() -> None:
    marked = (*batches(0), ("transpose", {}))
    expected = [ExpectedEvent("tap", 0, (CUBE[0],), marked)]
    assert check_transforms(match(expected, [Event(0, "tap", (CUBE[0],), transforms=marked)])) == []
    matching = match(expected, [Event(0, "tap", (CUBE[0],), transforms=batches(0))])
    assert (
        "expected (('batch', {'batch_dims': (0,)}), ('transpose', {}))"
        in only(check_transforms(matching), "wrong transforms").witness
    )


def test_a_printed_batch_may_be_any_axis() -> None:
    expected = [ExpectedEvent("tap", 0, (np.asarray(f"{CUBE}"),), batches(0, 0), array=CUBE)]
    text = (np.asarray(f"{CUBE.transpose(2, 1, 0)}"),)
    assert check_transforms(match(expected, [Event(0, "tap", text, transforms=batches(1, 2))])) == []
    assert match(expected, [Event(0, "tap", text, transforms=batches(0, 2))]).surplus


def test_equal_operands_are_matched_in_program_order() -> None:
    # As in rematerialisation: the first value comes back after the second.
    expected = [ExpectedEvent("tap", 0, value(n)) for n in (1, 2, 1)]
    recorded = [Event(i, "tap", value(n)) for i, n in enumerate((1, 2, 1))]
    assert [position for position, _ in match(expected, recorded).pairs] == [0, 1, 2]
    late = [Event(i, "tap", value(n), begin=i, end=i) for i, n in enumerate((1, 1, 2))]
    anomalies = judge(expected, [], History(tuple(late)), [], "cpu")
    assert "ran #3" in only(anomalies, "order").witness


def test_what_looks_alike_on_two_devices_has_no_order() -> None:
    # Elements of few values: device 0 sees 1, 2 and 3, device 1 sees 2, 1 and 4, and nobody says which it was.
    expected = [ExpectedEvent("tap", d, value(n)) for d, numbers in enumerate(((1, 2, 3), (2, 1, 4))) for n in numbers]

    def order_of(*numbers: int, device: int | None = None) -> list[Anomaly]:
        recorded = [Event(i, "tap", value(n), device=device, begin=i, end=i) for i, n in enumerate(numbers)]
        anomalies = judge(expected, [], History(tuple(recorded)), [], "cpu")
        return [anomaly for anomaly in anomalies if anomaly.kind in ("order", "overlap")]

    assert order_of(2, 1, 4, 1, 2, 3) == []
    assert order_of(1, 2, 2, 1, 3, 4) == []
    # What one device alone sees still has its place, and so has what receives its device.
    assert order_of(2, 1, 3, 1, 2, 4, device=0)
    distinct = [ExpectedEvent("tap", d, value(10 * d + n)) for d in (0, 1) for n in (1, 2)]
    late = [Event(i, "tap", value(n), begin=i, end=i) for i, n in enumerate((2, 11, 1, 12))]
    assert "ran #2" in only(judge(distinct, [], History(tuple(late)), [], "cpu"), "order").witness


def test_recorder_copies_what_it_is_given() -> None:
    recorder = Recorder()
    recorder.start()
    operand = np.zeros(2, np.float32)
    with recorder.callback("tap", operand):
        pass
    operand += 1
    (event,) = recorder.history().events
    assert event.leaves[0].tolist() == [0, 0]
    assert event.kept[0].tolist() == [1, 1]


def test_recorder_survives_a_failing_callback() -> None:
    recorder = Recorder()
    recorder.start()
    with pytest.raises(ValueError, match="planted"), recorder.callback("tap", {"b": 1, "a": 0}):
        raise ValueError("planted")
    (event,) = recorder.history().events
    assert [leaf.item() for leaf in event.leaves] == [0, 1]


def test_a_wrong_order_names_its_events_and_the_worker_reports_them() -> None:
    one, two = (np.float32(number) for number in (1, 2))
    expected = [ExpectedEvent("first", 0, (one,)), ExpectedEvent("last", 0, (two,))]
    recorded = [Event(5, "last", (two,), device=0), Event(6, "first", (one,), device=0)]
    (found,) = check_order(match(expected, recorded), "cpu")
    assert found.evidence == ((5, 2), (6, 1))
    outcome = Outcome(Verdict.FAIL, Stage.CALLBACK, evidence=found.evidence)
    assert Outcome.from_json(json.loads(json.dumps(outcome.as_json()))) == outcome
