"""Mutants: broken implementations die of the right reason, and one that is not broken is distinguished."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import hostcb
from conformance.cli.commands import main
from conformance.mutants import MUTANTS
from conformance.mutants.matrix import Matrix, Row
from conformance.mutants.mutant import Mutant, Symptom, at
from conformance.mutants.trials import NoSuchCellError, Options, cells_of, planned_cells, run
from conformance.oracle.verdicts import Outcome, Stage, Verdict

pytestmark = pytest.mark.contract("C6")

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CELL = "id_tap/jit/cpu-1dev"
LOST = at(Stage.CALLBACK, "lost")


@pytest.fixture(autouse=True)
def fakes_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{HERE}")


def mutant(name: str = "mutant", symptoms: tuple[Symptom, ...] = LOST, home: str = "conformance.mutants") -> Mutant:
    return Mutant(name, "it is broken", lambda library: {}, (CELL,), symptoms, home)


def fails(kind: str, stage: Stage | None = Stage.CALLBACK) -> Outcome:
    return Outcome(Verdict.FAIL, stage, f"{kind}: the evidence", anomaly=kind)


def matrix_of(outcome: Outcome, control: Outcome = Outcome(Verdict.PASS)) -> Matrix:
    broken = mutant()
    matrix = Matrix([Row(broken)])
    matrix.add_control(CELL, control)
    matrix.add(broken, CELL, outcome)
    return matrix


# What the matrix makes of outcomes ----------------------------------------------------------------


def test_killed_for_the_right_reason() -> None:
    matrix = matrix_of(fails("lost"))
    assert matrix.exit_code == 0
    assert [row.fate for row in matrix.rows] == ["killed"]
    assert matrix.idle_cells == []


@pytest.mark.parametrize(
    ("outcome", "fate"),
    [
        (Outcome(Verdict.PASS), "survived"),
        (fails("duplicate"), "killed for another reason"),
        (fails("lost", Stage.EXIT), "killed for another reason"),
        (Outcome(Verdict.CRASH, signal="SIGABRT"), "killed for another reason"),
        (Outcome(Verdict.HANG), "killed for another reason"),
    ],
)
def test_everything_else_is_no_kill(outcome: Outcome, fate: str) -> None:
    matrix = matrix_of(outcome)
    assert matrix.exit_code == 1
    assert [row.fate for row in matrix.survivors] == [fate]
    assert matrix.idle_cells == [CELL]
    assert f"{fate.upper()}: mutant" in matrix.summary()
    assert f"KILLS NOTHING: {CELL}" in matrix.summary()


def test_a_hang_can_be_the_right_reason() -> None:
    assert mutant(symptoms=(Symptom("hang"),)).killed_by(Outcome(Verdict.HANG, reason="no answer for 10 s"))


def test_the_witness_can_be_asked_for_words() -> None:
    wanted = at(Stage.CALLBACK, "lost", words="evidence")
    assert mutant(symptoms=wanted).killed_by(fails("lost"))
    assert not mutant(symptoms=at(Stage.CALLBACK, "lost", words="other words")).killed_by(fails("lost"))


def test_a_cell_that_fails_in_any_case_shows_nothing() -> None:
    matrix = matrix_of(fails("lost"), control=fails("lost"))
    assert matrix.exit_code == 1
    assert matrix.rows[0].kills == []
    assert matrix.problems == [f"{CELL} fails without any mutant: fail: lost: the evidence"]


def test_an_error_of_the_suite_is_a_problem() -> None:
    matrix = matrix_of(Outcome(Verdict.HARNESS_ERROR, reason="Traceback"))
    assert matrix.exit_code == 1
    assert "the suite itself failed" in matrix.problems[0]


def test_no_mutant_is_an_error() -> None:
    assert Matrix([]).exit_code == 2


def test_the_files(tmp_path: Path) -> None:
    matrix = matrix_of(fails("lost"))
    matrix.write(tmp_path)
    data = json.loads((tmp_path / "mutants.json").read_text())
    assert data["schema"] == 1
    assert data["exit_code"] == 0
    assert data["control"] == {CELL: "pass"}
    (row,) = data["mutants"]
    assert (row["mutant"], row["fate"], row["symptoms"]) == ("mutant", "killed", ["lost at callback"])
    assert (row["trials"][0]["cell"], row["trials"][0]["kills"]) == (CELL, True)
    assert "| `mutant` | it is broken | killed |" in (tmp_path / "mutants.md").read_text()


# The mutants ---------------------------------------------------------------------------------------

PLANNED = planned_cells()


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda broken: broken.name)
def test_every_mutant_breaks_public_names_and_names_planned_cells(
    broken: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One mutant watches it, for the rest of its process.
    monkeypatch.setattr(jax.lax, "while_loop", jax.lax.while_loop)
    assert 1 <= len(cells_of(broken, PLANNED)) <= 6
    assert broken.symptoms
    public = {*hostcb.__all__, "debug.callback", "debug.print"}
    replaced = broken.plant(library())
    assert replaced.keys() <= public, f"{broken.name} replaces {sorted(replaced.keys() - public)}"
    assert replaced, f"{broken.name} replaces nothing"


def library() -> Any:
    """Something with hostcb's names that does nothing: planting must not run anything."""
    names = dict.fromkeys(hostcb.__all__, None)
    return SimpleNamespace(**{**names, "debug": SimpleNamespace(callback=None, print=None)})


