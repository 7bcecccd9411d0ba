"""Whole runs: whatever cells do to processes, every cell is reported, the run ends, and a killed one goes on.

Two runs have all that can go wrong: one in processes of xdist, and one in a single process.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import suite_runs
from suite_runs import Capture, Patch, blocked, cells, ended, report_in, verdicts

from conformance.cli import commands
from conformance.engine import preparation
from conformance.engine.cell_runner import CellRunner
from conformance.engine.conclusions import Conclusion, run_with_second_chance
from conformance.engine.options import RunOptions
from conformance.engine.pytest_cells import exclusive
from conformance.engine.results_folder import locking
from conformance.engine.results_folder.locking import FolderLock
from conformance.engine.results_folder.resuming import MOST_FLIGHTS, Past, ResumeError, begin, past_of
from conformance.engine.tasks import Task
from conformance.expectations.entries import Expectations, read_entries
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict
from conformance.planning import selection
from conformance.planning.cells import parse_cell
from conformance.reports.journal import Journal
from conformance.reports.report import Report
from conformance.spec.errors import CommandError
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C4", "C42")

FAKES = "suite_fakes"


def by_name(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The cells by implementation and callback."""
    return {"/".join(cell["id"].rpartition(":")[2].split("/")[:2]): cell for cell in results["cells"]}


