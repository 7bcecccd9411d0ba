"""The source that compares a program's calls and results with the expected ones, which are literals.

It names the same kinds of anomalies as `oracle.checkers`, in the same order, and finds most of them in a few lines.
The kinds in `ON_REQUEST` need more lines, and nearly no program shows them: they are checked on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.programs import Prediction
from ..model.worlds import ExpectedEvent, Need
from ..spec.callbacks import Callback, Refusal
from ..spec.data import DataKind
from .layout import WIDTH
from .operands import Shown, expected_operand

ON_REQUEST = ("overlap", "torn operand", "early barrier")

LATEST_SECONDS = 0.5
"""A missing callback that still runs in this time after the barrier is late, and not lost."""


@dataclass(frozen=True)
class Expected:
    """What a program must do, as literals."""

    callback: Callback
    data: DataKind
    shown: Shown
    prediction: Prediction
    first_device: int
    """The id of the first device of the cell."""

    @property
    def receives_transforms(self) -> bool:
        """Whether a call of this program receives a transform."""
        return any(event.transforms for event in self.prediction.events)

    def call(self, event: ExpectedEvent) -> tuple[Any, ...]:
        callback = self.callback.at(event.site)
        call: tuple[Any, ...] = (event.site, expected_operand(callback, self.data, self.shown, event.leaves))
        if self.callback.parts:
            return call
        if callback.function == "id_print":
            entries = [(name, entry) if entry else name for name, entry in event.transforms]
            return (*call, f"transforms: {entries} ") if entries else call
        call = (*call, *event.transforms)
        return (*call, self.first_device + event.device) if callback.receives_device else call

    def lists(self) -> tuple[list[list[Any]], list[Any], list[Any]]:
        """The calls that must run, of each device; those that may run again; those that need not run."""
        calls = [(event, self.call(event)) for event in self.prediction.events]
        again = _different([call for event, call in calls if event.need is not Need.ONCE])
        optional = [
            call for call in again if all(event.need is Need.ANY_NUMBER for event, other in calls if other == call)
        ]
        devices: dict[int, list[Any]] = {}
        for event, call in calls:
            # Unordered callbacks have no order on a device either.
            expected = devices.setdefault(event.device if self.callback.ordered else 0, [])
            if call not in again or (call not in optional and call not in expected):
                expected.append(call)
        return [devices[device] for device in sorted(devices)], again, optional

    def source(self, checks: Sequence[str]) -> str:
        by_device, again, optional = self.lists()
        results = [np.asarray(result, np.float32).tolist() for result in self.prediction.results]
        receives_device = self.callback.receives_device and not self.callback.parts
        lines: list[str] = []
        if len(by_device) > 1 or "overlap" in checks:
            lines += ["on_device = " + _nested(by_device), "expected = sum(on_device, [])"]
        else:
            lines.append("expected = " + _list(by_device[0] if by_device else []))
        if optional:
            lines.append("optional = " + _list(optional))
        lines += self._multiplicity(again, optional, receives_device or self.receives_transforms)
        if receives_device:
            lines.append(_differ("wrong device", "(*call[:2], call[-1])"))
        if self.callback.ordered:
            lines += self._order(by_device, receives_device or self.receives_transforms)
        if self.receives_transforms:
            lines.append(_differ("wrong transforms", "call"))
        lines += [CHECKS[check] for check in ON_REQUEST if check in checks]
        lines += [
            'wrong += [f"result: {result}, not {wanted}" '
            f"for result, wanted in zip(results, {results}) if result != wanted]",
            'print("\\n".join(wrong) or "as expected")',
            "raise SystemExit(bool(wrong))",
        ]
        return "\n".join(lines)

    def _multiplicity(self, again: Sequence[Any], optional: Sequence[Any], further: bool) -> list[str]:
        lines = []
        if further:
            lines.append("wanted, ran = ([call[:2] for call in each] for each in (expected, calls))")
        wanted, ran = ("wanted", "ran") if further else ("expected", "calls")
        lines += [f"lost, surplus = [*{wanted}], []", f"for call in {ran}:"]
        if not again:
            lines.append("    lost.remove(call) if call in lost else surplus.append(call)")
        else:
            repeatable = f"{wanted} + optional" if optional else wanted
            if len(again) < len(_different([self.call(event) for event in self.prediction.events])):
                lines.insert(0, "repeatable = " + _list(again))
                repeatable = "repeatable"
            lines += [
                "    if call in lost:",
                "        lost.remove(call)",
                f"    elif call not in {repeatable}:",
                "        surplus.append(call)",
            ]
        return [
            *lines,
            'kinds = [["unexpected", "duplicate"], ["wrong operand", "stale operand"]]',
            f'wrong = [f"{{kinds[call[0] in dict(lost)][call in {wanted}]}}: {{call}}" for call in surplus]',
            'wrong += [f"lost: {call}" for call in lost]',
        ]

    def _order(self, by_device: Sequence[Sequence[Any]], further: bool) -> list[str]:
        found = '[f"order: {call} when {wanted} was next" for call, wanted in {pairs} if call != wanted][:1]'
        if len(by_device) <= 1:
            pairs = "zip(ran, wanted)" if further else "zip(calls, expected)"
            return ["wrong = wrong or " + found.replace("{pairs}", pairs)]
        lines = ["for own in on_device * (not wrong):"]
        if further and not self.callback.receives_device:
            lines.append("    own = [call[:2] for call in own]")
        everything = [call for calls in by_device for call in _different(calls)]
        if any(everything.count(call) > 1 for call in everything):
            # Calls that are equal on several devices cannot be distinguished.
            lines.append("    own = [call for call in own if sum(call in other for other in on_device) == 1]")
        calls = "ran" if further and not self.callback.receives_device else "calls"
        return [
            *lines,
            "    wrong += " + found.replace("{pairs}", f"zip([call for call in {calls} if call in own], own)"),
        ]


CHECKS: Mapping[str, str] = {
    "overlap": """\
