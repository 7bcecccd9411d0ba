"""The results of a run, which become its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..expectations.entries import Expectation, Expectations
from ..oracle.repetition import Repetition
from ..oracle.verdicts import ExpectationStatus, Outcome, Verdict
from ..planning.cells import Cell, Ineligible
from ..spec.depths import Depth
from ..spec.package import COMMAND
from ..spec.platforms import platform_named
from .files import write_results
from .on_cpu import known_on_cpu
from .provenance import Provenance, without_home
from .results import AS_EXPECTED_AT, NOTHING_RAN, SCHEMA_VERSION, RunRecord, judged, record_of
from .terminal import summary


@dataclass
class Report:
    platform: str
    expectations: Expectations
    cells: list[dict[str, Any]] = field(default_factory=list)
    """As the JSON has them."""
    ineligible: Sequence[Ineligible] = ()
    lacking: Sequence[Cell] = ()
    """Those of the ineligible cells that the plan has and this release lacks."""
    run_info: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """The problems of the run as a whole."""
    seconds: float = 0.0
    process_starts: int = 0
    stale_expectations: Sequence[str] = ()
    """Globs of the expectation file that match no planned cell."""
    claims: Sequence[str] = ()
    """The capabilities that the platform's vendor claims."""
    whole: bool = False
    """Whether all cells of the platform were asked for: then each claim must have been tested."""
    depth: Depth = Depth.RUN
    depth_asked: bool = True
    """Whether the user has named the depth."""
    gaps: Sequence[str] = ()
    """Those of the problems that only say why cells did not run."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields: what the run was made of, and of which selection it is a part."""
    provenance: Provenance | None = None
    """How the run was made; None where nobody will want to judge its results again."""

    def add(
        self,
        cell: Cell,
        outcome: Outcome,
        attempts: int = 1,
        preceding_cells: tuple[str, ...] = (),
        repetition: Repetition | None = None,
    ) -> None:
        """Take the outcome of a cell; before a flake, other cells have run in the process in which it failed."""
        entry, status = self.expectations.of(cell.id), self.expectations.status(cell.id, outcome)
        wrong = status in (ExpectationStatus.UNEXPECTED_PASS, ExpectationStatus.CHANGED_FAILURE)
        on_cpu = known_on_cpu(cell.id, outcome) if status is ExpectationStatus.UNEXPECTED else None
        options = " -n 1" if preceding_cells else ""
        options += f" --repeat {repetition.runs}" if repetition else ""
        options += platform_named(cell.topology.platform).option
        named = " ".join(f"--cell {each}" for each in (*preceding_cells, cell.id))
        data = {
            "id": cell.id,
            "promises": list(cell.promises),
            **outcome.as_json(),
            "verdict": outcome.label,
            "status": status.value,
            "expected": entry.verdict if entry else Verdict.PASS.value,
            "known": _known(entry) if entry else None,
            "attempts": attempts,
            "reproduce": f"{COMMAND} run{options} {named}",
        }
        if entry and wrong:
            data["entry"] = without_home(entry.place_of(cell.id))
        if on_cpu:
            data["on_cpu"] = _known(on_cpu) | {"verdict": on_cpu.verdict}
        if preceding_cells:
            data["preceding_cells"] = list(preceding_cells)
        if repetition:
            data["repeated"] = repetition.as_json()
        self.cells.append(data)

    @property
    def exit_code(self) -> int:
        """That of the record. 3 and 4 say as much as 0, of a run in which nothing ran, because nothing was there."""
        return record_of(self._results()).exit_code or (0 if self.depth_asked else AS_EXPECTED_AT[self.depth])

    @property
    def left(self) -> int:
        """The number of cells that did not run because the run ended early."""
        return sum(cell["verdict"] == Verdict.MISSING.value for cell in self.cells) if self.gaps else 0

    def conclude(self) -> None:
        """After the last cell: a claim that a whole run on the hardware has not tested is a problem."""
        if self.whole and self.cells and self.depth is Depth.RUN:
            self.problems += [claim.sentence for claim in record_of(self._results()).claims if not claim.cells]

    def _results(self) -> dict[str, Any]:
        """What the JSON has of the cells, and of the run as a whole."""
        return {
            "schema": SCHEMA_VERSION,
            "platform": self.platform,
            "depth": self.depth.value,
            **self.fields,
            "run_info": self.run_info,
            "seconds": round(self.seconds, 1),
            "process_starts": self.process_starts,
            "problems": self.problems,
            "claims": [{"name": claim} for claim in self.claims],
            "gaps": list(self.gaps),
            "stale_expectations": list(self.stale_expectations),
            "cells": self.cells,
            "ineligible": [{"id": cell.id, "reason": cell.reason} for cell in self.ineligible],
        }

    def as_json(self) -> dict[str, Any]:
        made = {"run": self.provenance.as_json([cell["id"] for cell in self.cells])} if self.provenance else {}
        return judged(self._results()) | {"exit_code": self.exit_code} | made

    def write(self, path: Path) -> None:
        write_results(path, self.as_json())

    @property
    def record(self) -> RunRecord:
        """The run as a reader of its JSON has it."""
        return record_of(self.as_json())

    def summary(self, *, page: Path | None = None, go_on: str = "", known: bool = False, colour: bool = False) -> str:
        """What the terminal shows at the end; `go_on` is the command that runs the cells that did not run."""
        left_out = Counter(cell.lacking for cell in self.lacking)
        notes = [f"LEFT OUT: {count} cell{'s' * (count > 1)}: {reason}" for reason, count in left_out.items()]
        run = self.record
        if run.of_shard and not self.cells:
            notes.append("This shard has no cell: there are more shards than cells.")
        if run.exit_code == NOTHING_RAN:
            notes.append("ERROR: no cell was executed, so nothing is known.")
        return summary(run, notes, page=page, go_on=go_on, known=known, colour=colour)


def _known(entry: Expectation) -> dict[str, Any]:
    return {"reason": entry.reason.strip(), "link": entry.link, "intermittent": entry.intermittent}
