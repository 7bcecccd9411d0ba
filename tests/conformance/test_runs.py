"""Whole runs: whatever cells do to processes, every cell is reported, and the run ends.

Two runs have all that can go wrong: one in processes of xdist, and one in a single process.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from suite_runs import ROOT, blocked, cells, end, ended, journal_in, python, report_in, run, start, verdicts

from conformance.cli.commands import main
from conformance.engine.cell_runner import CellRunner
from conformance.engine.journal import Journal
from conformance.engine.tasks import Task, in_running_order
from conformance.expectations.entries import Expectations
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Verdict
from conformance.planning.cells import make_plan
from conformance.reports.report import Report
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C4")

CALLBACKS = ("id_tap", "call", "io_callback", "debug_callback")
FAKES = "implementation_fakes"


class Ran(NamedTuple):
    folder: Path
    code: int
    printed: str
    errors: str
    results: dict[str, Any]

    @property
    def cells(self) -> dict[str, dict[str, Any]]:
        """By implementation and callback."""
        return {"/".join(cell["id"].rpartition(":")[2].split("/")[:2]): cell for cell in self.results["cells"]}


def ran(folder: Path, *arguments: str, **environment: str) -> Ran:
    ended = run(folder, *arguments, **environment)
    return Ran(folder, ended.returncode, ended.stdout, ended.stderr, report_in(folder / "results"))


# In processes of xdist ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Cells that crash, hang and kill pytest's process, where the user has a pytest of their own."""
    folder = tmp_path_factory.mktemp("troubled")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (folder / "conftest.py").write_text("raise RuntimeError('not meant for cells')")
    (folder / "summary.md").write_text("What the job said before.\n")
    surroundings = {"PYTEST_ADDOPTS": "--collect-only", "PYTEST_PLUGINS": "no_such_plugin"}
    surroundings["GITHUB_STEP_SUMMARY"] = str(folder / "summary.md")
    chosen = [
        *cells(f"{FAKES}:DIES_IN_CALL", "id_tap", "call", "call_no_result"),
        *cells(f"{FAKES}:BLOCKS_IN_CALL", "call", "call_no_result"),
        *cells("engine_fakes:KILLS_PYTEST", "id_tap", "call", "call_no_result"),
    ]
    return ran(folder, "-n", "2", "--deadline=3", *chosen, **surroundings)


def test_a_crash_and_a_hang_cost_one_cell_each(troubled: Ran) -> None:
    assert troubled.code == 1, troubled.errors
    found = {name: (cell["verdict"], cell["attempts"]) for name, cell in troubled.cells.items()}
    assert found == {name: ("pass", 1) for name in found if "KILLS_PYTEST/call" not in name} | {
        "DIES_IN_CALL/call": ("crash(SIGABRT)", 2),
        "BLOCKS_IN_CALL/call": ("hang", 2),
        "KILLS_PYTEST/call": ("pass", found["KILLS_PYTEST/call"][1]),
        "KILLS_PYTEST/call_no_result": ("pass", 1),
    }
    assert "Fatal Python error: Aborted" in troubled.cells["DIES_IN_CALL/call"]["witness"]
    assert "in _block" in troubled.cells["BLOCKS_IN_CALL/call"]["witness"]
    events = journal_in(troubled.folder / "results", "begin", "end")
    assert [event["event"] for event in events if "DIES_IN_CALL/call/" in event["cell"]] == ["begin", "end"] * 2


def test_a_pytest_process_that_dies_costs_no_cell_and_is_a_problem(troubled: Ran) -> None:
    (problem,) = troubled.results["problems"]
    assert "KILLS_PYTEST/call/eager/cpu-1dev" in problem


@pytest.mark.contract("C70")
def test_progress_is_shown_without_a_terminal_and_the_job_has_the_report(troubled: Ran) -> None:
    first, then, *_, last = troubled.errors.splitlines()
    assert first.startswith("8 cells on 2 workers;")
    assert re.match(r"1/8 cells, \d not as expected$", then), "the first result is shown at once"
    assert "bringing up nodes" not in troubled.printed, "xdist's own lines"
    assert re.match(r"8/8 cells, (\d) not as expected", last), troubled.errors
    job = (troubled.folder / "summary.md").read_text()
    assert job.startswith("What the job said before.\n# Conformance on cpu: NOT as expected\n")


# In one process -------------------------------------------------------------------------------------------------------

