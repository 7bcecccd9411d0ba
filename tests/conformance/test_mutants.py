"""Mutants: broken implementations die of the right reason, and one that is not broken is distinguished."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite_runs import Capture

import hostcb
from conformance.engine.first_cells import FIRST_CELLS, kills_in
from conformance.implementations.hostcb import Hostcb
from conformance.mutants import MUTANTS
from conformance.mutants.matrix import Matrix, Row
from conformance.mutants.mutant import Mutant
from conformance.mutants.trials import cells_of, planned_cells, run
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import Plan
from conformance.planning.processes import USUAL, plan_over_processes
from conformance.spec.errors import CommandError

pytestmark = pytest.mark.contract("C6")

CELL = "id_tap/jit/cpu-1dev"
LOST = "lost at callback"
PASS = Outcome(Verdict.PASS)

HARMLESS = Hostcb(hostcb)
"""A mutant that is not broken: processes import it from this module."""


def mutant(name: str, symptom: str = LOST, words: str = "", home: str = "conformance.mutants") -> Mutant:
    return Mutant(name, "it is broken", lambda library: {}, (CELL,), (symptom,), words, home)


def fails(kind: str, stage: Stage | None = Stage.CALLBACK) -> Outcome:
    return Outcome(Verdict.FAIL, stage, f"{kind}: the evidence", anomaly=kind)


def matrix_of(outcome: Outcome, control: Outcome = PASS, symptom: str = LOST, words: str = "") -> Matrix:
    broken = mutant("mutant", symptom, words)
    matrix = Matrix([Row(broken)])
    matrix.add_control(CELL, control)
    matrix.add(broken, CELL, outcome)
    return matrix


def test_a_kill_is_a_failure_for_the_right_reason() -> None:
    other = "killed for another reason"
    for symptom, words, outcome, fate in (
        (LOST, "", fails("lost"), "killed"),
        ("hang", "", Outcome(Verdict.HANG, reason="no answer for 10 s"), "killed"),
        ("lost at *", "", fails("lost", Stage.EXIT), "killed"),
        ("lost at *", "", fails("lost", None), other),
        (LOST, "evidence", fails("lost"), "killed"),
        (LOST, "other words", fails("lost"), other),
        (LOST, "", PASS, "survived"),
        (LOST, "", fails("duplicate"), other),
        (LOST, "", fails("lost", Stage.EXIT), other),
        (LOST, "", Outcome(Verdict.HANG), other),
    ):
        matrix = matrix_of(outcome, symptom=symptom, words=words)
        killed = fate == "killed"
        assert ([row.fate for row in matrix.rows], matrix.exit_code) == ([fate], 0 if killed else 1)
        assert matrix.idle_cells == ([] if killed else [CELL])
    # A cell that fails without the mutant shows nothing.
    matrix = matrix_of(fails("lost"), control=fails("lost"))
    assert (matrix.exit_code, matrix.rows[0].kills) == (1, [])
    assert matrix.problems == [f"{CELL} fails without any mutant: fail: lost: the evidence"]
    matrix = matrix_of(Outcome(Verdict.HARNESS_ERROR, reason="Traceback"))
    assert matrix.exit_code == 1 and "the suite itself failed" in matrix.problems[0]
    assert Matrix([]).exit_code == 2


def test_mutants_are_killed_and_what_is_not_broken_survives(tmp_path: Path, capsys: Capture) -> None:
    (late,) = (broken for broken in MUTANTS if broken.name == "late")
    matrix = run([late, mutant("HARMLESS", home=__name__)], tmp_path, 1, 60.0)
    assert [row.fate for row in matrix.rows] == ["killed", "survived"]
    assert (matrix.exit_code, matrix.problems) == (1, [])
    assert [{trial.outcome.anomaly for trial in row.kills} for row in matrix.rows] == [{"early barrier"}, set()]
    wrong = Mutant("wrong", "", lambda library: {}, ("id_tap/no_such_program/*",), (LOST,))
    with pytest.raises(CommandError, match="no_such_program"):
        cells_of(wrong, planned_cells())
    assert len({broken.name for broken in MUTANTS}) == len(MUTANTS) >= 80


def test_a_run_begins_with_planned_cells_that_kill_the_mutants(cpu_plan: Plan) -> None:
    """`mutants --rank` renews the file."""
    first = kills_in(FIRST_CELLS.read_text())
    planned = {cell.id for cell in (*cpu_plan.cells, *plan_over_processes(("hostcb",), [USUAL]).cells)}
    assert {f"hostcb/{cell}" for cell in first} <= planned
    assert {mutant for killed in first.values() for mutant in killed} <= {mutant.name for mutant in MUTANTS}
    assert len({mutant for killed in first.values() for mutant in killed}) >= 0.95 * len(MUTANTS)
