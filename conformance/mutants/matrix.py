"""The kill matrix: the cells that have killed each mutant, surviving mutants, and cells that kill none."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..oracle.verdicts import Outcome, Verdict
from .mutant import Mutant, symptom_of

WITNESS_LENGTH = 160


@dataclass(frozen=True)
class Trial:
    cell: str
    """As callback/program/topology."""
    outcome: Outcome
    kills: bool
    """Whether the cell failed, and for the right reason."""

    def __str__(self) -> str:
        """The cell, and the reason on one short line."""
        words = " ".join(self.outcome.reason.split())[:WITNESS_LENGTH]
        passes = self.outcome.verdict is Verdict.PASS
        return f"{self.cell}: {'passes' if passes else f'{symptom_of(self.outcome)}: {words}'}"


@dataclass
class Row:
    mutant: Mutant
    trials: list[Trial] = field(default_factory=list)

    @property
    def kills(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.kills]

    @property
    def fate(self) -> str:
        if self.kills:
            return "killed"
        failed = any(trial.outcome.verdict is not Verdict.PASS for trial in self.trials)
        return "killed for another reason" if failed else "survived"


@dataclass
class Matrix:
    rows: list[Row]
    control: dict[str, Outcome] = field(default_factory=dict)
    """The outcomes of the cells with the unbroken implementation."""
    problems: list[str] = field(default_factory=list)
    """Errors of the suite: with any of these, the matrix proves nothing."""
    seconds: float = 0.0

    def add(self, mutant: Mutant, cell: str, outcome: Outcome) -> None:
        (row,) = (row for row in self.rows if row.mutant is mutant)
        if outcome.verdict is Verdict.HARNESS_ERROR:
            self.problems.append(f"{mutant.name}: {cell}: the suite itself failed: {outcome.reason.strip()}")
        # A cell that also fails without a mutant proves nothing.
        clean = cell in self.control and self.control[cell].verdict is Verdict.PASS
        row.trials.append(Trial(cell, outcome, clean and mutant.killed_by(outcome)))

    def add_control(self, cell: str, outcome: Outcome) -> None:
        self.control[cell] = outcome
        if outcome.verdict is not Verdict.PASS:
            self.problems.append(f"{cell} fails without any mutant: {outcome.label}: {outcome.reason}")

    @property
    def survivors(self) -> list[Row]:
        return [row for row in self.rows if row.fate != "killed"]

    @property
    def idle_cells(self) -> list[str]:
        useful = {trial.cell for row in self.rows for trial in row.kills}
        return [cell for cell in self.control if cell not in useful]

    @property
    def exit_code(self) -> int:
        """0 if every mutant was killed for the right reason, 1 if not, 2 if there was none."""
        if not self.rows:
            return 2
        return 1 if self.survivors or self.problems else 0

    def summary(self) -> str:
        width = max((len(row.mutant.name) for row in self.rows), default=0)
        lines = []
        for row in self.rows:
            said = row.kills[0] if row.kills else row.mutant.fault
            lines.append(f"{row.mutant.name.ljust(width)}  {len(row.kills)}/{len(row.trials)}  {said}")
        for row in self.survivors:
            lines.append(f"{row.fate.upper()}: {row.mutant.name}: {row.mutant.fault}")
            lines += [f"    {trial}" for trial in row.trials]
        lines += [f"KILLS NOTHING: {cell}" for cell in self.idle_cells]
        lines += [f"PROBLEM: {problem}" for problem in self.problems]
        killed = len(self.rows) - len(self.survivors)
        trials = sum(len(row.trials) for row in self.rows)
        lines += ["", f"{killed} of {len(self.rows)} mutants killed for the right reason, {trials} trials,"]
        return "\n".join(lines) + f" {len(self.control)} different cells, {self.seconds:.0f} s"
