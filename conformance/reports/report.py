"""The results of a run: the JSON of every cell, and the printed summary."""

from __future__ import annotations

import shlex
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
from .causes import by_cause, in_words
from .exit_codes import AS_EXPECTED_AT, NOTHING_RAN, exit_code
from .provenance import Provenance
from .results import SCHEMA_VERSION, unexpected_in_words, write_results

MOST_SHOWN = 100
"""The summary shows at most this many unexpected results."""


@dataclass(frozen=True)
class CellResult:
    cell: Cell
    outcome: Outcome
    standing: ExpectationStatus
    expected: str
    """The verdict that was expected, as `Outcome.label` writes it."""
    attempts: int = 1
    preceding_cells: tuple[str, ...] = ()
    """For a flake: the cells that ran before it in the process in which it failed."""
    entry: Expectation | None = None
    """The expectation for the cell, if there is one, even if the cell did not fail in that way."""
    repetition: Repetition | None = None
    """What several runs of the cell have shown, if several were asked for."""
    stress: bool = False

    @property
    def cause(self) -> str:
        """The platform's words for an unexpected refusal of the program, which other cells may share; else empty."""
        return "" if self.standing.acceptable else self.outcome.cause

    @property
    def reproduce(self) -> str:
        cells = (*self.preceding_cells, self.cell.id)
        options = " -n 1" if self.preceding_cells else ""
        options += f" --repeat {self.repetition.runs}" if self.repetition else ""
        options += " --stress" if self.stress else ""
        if file := platform_named(self.cell.topology.platform).file:
            options += f" --platform {shlex.quote(str(file))}"
        return f"{COMMAND} run{options} " + " ".join(f"--cell {c}" for c in cells)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.cell.id,
            "promises": list(self.cell.promises),
            **self.outcome.as_json(),
            "verdict": self.outcome.label,
            "standing": self.standing.value,
            "expected": self.expected,
            "known": _known(self.entry) if self.entry else None,
            "attempts": self.attempts,
            **({"company": list(self.preceding_cells)} if self.preceding_cells else {}),
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
    stress: bool = False
    """Whether busy processes put load on the machine."""
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
        standing = self.expectations.standing(cell.id, outcome)
        expected = entry.verdict if entry else Verdict.PASS.value
        result = CellResult(
            cell, outcome, standing, expected, attempts, preceding_cells, entry, repetition, self.stress
        )
        self.results.append(result)
        return result

    @property
    def unexpected(self) -> list[CellResult]:
        return [result for result in self.results if not result.standing.acceptable]

    @property
    def exit_code(self) -> int:
        """0 if all results are as expected, 1 if any is not, 2 if no cell was executed.

        3 and 4 say as much as 0, of a run in which nothing ran, because there was nothing on which to run.
        """
        code = exit_code(
            [(result.outcome.label, result.standing) for result in self.results],
            problem=bool(self.problems) or any(claim.failed for claim in self.judged_claims),
            empty_shard=self.empty_shard,
        )
        return code or (0 if self.depth_asked else AS_EXPECTED_AT[self.depth])

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
            **({"stress": True} if self.stress else {}),
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

    def summary(self) -> str:
        lines = [*self._table(), "", *(claim.sentence for claim in self.judged_claims if not claim.failed)]
        shown = [r for r in self.unexpected if r.outcome.verdict is not Verdict.MISSING and not r.cause]
        for result in shown[:MOST_SHOWN]:
            lines += _describe(result)
        if len(shown) > MOST_SHOWN:
            lines.append(f"... and {len(shown) - MOST_SHOWN} more unexpected results; `report` shows them")
        for cause, refused in by_cause(self.unexpected).items():
            lines += [
                f"UNSUPPORTED: {in_words(cause, len(refused), refused[0].cell.id)}",
                *(f"    {line}" for line in refused[0].outcome.reason.splitlines()[:30]),
                f"    {refused[0].reproduce}",
            ]
        lines += self._repeated()
        left_out = Counter(cell.lacking for cell in self.lacking)
        lines += [f"LEFT OUT: {count} cell{'s' * (count > 1)}: {reason}" for reason, count in left_out.items()]
        lines += self._missing()
        lines += [f"PROBLEM: {problem}" for problem in self.problems]
        lines += [f"CLAIM FAILED: {claim.sentence}" for claim in self.judged_claims if claim.failed]
        executed = len(self.results)
        passed = sum(result.outcome.verdict is Verdict.PASS for result in self.results)
        known = sum(result.standing is ExpectationStatus.KNOWN_FAILURE for result in self.results)
        lines.append(
            f"{passed} of {executed} cells passed, {known} known failures,"
            f" {unexpected_in_words([result.outcome.label for result in self.unexpected])},"
            f" {len(self.ineligible)} cells not applicable, {self.seconds:.0f} s"
        )
        lines += self._depth()
        if self.empty_shard:
            lines.append("This shard has no cell: there are more shards than cells.")
        if self.exit_code == NOTHING_RAN:
            lines.append("ERROR: no cell was executed, so nothing is known.")
        return "\n".join(lines)

    def _depth(self) -> list[str]:
        if self.depth is Depth.RUN:
            return []
        shown = Counter(result.outcome.shown for result in self.results if result.outcome.shown)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(shown.items())) or "none shown"
        return [f"At depth {self.depth.value} nothing ran on {self.platform}: {counts}."]

    def _repeated(self) -> list[str]:
        """How often each cell failed, the highest rate first."""
        found = [(result.cell.id, result.repetition) for result in self.results if result.repetition]
        found.sort(key=lambda one: -one[1].rate)
        lines = [f"{cell_id}: {repetition.words}" for cell_id, repetition in found[:MOST_SHOWN]]
        lines += [f"... and {len(found) - MOST_SHOWN} more repeated cells"] if len(found) > MOST_SHOWN else []
        return lines

    def _missing(self) -> list[str]:
        """Only the names of the first few: an interrupted run has thousands of missing cells."""
        missing = [result.cell.id for result in self.results if result.outcome.verdict is Verdict.MISSING]
        if not missing:
            return []
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return [f"MISSING: {len(missing)} cells were planned and never run: {', '.join(missing[:3])}{more}"]

    def _table(self) -> list[str]:
        """Callbacks down, verdicts across; known failures in a column of their own."""
        counts: dict[str, Counter[str]] = {}
        for result in self.results:
            known = result.standing is ExpectationStatus.KNOWN_FAILURE
            column = "known_failure" if known else result.outcome.verdict.value
            row = f"{result.cell.implementation}/{result.cell.callback_name}"
            counts.setdefault(row, Counter())[column] += 1
        present = {column for counter in counts.values() for column in counter}
        columns: list[str] = [v.value for v in Verdict if v.value in present and v is not Verdict.PASS]
        columns += ["known_failure"] if "known_failure" in present else []
        ineligible = Counter("/".join(cell.id.split("/")[:2]) for cell in self.ineligible)
        rows = [["callback", "passed/applicable/total", *columns]]
        for name, counter in counts.items():
            applicable = counter.total()
            ratio = f"{counter['pass']}/{applicable}/{applicable + ineligible[name]}"
            rows.append([name, ratio, *(str(counter[column]) for column in columns)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]


def _known(entry: Expectation) -> dict[str, Any]:
    return {"reason": entry.reason.strip(), "link": entry.link, "intermittent": entry.intermittent}


def _describe(result: CellResult) -> list[str]:
    outcome = result.outcome
    stage = f" at {outcome.stage.value}" if outcome.stage else ""
    attempts = f", {result.attempts} attempts" if result.attempts > 1 else ""
    return [
        f"{result.standing.value.upper()}: {result.cell.id}: {outcome.label}{stage}"
        f" (expected {result.expected}{attempts})",
        *(f"    {line}" for line in outcome.reason.splitlines()[:30]),
        f"    {result.reproduce}",
    ]
