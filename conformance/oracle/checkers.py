"""Checks of histories. They compare expected with recorded events, for any implementation.

Each checker returns the anomalies that it finds, the clearest first. An anomaly names the smallest
evidence. The number of a recorded event is the number of its expected event: `#7` is the seventh
event that the program must produce on that device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model.worlds import ExpectedEvent, Need
from .batch_axes import has_other_axes, in_order
from .history import Event, History
from .verdicts import Stage

NARROWER_THAN_A_BYTE = frozenset({"int2", "uint2", "int4", "uint4", "float4_e2m1fn"})

LONGEST_SHOWN = 600
"""A witness shows only so many characters of an operand."""


@dataclass(frozen=True)
class Anomaly:
    kind: str
    stage: Stage
    witness: str
    evidence: tuple[tuple[int, int], ...] = ()
    """The recorded events that the witness numbers: the sequence of each, and its number in the witness."""
    cause: str = ""
    """For an unsupported program: what `Outcome.cause` says."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.witness}"


@dataclass(frozen=True)
class Matching:
    """The expected event of each recorded event."""

    expected: tuple[ExpectedEvent, ...]
    keys: tuple[tuple[Any, ...], ...]
    """What each expected event is equal by: the process, the site and the operand."""
    numbers: dict[int, int]
    """Number of each expected event on its device, by its position in `expected`."""
    pairs: tuple[tuple[int, Event], ...]
    """Position in `expected` and the recorded event, in recorded order."""
    lost: tuple[int, ...]
    surplus: tuple[Event, ...]
    unplaced: frozenset[int] = frozenset()
    """Positions of expected events that are equal to an event of another device."""
    several: bool = False
    """Whether the events are of several processes."""
    misread: frozenset[int] = frozenset()
    """Sequences of recorded events whose `transforms` do not describe their operand."""

    def placed(self) -> Iterator[tuple[int, Event]]:
        """The pairs with a known device; checks of the order on a device use only these."""
        return (pair for pair in self.pairs if pair[1].device is not None or pair[0] not in self.unplaced)

    def name(self, position: int) -> str:
        event = self.expected[position]
        return f"#{self.numbers[position]} ({event.site} {_show(event.leaves)})"

    def numbered(self, *events: tuple[int, Event]) -> tuple[tuple[int, int], ...]:
        """The evidence of a witness that names these expected and recorded events."""
        return tuple((event.sequence, self.numbers[position]) for position, event in events)

    def place(self, device_name: str, position: int) -> str:
        """The device of an expected event."""
        event = self.expected[position]
        return f"{device_name}:{event.device}{self.in_process(event)}"

    def in_process(self, event: Event | ExpectedEvent) -> str:
        """A text of the event's process, if there are several."""
        return f" in process {event.process}" if self.several else ""


def _show(leaves: Sequence[npt.NDArray[Any]]) -> str:
    shown = [f"{leaf.dtype}{list(leaf.shape)} {leaf.tolist()}" for leaf in leaves]
    text = shown[0] if len(shown) == 1 else "(" + ", ".join(shown) + ")"
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + " ..."


def content(leaf: npt.NDArray[Any]) -> tuple[Any, ...]:
    """What equal arrays have in common: type, shape, and each element with the sign of a zero."""
    # An element of less than a byte does not use all bits of its byte; the others may have any value.
    # Only types that NumPy itself does not have are so; the name of a type takes longer than all else here.
    narrow = leaf.dtype.kind == "V" and leaf.dtype.name in NARROWER_THAN_A_BYTE
    return leaf.dtype, leaf.shape, (leaf.astype(np.float32) if narrow else leaf).tobytes()


def _key(site: str, leaves: Sequence[npt.NDArray[Any]]) -> tuple[Any, ...]:
    return (site, *map(content, leaves))


def _key_of(event: Event | ExpectedEvent) -> tuple[Any, ...]:
    """Events are equal if their sites and operands are; those of two processes are different events."""
    return event.process, *_key(event.site, event.leaves)


_REPEATABLE = (Need.AT_LEAST_ONCE, Need.ANY_NUMBER)


