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
from .capabilities import Claim, Observed, Result, judged_claims, observed
from .exit_codes import AS_EXPECTED_AT, NOTHING_RAN, exit_code
from .files import write_results
from .on_cpu import known_on_cpu
from .provenance import Provenance, without_home
from .results import SCHEMA_VERSION, RunRecord, record_of
from .terminal import summary


@dataclass(frozen=True)
class CellResult:
    cell: Cell
    outcome: Outcome
    status: ExpectationStatus
    expected: str
    """The verdict that was expected, as `Outcome.label` writes it."""
    attempts: int = 1
    preceding_cells: tuple[str, ...] = ()
    """For a flake: the cells that ran before it in the process in which it failed."""
    entry: Expectation | None = None
    """The expectation for the cell, if there is one, even if the cell did not fail in that way."""
    repetition: Repetition | None = None
    """What several runs of the cell have shown, if several were asked for."""

    @property
    def on_cpu(self) -> Expectation | None:
        """For a failure without an entry: the known failure of JAX's CPU that it is."""
        return known_on_cpu(self.cell.id, self.outcome) if self.status is ExpectationStatus.UNEXPECTED else None

    @property
    def wrong_entry(self) -> str:
        """Where the entry is that does not expect what the cell does."""
        wrong = (ExpectationStatus.UNEXPECTED_PASS, ExpectationStatus.CHANGED_FAILURE)
        return without_home(self.entry.place_of(self.cell.id)) if self.entry and self.status in wrong else ""

    @property
    def reproduce(self) -> str:
        cells = (*self.preceding_cells, self.cell.id)
        options = " -n 1" if self.preceding_cells else ""
        options += f" --repeat {self.repetition.runs}" if self.repetition else ""
        options += platform_named(self.cell.topology.platform).option
        return f"{COMMAND} run{options} " + " ".join(f"--cell {c}" for c in cells)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.cell.id,
            "promises": list(self.cell.promises),
            **self.outcome.as_json(),
            "verdict": self.outcome.label,
            "status": self.status.value,
            "expected": self.expected,
            "known": _known(self.entry) if self.entry else None,
            **({"entry": wrong} if (wrong := self.wrong_entry) else {}),
            **({"on_cpu": _known(on_cpu) | {"verdict": on_cpu.verdict}} if (on_cpu := self.on_cpu) else {}),
            "attempts": self.attempts,
            **({"preceding_cells": list(self.preceding_cells)} if self.preceding_cells else {}),
            "reproduce": self.reproduce,
            **({"repeated": self.repetition.as_json()} if self.repetition else {}),
        }


@dataclass
class Report:
    platform: str
    expectations: Expectations
    results: list[CellResult] = field(default_factory=list)
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
    empty_shard: bool = False
    """Whether there is nothing to run, because the other shards have all cells."""
    provenance: Provenance | None = None
    """How the run was made; None where nobody will want to judge its results again."""

    def add(
        self,
        cell: Cell,
        outcome: Outcome,
        attempts: int = 1,
        preceding_cells: tuple[str, ...] = (),
        repetition: Repetition | None = None,
    ) -> CellResult:
        entry = self.expectations.of(cell.id)
        status = self.expectations.status(cell.id, outcome)
        expected = entry.verdict if entry else Verdict.PASS.value
        result = CellResult(cell, outcome, status, expected, attempts, preceding_cells, entry, repetition)
        self.results.append(result)
        return result

    @property
    def exit_code(self) -> int:
        """0 if all results are as expected, 1 if any is not, 2 if no cell was executed.

        3 and 4 say as much as 0, of a run in which nothing ran, because there was nothing on which to run.
        """
        code = exit_code(
            [(result.outcome.label, result.status) for result in self.results],
            problem=bool(self.problems) or any(claim.failed for claim in self.judged_claims),
            empty_shard=self.empty_shard,
        )
        return code or (0 if self.depth_asked else AS_EXPECTED_AT[self.depth])

    @property
    def left(self) -> int:
        """The number of cells that did not run because the run ended early."""
        return sum(one.outcome.verdict is Verdict.MISSING for one in self.results) if self.gaps else 0

    @property
    def capabilities(self) -> tuple[Observed, ...]:
        outcomes = [(result.cell.id, result.outcome) for result in self.results]
        return observed(Result(cell, one.label, one.refused or one.shown == "refused") for cell, one in outcomes)

    @property
    def judged_claims(self) -> tuple[Claim, ...]:
        return judged_claims(self.claims, self.capabilities) if self.claims else ()

    def conclude(self) -> None:
        """After the last cell: a claim that a whole run on the hardware has not tested is a problem."""
        if self.whole and any(result.cell.topology.depth is Depth.RUN for result in self.results):
            self.problems += [claim.sentence for claim in self.judged_claims if not claim.cells]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "platform": self.platform,
            "depth": self.depth.value,
            **self.fields,
            "run_info": self.run_info,
            "seconds": round(self.seconds, 1),
            "process_starts": self.process_starts,
            "exit_code": self.exit_code,
            **({"run": self.provenance.as_json([r.cell.id for r in self.results])} if self.provenance else {}),
            "problems": self.problems,
            "capabilities": [row.as_json() for row in self.capabilities if row.cells],
            "claims": [claim.as_json() for claim in self.judged_claims],
            "gaps": list(self.gaps),
            "stale_expectations": list(self.stale_expectations),
            "cells": [result.as_json() for result in self.results],
            "ineligible": [{"id": cell.id, "reason": cell.reason} for cell in self.ineligible],
        }

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
        if self.empty_shard:
            notes.append("This shard has no cell: there are more shards than cells.")
        if self.exit_code == NOTHING_RAN:
            notes.append("ERROR: no cell was executed, so nothing is known.")
        return summary(self.record, notes, page=page, go_on=go_on, known=known, colour=colour)


def _known(entry: Expectation) -> dict[str, Any]:
    return {"reason": entry.reason.strip(), "link": entry.link, "intermittent": entry.intermittent}