@pytest.mark.contract("C70")
def test_a_run_in_processes_of_xdist(tmp_path: Path) -> None:
    """Cells crash, hang and kill pytest's process, and the user has a pytest of their own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not meant for cells')")
    summary = tmp_path / "summary.md"
    summary.write_text("What the job said before.\n")
    surroundings = {"PYTEST_ADDOPTS": "--collect-only", "PYTEST_PLUGINS": "no_such_plugin"}
    chosen = [
        *cells(f"{FAKES}:DIES_IN_CALL", "id_tap", "call", "call_no_result"),
        *cells(f"{FAKES}:SLEEPS_IN_CALL", "call", "call_no_result"),
        *cells(f"{FAKES}:KILLS_PYTEST", "id_tap", "call", "call_no_result"),
    ]
    troubled = suite_runs.run(
        tmp_path, "-n", "2", "--deadline=3", *chosen, **surroundings, GITHUB_STEP_SUMMARY=str(summary)
    )
    assert troubled.returncode == 1, troubled.stderr
    results = report_in(tmp_path / "results")
    cell = by_name(results)
    found = {name: (one["verdict"], one["attempts"]) for name, one in cell.items()}
    assert found == dict.fromkeys(found, ("pass", 1)) | {
        "DIES_IN_CALL/call": ("crash(SIGABRT)", 2),
        "SLEEPS_IN_CALL/call": ("hang", 2),
        "KILLS_PYTEST/call": ("missing", 0),
    }
    assert "Fatal Python error: Aborted" in cell["DIES_IN_CALL/call"]["witness"]
    assert "in disturb" in cell["SLEEPS_IN_CALL/call"]["witness"]
    events = suite_runs.journal_in(tmp_path / "results", "begin", "end")
    assert [event["event"] for event in events if "DIES_IN_CALL/call/" in event["cell"]] == ["begin", "end"] * 2
    (problem,) = results["problems"]
    assert "KILLS_PYTEST/call/eager/cpu-1dev" in problem
    # Progress is shown without a terminal, the first result at once, and the job has the report.
    assert re.match(r"8 cells on 2 workers;.*\n1/8 cells, \d not as expected\n", troubled.stderr), troubled.stderr
    assert summary.read_text().startswith("What the job said before.\n# Conformance on cpu: NOT as expected\n")


ENTRY = '[[expect]]\ncells = "{}"\nverdict = "fail"\nstage = "callback"\nreason = "planted"\nlink = "-"\nsince = "-"\n'
KNOWN = (f"{FAKES}:LOSES_A_CALLBACK/id_tap/*", f"{FAKES}:GOOD/call/*")
OF_PYTEST = ("--", "-k", "not call_no_result", "-v", "-rA", "--tb=short", "--xfail-tb")


@pytest.mark.contract("C7", "C46")
def test_a_run_in_one_process(tmp_path: Path, monkeypatch: Patch, capfd: Capture) -> None:
    """Results are strict both ways, flakes by chance and by preceding cells are told apart, and pytest sees the same.

    Workers cannot import the last implementation.
    """
    (tmp_path / "absent.py").write_text("from suite_fakes import GOOD as IMPLEMENTATION")
    (tmp_path / "cpu.toml").write_text("".join(map(ENTRY.format, KNOWN)))
    chosen = [
        *cells(f"{FAKES}:LOSES_A_CALLBACK", "id_tap", "call", "call_no_result"),
        *cells(f"{FAKES}:GOOD", "id_tap", "call"),
        *cells(f"{FAKES}:FAILS_FIRST_TIME", "id_tap", "call"),
        *cells(f"{FAKES}:FAILS_AFTER_ANOTHER", "id_tap", "call"),
        *cells("absent", "call"),
    ]
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = (f"--expectations={tmp_path / 'cpu.toml'}", *chosen, *OF_PYTEST)
    assert suite_runs.run_here(tmp_path, monkeypatch, *asked) == 1
    printed, results = capfd.readouterr().out, report_in(tmp_path / "results")
    cell = by_name(results)
    found = {name: (one["verdict"], one["status"], one["attempts"]) for name, one in cell.items()}
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
        "absent/call": ("missing", "unexpected", found["absent/call"][2]),
    }
    (problem,) = results["problems"]
    assert "absent" in problem
    chance, preceding = cell["FAILS_FIRST_TIME/call"], cell["FAILS_AFTER_ANOTHER/call"]
    assert "by chance" in chance["witness"] and "by chance" not in preceding["witness"]
    # The command to reproduce it has the cells before it.
    assert "id_tap/eager/cpu-1dev --cell" in preceding["reproduce"]
    assert "5 failed, 3 passed, 1 deselected, 1 xfailed" in printed


# What ends a run.


@pytest.mark.usefixtures("sigint_reaches_programs")
@pytest.mark.parametrize(("workers", "number"), [("1", signal.SIGTERM), ("2", signal.SIGINT)])
def test_an_interrupt_ends_at_once_and_keeps_the_conclusions(
    tmp_path: Path, workers: str, number: signal.Signals
) -> None:
    # Of two processes the first gets two cells and the second the others, so that one is over when the other begins.
    chosen = [*cells(f"{FAKES}:GOOD", "id_tap", "call"), *cells(f"{FAKES}:BLOCKS", "id_tap", "call")]
    with blocked(tmp_path) as begun:
        process = suite_runs.start(tmp_path, "-n", workers, "--deadline=1000", *chosen)
        worker = begun(process)
    # As a terminal does it for two.
    os.killpg(process.pid, number) if workers == "2" else process.send_signal(number)
    interrupted = suite_runs.end(process)
    assert interrupted.returncode == 1, interrupted.stderr
    results = report_in(tmp_path / "results")
    found = {name: one["verdict"] for name, one in by_name(results).items()}
    assert (found["BLOCKS/id_tap"], found["BLOCKS/call"]) == ("pass", "missing")
    assert results["problems"]
    left = [*found.values()].count("missing")
    assert f"0 unexpected results; {left} cell{'s' * (left > 1)} did not run" in interrupted.stdout
    assert f" -m conformance run --resume --results={tmp_path / 'results'} -n {workers}" in interrupted.stdout
    assert ended(worker), "the worker process outlived the run"


@pytest.mark.contract("C46")
def test_pytest_stops_and_runs_the_last_failures(tmp_path: Path, capfd: Capture) -> None:
    """What did not run for -x is MISSING, and the run fails; --lf runs what has failed; nonsense leaves the results."""
    chosen = [*cells(f"{FAKES}:LOSES_A_CALLBACK", "call"), *cells(f"{FAKES}:GOOD", "id_tap", "call")]
    command = ["run", "-n", "1", f"--results={tmp_path}", f"--expectations={os.devnull}", *chosen, "--"]
    assert commands.main([*command, "-x"]) == 1
    stopped = report_in(tmp_path)
    assert len(stopped["cells"]) == 3 and stopped["problems"]
    assert "missing" in verdicts(stopped).values()
    assert commands.main([*command, "--lf"]) == 1
    again = report_in(tmp_path)
    assert len(again["cells"]) == 1
    assert commands.main([*command, "--no-such-option"]) == 2
    assert "no-such-option" in capfd.readouterr().err
    assert report_in(tmp_path) == again


@pytest.mark.contract("C3")
def test_nothing_that_was_tested_is_an_error(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    """No such cell, and fewer devices than the worker was promised, as on a machine that lost one."""
    common = ["run", "-n", "1", "--results", str(tmp_path)]
    assert commands.main([*common, "-k", "id_tap and no_such_cell"]) == 2
    monkeypatch.setattr(Topology, "environment", lambda self, inherited, *_: {**inherited, "JAX_PLATFORMS": "cpu"})
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    assert commands.main([*common, "--cell", "hostcb/id_tap/jit/cpu-4dev"]) == 2
    assert "asked for 4 cpu devices, JAX found 2 cpu" in capsys.readouterr().out


@pytest.mark.contract("C43")
@pytest.mark.parametrize("platform", ["nosuch", "cpu"])
def test_the_last_results_stay(tmp_path: Path, monkeypatch: Patch, capsys: Capture, platform: str) -> None:
    """Without a device; and where what is selected means nothing, so that there is no cell."""
    old = {f"conformance-{platform}.json": "{}", f"journal-{platform}.jsonl": '{"event": "begin"}\n'}
    old["worker-0.log"] = "old"
    for name, text in old.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(selection, "whole_plan_of", lambda *arguments: preparation.Plan((), ()))
    chosen = ["--cell", f"jax/io_callback/eager/{platform}-1dev"] if platform == "nosuch" else ["--devices", "1"]
    assert commands.main(["run", "-n", "1", "--results", str(tmp_path), *chosen]) == 2
    said = capsys.readouterr()
    assert "nothing was tested" in said.err or "still has the results of an earlier run" in said.out
    # Locks and pytest's cache are no results.
    shutil.rmtree(tmp_path / ".pytest_cache", ignore_errors=True)
    for name in (locking.NAME, exclusive.GATE, exclusive.CELLS):
        (tmp_path / name).unlink(missing_ok=True)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == old


def test_a_full_disk(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Journal, "write", full)
    monkeypatch.setattr(Report, "write", full)
    assert commands.main(["run", "-n", "1", *cells(f"{FAKES}:GOOD", "id_tap"), "--results", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "PROBLEM: a cell was not run: [Errno 28] No space left on device" in printed
    assert "conformance-cpu.json could not be written" in printed


# The parts.


def test_nothing_but_a_pass_passes() -> None:
    cell = parse_cell("hostcb/id_tap/jit/cpu-1dev")
    assert Report("cpu", Expectations()).exit_code == 2
    for verdict in Verdict:
        report = Report("cpu", Expectations())
        report.add(cell, Outcome(verdict))
        status = report.record.cells[0].status
        assert (status is ExpectationStatus.AS_EXPECTED) is (report.exit_code == 0) is (verdict is Verdict.PASS)
        assert (cell.id in report.summary()) is not (verdict is Verdict.PASS)
        report.problems.append("a worker could not end")
        assert report.exit_code != 0 and "a worker could not end" in report.summary()


def test_a_way_to_fail_that_is_known_costs_no_further_processes(tmp_path: Path, monkeypatch: Patch) -> None:
    """Without the verdict of a flake: what has failed by chance once runs again each time, and so does a pass."""
    results: dict[str, list[Outcome]] = {}

    def outcome(_: Any, task: Task, **__: Any) -> Outcome:
        return results[task.id].pop(0)

    def attempts(kind: str, *of_cells: list[Outcome]) -> list[int]:
        found = []
        for number, outcomes in enumerate(of_cells):
            task = Task(f"jax/call/{kind}_{number}/cpu-1dev", "jax", Topology("cpu", 1), 60.0)
            results[task.id] = [*outcomes]
            concluded = run_with_second_chance(task, runner, known)
            found.append(concluded.attempts)
            by_chance = good in outcomes and outcomes[0] is not good
            assert (concluded.outcome.verdict is Verdict.FLAKE) is by_chance
        return found

    def fails(anomaly: str, number: int = 0) -> Outcome:
        return Outcome(Verdict.FAIL, Stage.CALLBACK, f"{anomaly}: cpu:0 ran #{number}", anomaly=anomaly)

    before: list[Task] = []
    monkeypatch.setattr(CellRunner, "run", lambda *arguments: (outcome(*arguments), before))
    monkeypatch.setattr(CellRunner, "run_alone", outcome)
    known = Expectations(read_entries(ENTRY.format("jax/call/listed*"), "cpu.toml"))
    runner, good = CellRunner(tmp_path / "log"), Outcome(Verdict.PASS)
    lost, order = ([[fails(kind, cell), fails(kind)] for cell in range(5)] for kind in ("lost", "order"))
    assert attempts("fails", *lost) == [2, 2, 2, 1, 1]
    assert attempts("by_chance", [fails("order"), good], *order) == [2] * 6
    alike, other = (
        [Outcome(Verdict.FAIL, Stage.TRACE, f"an error that begins like others of {name}")] * 2 for name in "ab"
    )
    assert attempts("begins_alike", *[alike] * 4, other) == [2, 2, 2, 1, 2]
    assert attempts("listed", *[[good, good]] * 5) == [2] * 5
    refused = Outcome(Verdict.UNSUPPORTED, Stage.LOWER, "no rule", cause="no rule")
    assert attempts("refused", [refused, refused], [refused]) == [2, 1]
    # Other cells of its process may be the cause of a crash, whose words are those of all crashes.
    crash = Outcome(Verdict.CRASH, Stage.CALLBACK, "the process ended with SIGSEGV", signal="SIGSEGV")
    assert attempts("crash", *[[crash, crash]] * 5) == [2, 2, 2, 1, 1]
    before.append(Task("jax/call/before/cpu-1dev", "jax", Topology("cpu", 1), 60.0))
    assert attempts("after_others", [crash, crash], [crash, good, crash]) == [2, 3]


def test_a_flag_that_xla_does_not_know_is_left_out(tmp_path: Path) -> None:
    """XLA ends a process over it; the suite is for releases to come, too."""
    runner = CellRunner(tmp_path / "log", _quick=("--xla_no_such_flag=false", "--xla_backend_optimization_level=0"))
    for number, program in enumerate(("jit", "eager")):
        outcome, _ = runner.run(Task(f"hostcb/id_tap/{program}/cpu-1dev", "hostcb", Topology("cpu", 1), 60.0 + number))
        assert outcome.verdict is Verdict.PASS
    runner.finish()
    assert runner.take_stats().process_starts == 2, "one that did not start, and one for both cells"


# A run that goes on from its journal.

CELL, OTHER = "hostcb/call/eager/cpu-1dev", "hostcb/id_tap/eager/cpu-1dev"
PASS, FAIL = Outcome(Verdict.PASS, seconds=0.5), Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: it", anomaly="lost")
PASSED, UNLISTED = Conclusion(PASS), Expectations()
HEADER: dict[str, Any] = {"selection": "a", "shard": None, "versions": {"jax": "0.12.0"}, "expectations": "none"}
HEADER["options"] = {"deadline": 60.0, "repeat": 1}
BEGIN, BAD = {"event": "begin", "cell": CELL}, {"event": "end", "cell": CELL, "outcome": FAIL.as_json()}


def journal(folder: Path, *lines: dict[str, Any], torn: str = "", before: Past = Past()) -> Path:
    path = folder / "journal-cpu.jsonl"
    begin(path, HEADER, before)
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.write(torn)
    return path


def past(path: Path, header: dict[str, Any] = HEADER) -> Past:
    return past_of(path, header, UNLISTED, [CELL, OTHER])


def concluded(cell: str, conclusion: Conclusion = PASSED) -> dict[str, Any]:
    return {"event": "concluded", "cell": cell, **conclusion.as_json()}


def test_conclusions_stay_and_what_was_in_flight_runs_again(tmp_path: Path) -> None:
    """A bad first run without a conclusion is not forgotten."""
    flake = Conclusion(replace(FAIL, verdict=Verdict.FLAKE), 3, ("before", "that"))
    lines = [{"event": "start", "topology": "cpu-1dev", "run_info": {"jax": "0.12.0"}}]
    lines += [BEGIN | {"cell": OTHER}, BAD | {"cell": OTHER}, concluded(OTHER, flake)]
    lines += [{"event": "problem", "words": "cpu-1dev: hang"}, BEGIN]
    found = past(journal(tmp_path, *lines, torn='{"event": "end", "cell": "hostcb/ca'))
    assert found.conclusions == {OTHER: flake}
    assert (found.flights, found.firsts, found.given_up) == ({CELL: 1}, {}, {})
    assert (found.run_info, found.process_starts) == ({"cpu-1dev": {"jax": "0.12.0"}}, 1)
    assert found.problems == ("cpu-1dev: hang",)
    assert [found.with_earlier(one, PASSED, UNLISTED).attempts for one in (CELL, OTHER)] == [2, 1]
    found = past(journal(tmp_path, BEGIN, BAD, BEGIN))
    assert (found.flights, found.firsts) == ({CELL: 1}, {CELL: FAIL})
    good = found.with_earlier(CELL, PASSED, UNLISTED)
    assert (good.outcome.verdict, good.attempts) == (Verdict.FLAKE, 3)
    again = found.with_earlier(CELL, Conclusion(FAIL, attempts=2), UNLISTED)
    assert (again.outcome, again.attempts) == (FAIL, 4)


def test_a_cell_that_is_in_flight_again_and_again_is_given_up(tmp_path: Path) -> None:
    found = Past()
    for flights in range(1, MOST_FLIGHTS + 1):
        # As `--resume` does it.
        found = past(journal(tmp_path, BEGIN, before=found))
        assert found.flights == {CELL: flights}
    (given_up,) = found.given_up.values()
    assert (given_up.outcome.verdict, given_up.attempts) == (Verdict.MISSING, MOST_FLIGHTS)


def test_what_cannot_go_on(tmp_path: Path) -> None:
    """Another run, none, and one that has finished."""
    both, finished = [concluded(cell) for cell in (CELL, OTHER)], {"event": "finished"}
    changes: dict[str, dict[str, Any]] = {
        "was begun with other cells": {"selection": "b"},
        "with other versions: jax was 0.12.0, and is 0.10.2": {"versions": {"jax": "0.10.2"}},
        "with other options: deadline was 60.0, and is 5.0": {"options": {"deadline": 5.0, "repeat": 1}},
        "with other known failures": {"expectations": "some"},
    }
    for words, changed in changes.items():
        with pytest.raises(ResumeError, match=words):
            past(journal(tmp_path), HEADER | changed)
    # The report of this one was not written.
    assert len(past(journal(tmp_path, *both)).conclusions) == 2
    with pytest.raises(ResumeError, match="has finished"):
        past(journal(tmp_path, *both, finished))
    # After an interrupt there is something left.
    assert len(past(journal(tmp_path, both[0], finished)).conclusions) == 1


@pytest.mark.contract("C43")
def test_one_run_holds_a_folder(tmp_path: Path, capsys: Capture) -> None:
    holder = f"process {os.getpid()} on "
    with FolderLock(tmp_path) as lock:
        lock.acquire()
        with pytest.raises(CommandError, match=rf"{tmp_path}: {holder}.*--results"):
            FolderLock(tmp_path).__enter__()
        assert commands.main(["mutants", "-k", "lost", "--results", str(tmp_path)]) == 2
        assert f"ERROR: another run writes into {tmp_path}: {holder}" in capsys.readouterr().err


@pytest.mark.contract("C42")
def test_a_killed_run_is_not_lost_to_one_without_resume(tmp_path: Path, capsys: Capture) -> None:
    """One that is killed before its first cell leaves it as it was; one that begins a cell keeps its journal."""
    options = RunOptions(depth="run", cells=(CELL, OTHER), results=tmp_path)

    def killed(*lines: dict[str, Any], resume: bool = False) -> list[str]:
        """The cells of a run that is killed after these lines of its journal."""
        prepared = preparation.prepare(replace(options, resume=resume))
        setup = prepared.setup(1)
        with setup.journal.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        assert prepared._journal
        prepared._journal.close()
        return [task.id for task in setup.tasks]

    killed(BEGIN, concluded(CELL))
    assert killed() == killed() == [CELL, OTHER]
    assert killed(resume=True) == [OTHER]
    killed(BEGIN)
    assert killed(resume=True) == [CELL, OTHER]
    assert f"its journal is {tmp_path / 'journal-cpu.1.last'}\n" in capsys.readouterr().err
    assert json.loads((tmp_path / "journal-cpu.1.last").read_text().splitlines()[-1])["cell"] == CELL


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """kill -9 while a cell is in flight; a second run is refused as long as the first one lives, and not after."""
    chosen = cells(f"{FAKES}:GOOD", "id_tap", "call", "call_no_result")
    blocking = cells(f"{FAKES}:BLOCKS_FIRST_TIME", "call")
    arguments = ["-n", "1", "--deadline=1000", f"--expectations={os.devnull}", *chosen, *blocking]
    with suite_runs.blocked(tmp_path) as begun:
        process = suite_runs.start(tmp_path, *arguments)
        worker = begun(process)
    second = suite_runs.run(tmp_path, *arguments)
    assert second.returncode == 2
    assert f"process {process.pid} on" in second.stderr
    process.kill()
    process.communicate()
    assert suite_runs.ended(worker), "the worker process outlived the run"
    assert not (tmp_path / "results" / "conformance-cpu.json").exists()

    resumed = suite_runs.run(tmp_path, *arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    report = suite_runs.report_in(tmp_path / "results")
    found = {f"--cell={cell['id']}": (cell["verdict"], cell["attempts"]) for cell in report["cells"]}
    assert found == {**dict.fromkeys(chosen, ("pass", 1)), blocking[0]: ("pass", 2)}
    begins = suite_runs.journal_in(tmp_path / "results", "begin")
    assert [f"--cell={event['cell']}" for event in begins] == blocking
    # The environment of cells that did not run again is there, too.
    assert report["run_info"].keys() == {"cpu-1dev"}