def match(expected: Sequence[ExpectedEvent], events: Sequence[Event]) -> Matching:
    """Pair recorded with expected events by site and operand, its axes in the order of the model.

    Several expected events may be equal: a rematerialised callback sees the same value again. Recorded
    events then take them in program order, on the recorded device if the callback received one. If the
    callback may run any number of times, all equal recorded events belong to one expected event.
    """
    numbers: dict[int, int] = {}
    counts: dict[int, int] = defaultdict(int)
    waiting: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    keys = tuple(map(_key_of, expected))
    for position, (event, key) in enumerate(zip(expected, keys, strict=True)):
        counts[event.device] += 1
        numbers[position] = counts[event.device]
        waiting[key].append(position)
    expected_keys, unplaced = {*waiting}, _unplaced(expected, waiting.values())
    repeatable = {keys[position]: position for position, event in enumerate(expected) if event.need in _REPEATABLE}

    pairs: list[tuple[int, Event]] = []
    surplus: list[Event] = []
    misread: set[int] = set()
    for as_received in events:
        recorded = in_order(as_received, expected)
        key = _key_of(recorded)
        if key in repeatable:
            # One run is enough for all equal evaluations.
            waiting[key].clear()
            pairs.append((repeatable[key], recorded))
            continue
        candidates = waiting.get(key, [])
        if not candidates and key not in expected_keys:
            candidates = _misread_candidates(expected, waiting, as_received)
            if candidates:
                recorded = as_received
                misread.add(as_received.sequence)
        if not candidates:
            surplus.append(recorded)
            continue
        same_device = [p for p in candidates if expected[p].device == recorded.device]
        position = (same_device or candidates)[0]
        candidates.remove(position)
        pairs.append((position, recorded))
    lost = sorted(
        position
        for candidates in waiting.values()
        for position in candidates
        if expected[position].need is not Need.ANY_NUMBER
    )
    several = any(one.process for one in expected) or any(one.process for one in events)
    found = (tuple(pairs), tuple(lost), tuple(surplus))
    return Matching(tuple(expected), keys, numbers, *found, unplaced, several, frozenset(misread))


def _misread_candidates(
    expected: Sequence[ExpectedEvent], waiting: Mapping[tuple[Any, ...], list[int]], recorded: Event
) -> list[int]:
    """The expected events with the same operand but for the order of its axes, which `transforms` should say."""
    return next(
        (
            candidates
            for candidates in waiting.values()
            if candidates
            and expected[candidates[0]].transforms
            and (recorded.site, recorded.process) == (expected[candidates[0]].site, expected[candidates[0]].process)
            and has_other_axes(recorded, expected[candidates[0]].leaves)
        ),
        [],
    )


def _unplaced(expected: Sequence[ExpectedEvent], alike: Iterable[Sequence[int]]) -> frozenset[int]:
    """The positions of events that are equal on several devices, since their element type has few values."""
    several = (positions for positions in alike if len({expected[p].device for p in positions}) > 1)
    return frozenset(position for positions in several for position in positions)


def check_multiplicity(matching: Matching, device_name: str) -> list[Anomaly]:
    """Every expected event occurs as often as needed, and no other event: lost, duplicate, wrong, stale operands."""
    lost = list(matching.lost)
    known = {*matching.keys}
    anywhere = {key[1:]: key[0] for key in matching.keys}

    def judged(event: Event) -> tuple[str, str, tuple[tuple[int, int], ...]]:
        key = _key_of(event)
        shown = f"{event.site} {_show(event.leaves)}"
        duplicate = key in known
        if not duplicate and key[1:] in anywhere:
            whose = f"a callback of process {anywhere[key[1:]]}"
            return "wrong process", f"process {event.process} ran {shown}, {whose}", ()
        missing = next((p for p in lost if _may_stand_for(event, matching.expected[p])), None)
        if missing is not None:
            lost.remove(missing)
            whose = ", the operand of another callback," if duplicate else ""
            ran = f"{matching.place(device_name, missing)} ran {shown}{whose}"
            kind = "stale operand" if duplicate else "wrong operand"
            numbered = matching.numbered((missing, event))
            return kind, f"{ran} where {matching.name(missing)} was expected", numbered
        if duplicate:
            return "duplicate", f"{shown} ran once too often{matching.in_process(event)}", ()
        return "unexpected", f"{shown} ran{matching.in_process(event)}; no such callback is expected", ()

    found = [*map(judged, matching.surplus)]
    found += [("lost", f"{matching.place(device_name, one)} never ran {matching.name(one)}", ()) for one in lost]
    return [Anomaly(kind, Stage.CALLBACK, witness, evidence) for kind, witness, evidence in found]


def _may_stand_for(event: Event, expected: ExpectedEvent) -> bool:
    same_place = event.process == expected.process and event.device in (None, expected.device)
    return same_place and event.site == expected.site


def _neighbours(matching: Matching) -> Iterator[tuple[tuple[int, Event], tuple[int, Event]]]:
    """Each event with the one before it on its device."""
    last: dict[int, tuple[int, Event]] = {}
    for position, event in matching.placed():
        device = matching.expected[position].device
        if device in last:
            yield last[device], (position, event)
        last[device] = position, event


