"""The journal of a run: what ran, on what, and what was concluded, so that a run that was killed can go on.

The first line says which run it is. Each conclusion is a line, written by the process that collects them. What the
other processes write (`Journal`) says which cells were in flight when the run ended.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...expectations.entries import Expectations
from ...oracle.verdicts import Outcome, Verdict
from ...reports.journal import lines_of
from ...spec.errors import CommandError
from ..conclusions import Conclusion

MOST_FLIGHTS = 3
"""A cell that was in flight as often as this when its run was killed does not run again: it may be what kills it."""


class ResumeError(CommandError):
    """A run that cannot go on."""


@dataclass(frozen=True)
class Past:
    """What earlier processes have found out about the cells of a run."""

    conclusions: Mapping[str, Conclusion] = field(default_factory=dict)
    flights: Mapping[str, int] = field(default_factory=dict)
    """How often each cell without a conclusion was in flight when its run ended."""
    firsts: Mapping[str, Outcome] = field(default_factory=dict)
    """The first outcome of each cell that was not expected, and had no second chance before the run ended."""
    run_info: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    process_starts: int = 0
    seconds: float = 0.0

    @property
    def given_up(self) -> dict[str, Conclusion]:
        """The cells that do not run again."""
        why = (
            "it was in flight {} times when the run was killed or its machine stopped, so it was not run again;"
            " --resume after the end of the run runs it"
        )
        return {
            cell: Conclusion(Outcome(Verdict.MISSING, reason=why.format(flights)), attempts=flights)
            for cell, flights in self.flights.items()
            if flights >= MOST_FLIGHTS
        }

    def with_earlier(self, cell_id: str, conclusion: Conclusion, expectations: Expectations) -> Conclusion:
        """A cell's conclusion together with its runs that ended without one."""
        first = self.firsts.get(cell_id)
        attempts = conclusion.attempts + self.flights.get(cell_id, 0) + (first is not None)
        outcome = conclusion.outcome
        if first and expectations.status(cell_id, outcome).acceptable:
            words = f"{first.label} before the run was killed, {outcome.label} when it went on: {first.reason}"
            outcome = replace(first, verdict=Verdict.FLAKE, signal=None, reason=words)
        return replace(conclusion, outcome=outcome, attempts=attempts)


def begin(path: Path, header: Mapping[str, Any], past: Past) -> None:
    """Begin a journal with what is known already, in place of the old one.

    The old one is never half replaced. Processes that a killed run has left write to the old file, which is gone.
    """
    lines: list[Mapping[str, Any]] = [
        {"event": "header", **header, "at": time.time(), "seconds": past.seconds, "starts": past.process_starts}
    ]
    lines += [{"event": "start", "topology": name, "run_info": info} for name, info in past.run_info.items()]
    lines += [{"event": "problem", "words": words} for words in past.problems]
    for cell in dict.fromkeys((*past.flights, *past.firsts)):
        first = past.firsts.get(cell)
        flights = past.flights.get(cell, 0)
        lines.append(
            {"event": "carried", "cell": cell, "flights": flights, "first": first.as_json() if first else None}
        )
    lines += [{"event": "concluded", "cell": cell, **of.as_json()} for cell, of in past.conclusions.items()]
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.replace(new, path)


def is_unfinished(path: Path) -> bool:
    """Whether this is the journal of a run that was killed after it had begun a cell."""
    found = {event["event"] for event in lines_of(path, "event")}
    return "header" in found and bool(found & {"begin", "carried", "concluded"}) and "finished" not in found


def past_of(path: Path, header: Mapping[str, Any], expectations: Expectations, cells: Sequence[str]) -> Past:
    """What the journal says about the cells of the run that this header describes."""
    read = [*lines_of(path, "event")]
    if not read:
        raise ResumeError(f"there is nothing to resume: {path.parent} has no {path.name}; leave --resume out")
    written = next((event for event in read if event["event"] == "header"), None)
    if written is None:
        raise ResumeError(f"{path} does not say which run it is of, so that no run can go on from it")
    _check(path, written, header)
    past = _past(read, written, path, expectations, repeated=header["options"]["repeat"] > 1)
    if any(event["event"] == "finished" for event in read):
        # Nothing was in flight at the end. What was given up has another try.
        past = replace(past, flights={})
        if all(cell in past.conclusions for cell in cells):
            raise ResumeError(f"there is nothing to resume: the run in {path.parent} has finished; leave --resume out")
    return past


def _past(
    read: Sequence[Mapping[str, Any]], header: Mapping[str, Any], path: Path, expectations: Expectations, repeated: bool
) -> Past:
    conclusions: dict[str, Conclusion] = {}
    flights: Counter[str] = Counter()
    firsts: dict[str, Outcome] = {}
    run_info: dict[str, Any] = {}
    problems: list[str] = []
    starts = int(header["starts"])
    for event in read:
        match event:
            case {"event": "begin", "cell": cell}:
                flights[cell] += 1
            case {"event": "end", "cell": cell, "outcome": outcome}:
                flights[cell] -= 1
                firsts.setdefault(cell, Outcome.from_json(outcome))
            case {"event": "carried", "cell": cell, "flights": number, "first": first}:
                flights[cell] += number
                if first:
                    firsts[cell] = Outcome.from_json(first)
            case {"event": "concluded", "cell": cell}:
                conclusions[cell] = Conclusion.from_json({**event})
            case {"event": "start", "topology": topology, "run_info": info}:
                run_info.setdefault(topology, info)
                starts += 1
            case {"event": "problem", "words": words}:
                problems.append(words)
    for cell, first in firsts.items():
        # One run is no conclusion if several were asked for, nor if it must have a second chance.
        if not repeated and cell not in conclusions and expectations.status(cell, first).acceptable:
            conclusions[cell] = Conclusion(first, attempts=1 + max(0, flights[cell]))
    # An error of the suite shows nothing about a cell.
    conclusions = {cell: one for cell, one in conclusions.items() if one.outcome.verdict is not Verdict.HARNESS_ERROR}
    open_cells = {cell: number for cell, number in flights.items() if number > 0 and cell not in conclusions}
    return Past(
        conclusions,
        open_cells,
        {} if repeated else {cell: first for cell, first in firsts.items() if cell not in conclusions},
        run_info,
        tuple(problems),
        starts,
        float(header["seconds"]) + max(0.0, path.stat().st_mtime - float(header["at"])),
    )


_WORDS = {
    "selection": "with other cells",
    "shard": "as another shard",
    "versions": "with other versions",
    "options": "with other options",
    "expectations": "with other known failures",
}


def _check(path: Path, written: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    for key, words in _WORDS.items():
        before, now = written.get(key), header[key]
        if before != now:
            details = f": {difference(before, now)}" if isinstance(before, dict) and isinstance(now, dict) else ""
            raise ResumeError(
                f"the run in {path.parent} was begun {words}{details}. Give the same options to --resume, or leave it"
                " out to begin again"
            )


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    return ", ".join(f"{name} was {before.get(name)}, and is {now.get(name)}" for name in names)