ENTRY = '[[expect]]\ncells = "{}"\nverdict = "fail"\nstage = "callback"\nreason = "planted"\nlink = "-"\nsince = "-"\n'
KNOWN = (f"{FAKES}:LOSES_A_CALLBACK/id_tap/*", f"{FAKES}:GOOD/call/*")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Cells with all that an expectation makes of a result, and flakes; with options of pytest."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "cpu.toml").write_text("".join(map(ENTRY.format, KNOWN)))
    chosen = [
        *cells(f"{FAKES}:LOSES_A_CALLBACK", "id_tap", "call", "call_no_result"),
        *cells(f"{FAKES}:GOOD", "id_tap", "call"),
        *cells("engine_fakes:FAILS_FIRST_TIME", "id_tap", "call"),
        *cells(f"{FAKES}:FAILS_AFTER_ANOTHER", "id_tap", "call"),
    ]
    of_pytest = ["--", "-k", "not call_no_result", "-v", "-rA", "--tb=short", "--xfail-tb", "--junit-xml=junit.xml"]
    return ran(folder, "-n", "1", f"--expectations={folder / 'cpu.toml'}", *chosen, *of_pytest)


@pytest.mark.contract("C7")
def test_results_are_strict_both_ways(mixed: Ran) -> None:
    assert mixed.code == 1
    found = {name: (cell["verdict"], cell["status"], cell["attempts"]) for name, cell in mixed.cells.items()}
    good = ("pass", "as_expected", 1)
    assert found == {
        "LOSES_A_CALLBACK/id_tap": ("fail", "known_failure", 1),
        "LOSES_A_CALLBACK/call": ("fail", "unexpected", 2),
        "GOOD/id_tap": good,
        "GOOD/call": ("pass", "unexpected_pass", found["GOOD/call"][2]),
        "FAILS_FIRST_TIME/id_tap": good,
        "FAILS_FIRST_TIME/call": ("flake", "unexpected", 3),
        "FAILS_AFTER_ANOTHER/id_tap": good,
        "FAILS_AFTER_ANOTHER/call": ("flake", "unexpected", 3),
    }


@pytest.mark.contract("C7")
def test_a_flake_by_chance_and_one_by_preceding_cells_are_told_apart(mixed: Ran) -> None:
    chance, preceding = (mixed.cells[f"{name}/call"] for name in ("FAILS_FIRST_TIME", "FAILS_AFTER_ANOTHER"))
    assert "by chance" in chance["witness"] and "by chance" not in preceding["witness"]
    # The command to reproduce it has the cells before it.
    assert "id_tap/eager/cpu-1dev --cell" in preceding["reproduce"]


@pytest.mark.contract("C46")
def test_pytest_sees_strict_expected_failures(mixed: Ran) -> None:
    assert "4 failed, 3 passed, 1 deselected, 1 xfailed" in mixed.printed
    assert "items.py" not in mixed.printed, "the stack of the suite says nothing about a cell"
    junit = (mixed.folder / "junit.xml").read_text()
    assert 'failures="4" skipped="1" tests="8"' in junit
    assert f'classname="cells" name="{FAKES}:GOOD/id_tap/eager/cpu-1dev"' in junit


# What ends a run ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sigint_reaches_programs")
@pytest.mark.parametrize(
    ("workers", "number", "whole_group"),
    [
        ("1", signal.SIGTERM, False),
        ("2", signal.SIGINT, True),
        pytest.param("2", signal.SIGINT, False, marks=pytest.mark.thorough),
    ],
)
def test_an_interrupt_ends_at_once_and_keeps_the_conclusions(
    tmp_path: Path, workers: str, number: signal.Signals, whole_group: bool
) -> None:
    # Of two processes the first gets two cells and the second the others, so that one is over when the other begins.
    chosen = [*cells(f"{FAKES}:GOOD", "id_tap", "call"), *cells("engine_fakes:BLOCKS", "id_tap", "call")]
    with blocked(tmp_path) as begun:
        process = start(tmp_path, "-n", workers, "--deadline=1000", *chosen)
        worker = begun(process)
    # As a terminal does it.
    os.killpg(process.pid, number) if whole_group else process.send_signal(number)
    interrupted = end(process)
    assert interrupted.returncode == 1, interrupted.stderr
    results = report_in(tmp_path / "results")
    found = verdicts(results)
    assert found["engine_fakes:BLOCKS/id_tap/eager/cpu-1dev"] == "pass"
    assert found["engine_fakes:BLOCKS/call/eager/cpu-1dev"] == "missing"
    assert results["problems"]
    assert ended(worker), "the worker process outlived the run"


@pytest.mark.contract("C46")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.thorough), "2"])
def test_pytest_stops_and_runs_the_last_failures(tmp_path: Path, workers: str) -> None:
    """What did not run for -x is MISSING, and the run fails; --lf runs what has failed."""
    chosen = [*cells(f"{FAKES}:LOSES_A_CALLBACK", "call"), *cells(f"{FAKES}:GOOD", *CALLBACKS)]
    arguments = ["-n", workers, f"--expectations={os.devnull}", *chosen]
    stopped = ran(tmp_path, *arguments, "--", "-x")
    assert (stopped.code, len(stopped.results["cells"])) == (1, 1 + len(CALLBACKS)), stopped.errors
    assert "missing" in verdicts(stopped.results).values() and stopped.results["problems"]
    again = ran(tmp_path, *arguments, "--", "--lf")
    assert (again.code, len(again.results["cells"])) == (1, 1), again.errors


