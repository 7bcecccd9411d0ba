"""Smaller cells that fail in the same way: the search, the steps, the counts, and the command with fake processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite_runs import Capture, Patch

from conformance.cli import minimise
from conformance.cli.commands import main
from conformance.minimising import trials
from conformance.minimising.failures import Counts, Failure, Step, failure_of, smallest
from conformance.minimising.steps import SIMPLER_PLACEMENTS, SIMPLER_TRANSFORMS, simpler
from conformance.model.transforms import TRANSFORMS
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import Cell, ProgramCell, parse_cell
from conformance.spec.configurations import PLACEMENTS
from conformance.worker.processes import WorkerStartError

LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: cpu:0 never ran #2", anomaly="lost")
ERROR = Outcome(Verdict.FAIL, Stage.TRACE, "error: ValueError: no", anomaly="error")
PASS = Outcome(Verdict.PASS)

LARGE = "jax/io_callback/jit.grad.scan.detached+int8-matrix-dict/cpu-8dev+part+x64+sync"

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


@pytest.mark.parametrize(
    ("fails", "found"),
    [
        (lambda cell: True, "jax/io_callback/eager/cpu-1dev"),
        (lambda cell: "scan" in cell.program.names, "jax/io_callback/scan/cpu-1dev"),
        (lambda cell: cell.data.element == "int8", "jax/io_callback/eager+int8-scalar-one/cpu-1dev"),
        # float32 is simpler than int8 where the structure alone matters.
        (lambda cell: cell.data.structure == "dict", "jax/io_callback/eager+float32-scalar-dict/cpu-1dev"),
        (lambda cell: cell.configuration == "x64", "jax/io_callback/eager/cpu-1dev+x64"),
        (lambda cell: cell.topology.configuration == "sync", "jax/io_callback/eager/cpu-1dev+sync"),
        (lambda cell: cell.placement == "part", "jax/io_callback/eager/cpu-4dev+part"),
        (lambda cell: cell.program.names[-2:] == ("scan", "detached"), "jax/io_callback/jvp.scan.detached/cpu-1dev"),
    ],
)
def test_steps_leave_out_what_is_no_cause(fails: Any, found: str) -> None:
    assert smallest(parse_cell(LARGE), simpler, fails).id == found


@given(
    st.lists(st.sampled_from([name for name in TRANSFORMS if name != "eager"]), min_size=1, max_size=4),
    st.sampled_from(["cpu-1dev", "cpu-8dev", "cpu-8dev+part_grid", "cpu-4dev+last+gspmd", "cpu-2dev+sync"]),
    st.sampled_from(["", "+uint32-rank5-nested", "+bool-vector-many"]),
    st.data(),
)
def test_the_steps_from_any_cell_end(names: list[str], where: str, kind: str, data: st.DataObject) -> None:
    """At random; each cell on the way has a meaning, and an id that leads to it."""
    try:
        cell = parse_cell(f"hostcb/id_tap/{'.'.join(names)}{kind}/{where}")
    except ValueError:
        return
    seen = {cell.id}
    while steps := [*simpler(cell)]:
        assert len({each.id for _, each in steps}) == len(steps)
        step, cell = data.draw(st.sampled_from(steps))
        assert step
        assert parse_cell(cell.id) == cell
        assert cell.id not in seen
        seen.add(cell.id)
    assert len(seen) < 40
    assert cell.id == "hostcb/id_tap/eager/cpu-1dev"


def test_steps_of_every_transform_of_cases_and_of_the_table() -> None:
    assert {*SIMPLER_TRANSFORMS} == {*TRANSFORMS} - {"eager"}
    assert {*SIMPLER_PLACEMENTS} == {*PLACEMENTS} - {"all"}
    case = "hostcb/call/case.raises.pmap/cpu-8dev"
    assert [cell.id for _, cell in simpler(parse_cell(case))][-1] == case.replace("8dev", "4dev")
    table = [cell.id for _, cell in simpler(parse_cell("hostcb/io_callback/table.vmap/cpu-2dev"))]
    assert "hostcb/io_callback/vmap/cpu-2dev" in table
    assert table[-1] == "hostcb/io_callback/table.vmap/cpu-1dev"


# Failures and counts.


def test_how_a_cell_fails_and_how_often() -> None:
    lost, error = failure_of(LOST), failure_of(ERROR)
    assert (failure_of(PASS), str(lost)) == (None, "fail at callback: lost")
    assert str(error) == "fail at trace: error (ValueError)"
    crash = Outcome(Verdict.CRASH, Stage.DISPATCH, "the process ended", signal="SIGABRT")
    assert failure_of(crash) == Failure("crash(SIGABRT)")
    # Several runs if the failure comes by chance.
    rest = iter([None, lost, error, lost, *[None] * 4, None, error, lost, None])
    counts = Counts[str](lambda thing: next(rest), runs=4)
    assert counts.observe("start") == lost
    assert counts.how_often("start") == "in 2 of 4 runs"
    assert [counts.fails(name) for name in ("passes", "fails")] == [False, True]
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


@pytest.fixture
def minimised(monkeypatch: Patch, capsys: Capture) -> Any:
    """The exit code of the command, what it prints, and its errors; the outcomes of cells are of a function."""

    def run(outcome: Any, *arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(trials, "trials", lambda deadline: nullcontext(outcome))
        code = main(["minimise", *arguments])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return run


def test_the_command_prints_each_step_and_the_smallest(minimised: Any, tmp_path: Path) -> None:
    def scans(cell: Cell) -> Outcome:
        return LOST if isinstance(cell, ProgramCell) and "scan" in cell.program.names else PASS

    file = tmp_path / "cell.py"
    assert minimised(scans, "jax/io_callback/jit.scan/cpu-8dev+part", "--program", str(file))[:2] == (
        0,
        [
            "jax/io_callback/jit.scan/cpu-8dev+part: fail at callback: lost, in 3 of 3 runs",
            "without jit: jax/io_callback/scan/cpu-8dev+part",
            "placement all: jax/io_callback/scan/cpu-8dev",
            "on cpu-1dev: jax/io_callback/scan/cpu-1dev",
            "smallest of 7 cells: jax/io_callback/scan/cpu-1dev: fail at callback: lost, in 3 of 3 runs",
        ],
    )
    assert file.read_text().startswith("# jax/io_callback/scan/cpu-1dev\n")
    # Where no program of JAX alone shows the failure it imports the suite.
    for cell_id, kind, call in (
        ("hostcb/call/case.raises.jit/cpu-2dev", "lost", "run_case"),
        ("jax/io_callback/eager/cpu-1dev", "overlap", "run_cell"),
    ):
        assert minimised(lambda cell, kind=kind: replace(LOST, anomaly=kind), cell_id, "--program", str(file))[0] == 0
        assert call in file.read_text()


def test_an_interrupt_prints_the_smallest_so_far_and_some_cells_cannot_be_made_smaller(minimised: Any) -> None:
    def on_eight(otherwise: BaseException) -> Any:
        def outcome(cell: Cell) -> Outcome:
            if cell.topology.device_count < 8:
                raise otherwise
            return LOST

        return outcome

    scan = "jax/io_callback/scan/cpu-8dev"
    code, out, err = minimised(on_eight(KeyboardInterrupt()), "jax/io_callback/jit.scan/cpu-8dev")
    assert (code, err.startswith("interrupted")) == (1, True)
    assert "jax/io_callback/eager/cpu-8dev: fail at callback: lost, in 1 of 1 run" in out[-1]
    # A topology that does not start is no smaller cell.
    code, out, _ = minimised(on_eight(WorkerStartError("no such devices")), scan)
    assert (code, "jax/io_callback/eager/cpu-8dev" in out[-1]) == (0, True)
    assert minimised(on_eight(WorkerStartError("no such devices")), scan.replace("8", "4"))[0] == 2
    code, out, _ = minimised(lambda cell: PASS, scan, "--runs", "2")
    assert (code, minimise.PASSES, "passes in 2 of 2 runs" in out[0]) == (3, 3, True)
    for arguments in ([scan], ["nonsense"], [LARGE, "--program", "/nowhere/cell.py"]):
        code, _, err = minimised(lambda cell: Outcome(Verdict.HARNESS_ERROR, None, "a bug"), *arguments)
        assert (code, err.startswith("ERROR: ")) == (2, True)


def test_a_run_in_a_process() -> None:
    with trials.trials(deadline=60.0) as run_alone:
        outcome = run_alone(parse_cell("jax/io_callback/grad.scan.detached/cpu-1dev"))
    assert failure_of(outcome) == failure_of(LOST)
