"""Compares what a program did with what the oracle expects of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.history import Event
from ..oracle.verdicts import Stage
from .description import ORDERED_KINDS, PURE_KINDS, UNORDERED_KINDS
from .expected import Expected, ExpectedCall

ONE_ORDER = (ORDERED_KINDS,)
"""hostcb's ordered callbacks of all kinds have one order."""

ORDERS_OF_JAX = (("io_callback_ordered",), ("debug_callback_ordered",))
"""JAX has one for each of these."""


def judge(
    expected: Sequence[Expected],
    results: Sequence[Sequence[Any]],
    events: Sequence[Event],
    orders: Sequence[Sequence[str]] = ONE_ORDER,
    apart: bool = False,
) -> list[Anomaly]:
    """The anomalies of some runs in a row. `expected` is by device; `apart` says that each ran it for itself."""
    found = [one for result in results for one in _wrong_results(expected, result, apart)]
    runs, kinds = len(results), {one.label: one.kind for each in expected for one in each.calls}
    by_device: dict[int, list[Event]] = {device: [] for device in range(len(expected))}
    for event in events:
        device = _device(event)
        if device not in by_device or int(event.site) not in kinds:
            return [*found, _anomaly("unexpected", f"{_event(event)} ran, and no device comes to it")]
        by_device[device].append(event)
    for device, ran in by_device.items():
        due = expected[device].calls * runs
        for order in orders:
            chosen = [one for one in due if one.kind in order]
            found += _in_order(device, chosen, [one for one in ran if kinds[int(one.site)] in order])
        chosen = [one for one in due if one.kind in UNORDERED_KINDS]
        found += _once_each(device, chosen, [one for one in ran if kinds[int(one.site)] in UNORDERED_KINDS])
        possible = [one for one in due if one.kind in PURE_KINDS]
        for event in ran:
            if kinds[int(event.site)] in PURE_KINDS and not any(_is(event, one) for one in possible):
                found.append(_anomaly("wrong operand", f"device {device}: no run calls {_event(event)}"))
    return found


def _wrong_results(expected: Sequence[Expected], results: Sequence[Any], apart: bool) -> list[Anomaly]:
    for device, wanted in enumerate(expected):
        for place, (due, result) in enumerate(zip(wanted.results, results, strict=True)):
            came = result[device] if apart else result
            if (came.shape, came.dtype) != (due.shape, due.dtype) or not np.array_equal(came, due):
                text = f"device {device}: result {place} is {came.tolist()}, expected {due.tolist()}"
                return [Anomaly("result", Stage.RESULT, text)]
    return []


def _in_order(device: int, due: list[ExpectedCall], ran: list[Event]) -> list[Anomaly]:
    # Row by row: the places in `due` that are possible after the events so far.
    places = {0}
    for event in ran:
        reached = set()
        for start in places:
            for place in range(start, len(due)):
                if _is(event, due[place]):
                    reached.add(place + 1)
                if not due[place].optional:
                    break
        if not reached:
            break
        places = reached
    else:
        if any(all(one.optional for one in due[place:]) for place in places):
            return []
    if unlike := _once_each(device, due, ran):
        return unlike
    first = next((pair for pair in zip(due, ran, strict=False) if not _is(pair[1], pair[0])), (due[-1], ran[-1]))
    return [_anomaly("order", f"device {device} ran {_event(first[1])} where {_call(first[0])} is due")]


def _once_each(device: int, due: list[ExpectedCall], ran: list[Event]) -> list[Anomaly]:
    # Those that must run take events first.
    waiting = sorted(due, key=lambda one: one.optional)
    for event in ran:
        place = next((place for place, one in enumerate(waiting) if _is(event, one)), None)
        if place is None:
            same = any(_is(event, one) for one in due)
            kind = "duplicate" if same else "wrong operand" if _counts(due, ran, event) else "unexpected"
            return [_anomaly(kind, f"device {device} ran {_event(event)}, which is not due (any more)")]
        del waiting[place]
    if lost := [one for one in waiting if not one.optional]:
        return [_anomaly("lost", f"device {device} did not run {_call(lost[0])}")]
    return []


def _counts(due: list[ExpectedCall], ran: list[Event], event: Event) -> bool:
    """Whether as many runs of this callback are due as there were."""
    came = Counter(int(one.site) for one in ran)[int(event.site)]
    return came <= Counter(one.label for one in due)[int(event.site)]


def _is(event: Event, due: ExpectedCall) -> bool:
    if int(event.site) != due.label or len(event.leaves) != len(due.leaves):
        return False
    if not due.stacked:
        return all(_equal(came, one) for came, one in zip(event.leaves, due.leaves, strict=True))
    axes = _batch_axes(event)
    return all(
        _equal(np.moveaxis(came, axis, 0), one)
        if came.ndim == one.ndim and axis is not None and axis < came.ndim
        else came.ndim == one.ndim - 1 and all(_equal(came, lane) for lane in one)
        for came, one, axis in zip(event.leaves, due.leaves, axes, strict=True)
    )


def _batch_axes(event: Event) -> list[int | None]:
    """For each leaf the axis of its lanes, or None where it has none. A function without `transforms` has the first."""
    batches = [entry for entry in event.transforms if entry[0] == "batch"]
    if not batches:
        return [0] * len(event.leaves) if not event.transforms else [None] * len(event.leaves)
    (entry,) = batches
    dims = list(entry[1]["batch_dims"])
    # A leaf without a value has none.
    return [None] * (len(event.leaves) - len(dims)) + dims


def _device(event: Event) -> int:
    """The number that the program gave; a transposed tap has no value of an integer, and is tried on one device."""
    where = event.leaves[0]
    return 0 if where.dtype.names else int(where.flat[0])


def _equal(came: Any, due: Any) -> bool:
    alike = came.shape == due.shape and came.dtype == due.dtype
    return alike and (came.dtype.names is not None or np.array_equal(came, due))


def _event(event: Event) -> str:
    return f"callback {event.site} with {[leaf.tolist() for leaf in event.leaves[1:]]}"


def _call(one: ExpectedCall) -> str:
    return f"callback {one.label} ({one.kind}) with {[leaf.tolist() for leaf in one.leaves[1:]]}"


def _anomaly(kind: str, text: str) -> Anomaly:
    return Anomaly(kind, Stage.CALLBACK, text)
