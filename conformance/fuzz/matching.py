"""Compares what a program did with what the oracle expects of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.history import Event
from ..oracle.verdicts import Stage
from .description import ORDERED_KINDS, PURE_KINDS, TOLD, UNORDERED_KINDS
from .expected import Expected, ExpectedCall

ONE_ORDER = (ORDERED_KINDS,)
"""hostcb's ordered callbacks of all kinds have one order."""

ORDERS_OF_JAX = (("io_callback_ordered",), ("debug_callback_ordered", "debug_print_ordered"))
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
            steps = _steps([one for one in expected[device].calls if one.kind in order]) * runs
            found += _in_order(device, chosen, steps, [one for one in ran if kinds[int(one.site)] in order])
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


def _steps(due: list[ExpectedCall]) -> list[list[ExpectedCall]]:
    """The calls of each group together, and each other call alone."""
    steps: list[list[ExpectedCall]] = []
    for one in due:
        if one.group and steps and steps[-1][0].group == one.group:
            steps[-1].append(one)
        else:
            steps.append([one])
    return steps


def _in_order(device: int, due: list[ExpectedCall], steps: list[list[ExpectedCall]], ran: list[Event]) -> list[Anomaly]:
    # After each event the steps that are possible next.
    possible: list[set[int]] = [{0}, *(set[int]() for _ in ran)]
    for place, starts in enumerate(possible):
        waiting = sorted(starts)
        while waiting:
            start = waiting.pop()
            if start == len(steps):
                continue
            step = steps[start]
            least = sum(not one.optional for one in step)
            if not least and start + 1 not in starts:
                starts.add(start + 1)
                waiting.append(start + 1)
            for count in range(max(least, 1), min(len(step), len(ran) - place) + 1):
                if not _once_each(device, step, ran[place : place + count]):
                    possible[place + count].add(start + 1)
    if len(steps) in possible[-1]:
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
    if not due.lanes:
        return all(_equal(came, one) for came, one in zip(event.leaves, due.leaves, strict=True))
    axes = _batch_axes(event, due)
    # A vmap of whose lanes JAX knows that they are alike is not among those of the event.
    return any(
        all(
            _equal_lanes(came, one, due.lanes, dict(zip(vmaps, of_leaf, strict=True)))
            for came, one, of_leaf in zip(event.leaves, due.leaves, axes, strict=True)
        )
        for vmaps in itertools.combinations(range(due.lanes), len(axes[0]))
    )


def _batch_axes(event: Event, due: ExpectedCall) -> list[list[int | None]]:
    """For each leaf, and each vmap that the event knows of, the outermost first: the axis of its lanes, or None."""
    entries = [list(entry[1]["batch_dims"]) for entry in event.transforms if entry[0] == "batch"]
    if due.kind in TOLD:
        # A leaf without a value has none.
        padded = [[None] * (len(event.leaves) - len(dims)) + dims for dims in reversed(entries)]
        return [[dims[place] for dims in padded] for place in range(len(event.leaves))]
    # A function that is not told has all lanes in front, if it has them at all.
    further = [came.ndim - one.ndim + due.lanes for came, one in zip(event.leaves, due.leaves, strict=True)]
    most = max(0, *further)
    return [[0] * most if more == most else [None] * most for more in further]


def _equal_lanes(came: Any, due: Any, lanes: int, axis_of: dict[int, int | None]) -> bool:
    if due.dtype.names is not None or came.dtype != due.dtype:
        return bool(due.dtype == came.dtype)
    # The axes of the lanes go to the front, and those that are missing come to be.
    for vmap in range(lanes):
        axis = axis_of.get(vmap)
        if axis is None:
            came = np.expand_dims(came, vmap)
        elif vmap + axis < came.ndim:
            came = np.moveaxis(came, vmap + axis, vmap)
        else:
            return False
    if came.ndim != due.ndim or any(one not in (1, size) for one, size in zip(came.shape, due.shape, strict=True)):
        return False
    return bool(np.array_equal(np.broadcast_to(came, due.shape), due))


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