def check_order(matching: Matching, device_name: str) -> list[Anomaly]:
    """On each device the events are in program order; the witness is two consecutive events."""
    anomalies = []
    for (previous, before), (position, event) in _neighbours(matching):
        if previous > position:
            ran = f"{matching.place(device_name, position)} ran {matching.name(previous)}"
            evidence = matching.numbered((previous, before), (position, event))
            witness = f"{ran} before {matching.name(position)}"
            anomalies.append(Anomaly("order", Stage.CALLBACK, witness, evidence))
    return anomalies


def check_devices(matching: Matching, device_name: str) -> list[Anomaly]:
    """A callback that receives its device gets the right device."""
    return [
        Anomaly(
            "wrong device",
            Stage.CALLBACK,
            f"{matching.name(position)} ran on {device_name}:{event.device},"
            f" expected {matching.place(device_name, position)}",
            matching.numbered((position, event)),
        )
        for position, event in matching.pairs
        if event.device is not None and event.device != matching.expected[position].device
    ]


def check_transforms(matching: Matching) -> list[Anomaly]:
    anomalies = []
    for position, event in matching.pairs:
        wanted = matching.expected[position].transforms
        if event.sequence in matching.misread:
            why = f"which are not the axes of its operand {_show(event.leaves)}"
        elif event.transforms != wanted:
            why = f"expected {wanted!r}, each axis moved to the front"
        else:
            continue
        witness = f"{matching.name(position)} received {event.transforms!r}, {why}"
        anomalies.append(Anomaly("wrong transforms", Stage.CALLBACK, witness, matching.numbered((position, event))))
    return anomalies


def check_overlap(matching: Matching, device_name: str) -> list[Anomaly]:
    """Callbacks of one device run one after another, on any threads."""
    anomalies = []
    for (previous, before), (position, event) in _neighbours(matching):
        if event.begin < before.end:
            began = f"{matching.place(device_name, position)} began {matching.name(position)}"
            witness = f"{began} while {matching.name(previous)} was running"
            evidence = matching.numbered((position, event), (previous, before))
            anomalies.append(Anomaly("overlap", Stage.CALLBACK, witness, evidence))
    return anomalies


def check_ownership(history: History) -> list[Anomaly]:
    """The operand of a callback never changes afterwards."""
    torn = (
        f"{event.site} was given {_show(event.leaves)}, which later became {_show(event.kept)}"
        for event in history.events
        if event.kept and _key(event.site, event.kept) != _key(event.site, event.leaves)
    )
    return [Anomaly("torn operand", Stage.CALLBACK, witness) for witness in torn]


def check_barrier(history: History) -> list[Anomaly]:
    """When the barrier returns, every callback has returned."""
    returned = history.barrier_returned
    if returned is None:
        return []
    late = (
        f"{event.site} {_show(event.leaves)} ended {(event.end - returned) / 1e6:.3f} ms after the barrier had returned"
        for event in history.events
        if event.end > returned
    )
    return [Anomaly("early barrier", Stage.BARRIER, witness) for witness in late]


def check_results(
    expected: Sequence[npt.NDArray[Any]], results: Sequence[npt.NDArray[Any]], where: str = ""
) -> list[Anomaly]:
    """The results are exactly equal: the programs' numbers are exact in float32."""
    if len(expected) != len(results):
        return [Anomaly("result", Stage.RESULT, f"{len(results)} results{where}, not {len(expected)}")]
    anomalies = []
    for run, (wanted, result) in enumerate(zip(expected, results, strict=True)):
        exact, actual = np.asarray(wanted, dtype=np.float32), np.asarray(result)
        if content(exact) != content(actual):
            witness = f"run {run}{where} gave {_show([actual])}, expected {_show([exact])}"
            anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies


def check_events(matching: Matching, history: History, device_name: str, ordered: bool) -> list[Anomaly]:
    """All checks of the callbacks of a finished program, the clearest anomaly first."""
    return [
        *check_multiplicity(matching, device_name),
        *check_devices(matching, device_name),
        *(check_order(matching, device_name) if ordered else ()),
        *check_transforms(matching),
        *(check_overlap(matching, device_name) if ordered else ()),
        *check_ownership(history),
    ]


def judge(
    expected: Sequence[ExpectedEvent],
    expected_results: Sequence[npt.NDArray[Any]],
    history: History,
    results: Sequence[npt.NDArray[Any]],
    device_name: str,
    ordered: bool = True,
) -> list[Anomaly]:
    """All checks of a finished program, the clearest anomaly first."""
    return [
        *check_events(match(expected, history.events), history, device_name, ordered),
        *check_barrier(history),
        *check_results(expected_results, results),
    ]