for own in on_device:
    spans_of_own = sorted((span for span in spans if span[2] in own), key=lambda span: span[0])
    wrong += [f"overlap: {after[2]} began during {before[2]}"
              for before, after in zip(spans_of_own, spans_of_own[1:]) if after[0] < before[1]]""",
    "torn operand": """\
wrong += [f"torn operand: {copy}, which later became {kept}" for kept, copy in operands
          if any(np.asarray(one).tobytes() != other.tobytes() for one, other in zip(kept, copy))]""",
    "early barrier": 'wrong += [f"early barrier: {call} ran after the barrier" for call in calls[at_barrier:]]',
}
"""The source of the checks on request; the host function has recorded what they read."""


def refusal_source(callback: Callback, refusals: Mapping[str, Refusal], run: Sequence[str]) -> str:
    """The source that runs a program which must be refused; `run` are the lines that run it."""
    errors = sorted({error.__name__ for refusal in refusals.values() for error in refusal.errors})
    words = tuple(dict.fromkeys(word for refusal in refusals.values() for word in refusal.words))
    what = " and ".join(refusals)
    indented = "\n".join(f"    {line}" for line in run)
    return f"""\
try:
{indented}
except ({", ".join(errors)},) as error:
    if not any(word in str(error) for word in {words}):
        raise SystemExit(f"refusal without a way out: it names none of {words}: {{error}}")
    print(f"as expected, {what} is refused: {{error}}")
    raise SystemExit(0)
except Exception as error:
    raise SystemExit(f"wrong refusal: {what} must be refused with {" or ".join(errors)}: {{error!r}}")
raise SystemExit("not refused: the program ran, and {what} must be refused")"""


def _different(calls: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for call in calls:
        if call not in found:
            found.append(call)
    return found


def _differ(kind: str, part: str) -> str:
    """The lines that find a difference between what the calls received, in any order."""
    return f"""\
received = [sorted(repr({part}) for call in each) for each in (expected, calls)]
if not wrong and received[0] != received[1]:
    wrong.append(f"{kind}: {{calls}}, not {{expected}}")"""


def _list(items: Sequence[Any], indent: str = "    ") -> str:
    """A literal list, filled up to the width of a line."""
    whole = f"[{', '.join(map(repr, items))}]"
    if len(whole) + len(indent) <= WIDTH:
        return whole
    lines = [""]
    for item in items:
        text = f"{item!r}, "
        if lines[-1] and len(indent) + len(lines[-1]) + len(text) > WIDTH:
            lines.append("")
        lines[-1] += text
    return "[\n" + "".join(f"{indent}{line.rstrip()}\n" for line in lines) + indent[4:] + "]"


def _nested(lists: Sequence[Sequence[Any]]) -> str:
    return "[\n" + "".join(f"    {_list(each, ' ' * 8)},\n" for each in lists) + "]"