@pytest.mark.contract("C46")
def test_options_that_pytest_refuses_are_an_error_and_the_results_before_stay(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conformance-cpu.json").write_text("{}")
    chosen = ["run", "-n", "1", f"--results={tmp_path}", *cells(f"{FAKES}:GOOD", "id_tap"), "--", "--no-such-option"]
    assert main(chosen) == 2
    assert "no-such-option" in capfd.readouterr().err
    assert (tmp_path / "conformance-cpu.json").read_text() == "{}"


@pytest.mark.contract("C3")
def test_nothing_that_was_tested_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cell, no such platform, and fewer devices than the worker was promised, as on a machine that lost one."""
    common = ["run", "-n", "1", "--results", str(tmp_path)]
    assert main([*common, "-k", "id_tap and no_such_cell"]) == 2
    assert main([*common, "--platform", "nonesuch", "--cell", "hostcb/id_tap/jit/nonesuch-1dev"]) == 2
    assert "nothing was tested" in capsys.readouterr().err
    monkeypatch.setattr(Topology, "environment", lambda self, inherited, *_: {**inherited, "JAX_PLATFORMS": "cpu"})
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    assert main([*common, "--cell", "hostcb/id_tap/jit/cpu-4dev"]) == 2
    assert "asked for 4 cpu devices, JAX found 2 cpu" in capsys.readouterr().err


def test_an_implementation_that_workers_cannot_import_is_not_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # As errors, warnings would end the workers before they import it.
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    assert main(["run", "-n", "1", f"--results={tmp_path}", *cells(f"{FAKES}:GOOD", "id_tap", "call")]) == 2
    assert {*verdicts(report_in(tmp_path)).values()} == {"missing"}
    (problem,) = report_in(tmp_path)["problems"]
    assert FAKES in problem


@pytest.mark.parametrize("implementation", ["ORDERED", "UNORDERED"])
def test_order_is_really_tested(tmp_path: Path, implementation: str) -> None:
    programs = [f"--cell={FAKES}:{implementation}/id_tap/{name}/cpu-2dev" for name in ("scan", "fori", "shard_map")]
    code = main(["run", "-n", "1", "--results", str(tmp_path), *programs])
    found = [cell["anomaly"] for cell in report_in(tmp_path)["cells"]]
    # Which of them fail is up to the compiler.
    assert (code, "order" in found) == ((0, False) if implementation == "ORDERED" else (1, True)), found


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    command = f"{sys.executable} -m conformance list --implementation jax --devices 8 -k eager | head -1"
    listed = python(tmp_path, "-c", f"import os; os.system({command!r})")
    assert (listed.stdout.count("\n"), listed.stderr) == (1, "")


# The parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [None, *sorted(Verdict, key=str)])
def test_nothing_but_a_pass_passes(verdict: Verdict | None) -> None:
    cell = make_plan(["hostcb"], [Topology("cpu", 1)]).cells[0]
    report = Report("cpu", Expectations())
    if verdict is None:
        assert report.exit_code == 2
        return
    passes = verdict is Verdict.PASS
    status = report.add(cell, Outcome(verdict)).status
    assert status is (ExpectationStatus.AS_EXPECTED if passes else ExpectationStatus.UNEXPECTED)
    assert (report.exit_code == 0) is passes
    assert (cell.id in report.summary()) is not passes
    report.problems.append("a worker could not end")
    assert report.exit_code != 0 and "a worker could not end" in report.summary()


def test_a_flag_that_xla_does_not_know_is_left_out(tmp_path: Path) -> None:
    """XLA ends a process over it; the suite is for releases to come, too."""
    flags = ("--xla_no_such_flag=false", "--xla_backend_optimization_level=0")
    journal = Journal(tmp_path / "journal")
    runner = CellRunner(tmp_path / "log", journal, _quick=flags)
    for number, program in enumerate(("jit", "eager")):
        outcome, _ = runner.run(Task(f"hostcb/id_tap/{program}/cpu-1dev", "hostcb", Topology("cpu", 1), 60.0 + number))
        assert outcome.verdict is Verdict.PASS
    runner.finish()
    journal.close()
    assert runner.take_stats().process_starts == 2, "one that did not start, and one for both cells"


def test_running_order() -> None:
    """Slow cells first, and each kind of worker process once."""
    one, eight = Topology("cpu", 1), Topology("cpu", 8)
    tasks = [
        Task("a", "hostcb", one, 60.0),
        Task("b", "hostcb", eight, 60.0),
        Task("case", "hostcb", one, 10.0, isolated=True),
        Task("slow case", "hostcb", one, 60.0, isolated=True),
        Task("c", "hostcb", one, 60.0),
    ]
    assert [task.id for task in in_running_order(tasks)] == ["slow case", "case", "a", "c", "b"]
    # Each of two processes begins with slow cells.
    assert [task.id for task in in_running_order(tasks, 2)] == ["slow case", "a", "case", "c", "b"]
