"""The end of a program: the expected calls and results as literals, and the comparison, or the error that must come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pprint import pformat
from typing import Any

import numpy as np

from ..model.programs import Prediction
from ..model.worlds import ExpectedEvent, Need
from ..spec.callbacks import Callback, Refusal
from ..spec.data import DataKind
from .differences import differences, differences_in_rest
from .operands import Shown, expected_operand, text_of

WIDTH = 118


@dataclass(frozen=True)
class Expected:
    """What a program must do, as literals."""

    callback: Callback
    data: DataKind
    shown: Shown
    prediction: Prediction
    first_device: int
    """The id of the first device of the cell."""

    def call(self, event: ExpectedEvent) -> tuple[Any, ...]:
        callback = self.callback.at(event.site)
        call: tuple[Any, ...] = (event.site, expected_operand(callback, self.data, self.shown, event.leaves))
        if self.callback.parts:
            return call
        call = (*call, *event.transforms)
        return (*call, self.first_device + event.device) if callback.receives_device else call

    def lists(self) -> tuple[list[list[Any]], list[Any]]:
        """The calls that must run, of each device; and those that may run again, or need not run."""
        calls = [(event, self.call(event)) for event in self.prediction.events]
        repeated = [call for event, call in calls if event.need is not Need.ONCE]
        again = [call for number, call in enumerate(repeated) if call not in repeated[:number]]
        optional = [
            call for call in again if all(event.need is Need.ANY_NUMBER for event, other in calls if other == call)
        ]
        devices: dict[int, list[Any]] = {}
        for event, call in calls:
            # Unordered callbacks have no order on a device either.
            wanted = devices.setdefault(event.device if self.callback.ordered else 0, [])
            if call not in again or (call not in optional and call not in wanted):
                wanted.append(call)
        return [devices[device] for device in sorted(devices)], again

    def source(self) -> str:
        by_device, again = self.lists()
        results = [np.asarray(result, np.float32).tolist() for result in self.prediction.results]
        ordered = self.callback.ordered
        functions, sites = [text_of(differences), ""], "expected, calls"
        rest = ""
        if any(len(call) > 2 for wanted in by_device for call in wanted):
            functions += [text_of(differences_in_rest), ""]
            sites = "[[call[:2] for call in own] for own in expected], [call[:2] for call in calls]"
            rest = f" or differences_in_rest(expected, calls, {ordered})"
        lines = [
            *functions,
            f"expected = {_literal(by_device)}",
            f"wrong = differences({sites}, {_literal(again)}, {ordered}){rest}",
            f'wrong += [f"result: {{one}}, not {{right}}" for one, right in zip(results, {results}) if one != right]',
            'print("\\n".join(wrong) or "as expected")',
            "raise SystemExit(bool(wrong))",
        ]
        return "\n".join(lines)


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


def _literal(value: Any) -> str:
    return pformat(value, width=WIDTH, compact=True, sort_dicts=False)