def test_names_are_unique() -> None:
    names = [broken.name for broken in MUTANTS]
    assert len({*names}) == len(names)
    assert len(names) >= 25


def test_a_glob_that_matches_no_planned_cell_is_an_error() -> None:
    wrong = Mutant("wrong", "", lambda library: {}, ("id_tap/no_such_program/*",), LOST)
    with pytest.raises(NoSuchCellError, match="no_such_program"):
        cells_of(wrong, PLANNED)


# Whole runs ----------------------------------------------------------------------------------------


def test_some_mutants_are_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("duplicated", "late", "wrong_batch_dims", "differentiable_call", "alias_ignored")
    arguments = ["mutants", "-n", "2", "--results", str(tmp_path)]
    for name in names:
        arguments += ["-k", name]
    code = main(arguments)
    data = json.loads((tmp_path / "mutants.json").read_text())
    assert code == 0, capsys.readouterr().out
    assert [row["mutant"] for row in data["mutants"]] == [m.name for m in MUTANTS if m.name in names]
    assert data["idle_cells"] == []
    killed_by = {row["mutant"]: {t["anomaly"] for t in row["trials"] if t["kills"]} for row in data["mutants"]}
    assert killed_by == {
        "duplicated": {"duplicate"},
        "late": {"early barrier"},
        "wrong_batch_dims": {"wrong transforms"},
        "differentiable_call": {"not refused"},
        "alias_ignored": {"error"},
    }


def test_what_is_not_broken_survives(tmp_path: Path) -> None:
    harmless = mutant("HARMLESS", home="mutant_fakes")
    matrix = run([harmless], Options(tmp_path, 1, 60.0))
    assert matrix.exit_code == 1
    assert [row.fate for row in matrix.rows] == ["survived"]
    assert matrix.problems == []
    assert matrix.idle_cells == [CELL]


def test_a_hang_costs_one_cell(tmp_path: Path) -> None:
    hanging = Mutant(
        "BLOCKS_IN_CALL",
        "one of the callbacks never returns",
        lambda library: {},
        ("call/jit/cpu-1dev", "call_device/jit/cpu-1dev", CELL),
        (Symptom("hang"),),
        "mutant_fakes",
    )
    matrix = run([hanging], Options(tmp_path, 1, 10.0))
    outcomes = {trial.cell: trial.outcome.verdict for trial in matrix.rows[0].trials}
    assert outcomes == {
        "call/jit/cpu-1dev": Verdict.HANG,
        "call_device/jit/cpu-1dev": Verdict.PASS,
        CELL: Verdict.PASS,
    }
    assert matrix.exit_code == 0


def test_no_such_mutant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "--results", str(tmp_path), "-k", "no such mutant"]) == 2
    assert "no mutant's name contains no such mutant" in capsys.readouterr().err
