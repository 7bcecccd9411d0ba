"""Smaller cells that fail in the same way: the search, the steps, the counts, and the command with fake processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from suite_runs import Capture, Patch

from conformance.cli import minimise
from conformance.cli.commands import main
from conformance.engine.cell_runner import CellRunner
from conformance.minimising.failures import Counts, Step, failure_of, smallest
from conformance.minimising.steps import SIMPLER_PLACEMENTS, SIMPLER_TRANSFORMS, simpler
from conformance.model.transforms import TRANSFORMS
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import Cell, ProgramCell, parse_cell
from conformance.spec.configurations import PLACEMENTS

LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: cpu:0 never ran #2", anomaly="lost")
ERROR = Outcome(Verdict.FAIL, Stage.TRACE, "error: ValueError: no", anomaly="error")
PASS = Outcome(Verdict.PASS)

Numbers = frozenset[int]


def without_one(numbers: Numbers) -> Iterator[Step[Numbers]]:
    return ((f"without {number}", numbers - {number}) for number in sorted(numbers))


@given(st.frozensets(st.integers(0, 9)), st.lists(st.frozensets(st.integers(0, 9)), max_size=4))
def test_the_result_fails_and_nothing_one_step_simpler_does(start: Numbers, causes: list[Numbers]) -> None:
    asked: list[Numbers] = []
    steps: list[Numbers] = []

    def fails(numbers: Numbers) -> bool:
        asked.append(numbers)
        return numbers == start or any(cause <= numbers for cause in causes)

    found = smallest(start, without_one, fails, lambda step, numbers: steps.append(numbers))
    assert len(asked) == len(set(asked))
    assert found == start or any(cause <= found for cause in causes)
    assert not any(fails(numbers) for _, numbers in without_one(found) if numbers != start)
    assert [start, *steps][-1] == found
    assert all(after < before for before, after in zip([start, *steps], steps, strict=False))


def test_steps_of_every_transform_and_of_cases() -> None:
    large = parse_cell("jax/io_callback/jit.grad.scan.detached+int8-matrix-dict/cpu-8dev+part+x64+sync")
    assert smallest(large, simpler, lambda cell: True).id == "jax/io_callback/eager/cpu-1dev"
    assert smallest(large, simpler, lambda cell: cell.placement == "part").id == "jax/io_callback/eager/cpu-4dev+part"
    assert {*SIMPLER_TRANSFORMS} <= {*TRANSFORMS}
    assert {*SIMPLER_PLACEMENTS} == {*PLACEMENTS} - {"all"}
    assert "eager in place of jit" in [step for step, _ in simpler(parse_cell("jax/io_callback/jit/cpu-1dev"))]
    case = "hostcb/call/case.raises.pmap/cpu-8dev"
    assert [cell.id for _, cell in simpler(parse_cell(case))][-1] == case.replace("8dev", "4dev")


# Failures and counts.


def test_how_a_cell_fails_and_how_often() -> None:
    lost, error = failure_of(LOST), failure_of(ERROR)
    assert (failure_of(PASS), lost) == (None, "fail at callback (lost)")
    assert error == "fail at trace (error): ValueError"
    crash = Outcome(Verdict.CRASH, Stage.DISPATCH, "the process ended", signal="SIGABRT")
    assert failure_of(crash) == "crash(SIGABRT)"
    # Several runs if the failure comes by chance.
    rest = iter([None, lost, error, lost, None, error, None, None, None, error, lost, None])
    counts = Counts[str](lambda thing: next(rest), runs=4)
    assert counts.observe("start") == lost
    assert counts.how_often("start") == "in 2 of 4 runs"
    assert [counts.fails(name) for name in ("passes", "fails")] == [False, True]
    # A failure of another kind is none.
    counts.measure("fails")
    assert counts.how_often("fails") == "in 1 of 4 runs"
    # `large` always fails, `middle` in half of its runs, and `small` in its second run.
    runs = {"large": [lost] * 2, "middle": [lost, None], "small": [None, None, lost]}
    counts = Counts[str](lambda thing: runs[thing].pop(0), runs=2)
    assert counts.observe("large") == lost
    below = {"large": [("step", "middle")], "middle": [("step", "small")], "small": []}
    assert counts.smallest("large", lambda thing: below[thing]) == "small"
    assert counts.by_chance
    assert counts.how_often("small") == "in 1 of 3 runs"


# The command.


def test_the_command_prints_each_step_and_the_smallest(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    def minimised(outcome: Any, *arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(CellRunner, "run_alone", lambda _, task: outcome(parse_cell(task.id)))
        return main(["minimise", *arguments]), capsys.readouterr().out.splitlines()

    def scans(cell: Cell) -> Outcome:
        return LOST if isinstance(cell, ProgramCell) and "scan" in cell.program.names else PASS

    file = tmp_path / "cell.py"
    assert minimised(scans, "jax/io_callback/jit.scan/cpu-8dev+part", "--program", str(file)) == (
        0,
        [
            "jax/io_callback/jit.scan/cpu-8dev+part: fail at callback (lost), in 3 of 3 runs",
            "without jit: jax/io_callback/scan/cpu-8dev+part",
            "placement all in place of part: jax/io_callback/scan/cpu-8dev",
            "on cpu-1dev: jax/io_callback/scan/cpu-1dev",
            "smallest of 7 cells: jax/io_callback/scan/cpu-1dev: fail at callback (lost), in 3 of 3 runs",
        ],
    )
    assert file.read_text().startswith("# jax/io_callback/scan/cpu-1dev\n")
    assert minimised(lambda cell: PASS, "jax/io_callback/scan/cpu-8dev")[0] == minimise.PASSES
    assert minimised(lambda cell: Outcome(Verdict.HARNESS_ERROR), "jax/io_callback/scan/cpu-8dev")[0] == 2
