"""The engine: whatever cells do to processes, every cell is reported, and the run ends."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.engine.cell_runner import CellRunner
from conformance.engine.journal import Journal
from conformance.engine.tasks import Task, in_running_order
from conformance.oracle.verdicts import Verdict
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C4")

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CALLBACKS = ("id_tap", "call", "io_callback", "debug_callback")
DEADLINE = 120.0
"""Far beyond what a run of a few cells takes, and below that of a cell that hangs in it."""

EXPECTATION = """
[[expect]]
cells = "{cells}"
verdict = "fail"
stage = "callback"
reason = "planted"
link = "https://example.org/1"
since = "2026-01-01"
"""


def cells(implementation: str, *callbacks: str) -> list[str]:
    return [f"--cell={implementation}/{callback}/eager/cpu-1dev" for callback in callbacks]


def start(folder: Path, command: Sequence[str], arguments: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "ENGINE_FAKES": str(folder)}
    # With these, pytest puts colors into the text in which tests look for words.
    inherited = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PY_COLORS")}
    return subprocess.Popen(
        [sys.executable, "-m", *command, f"--results={folder / 'results'}", *arguments],
        cwd=folder,
        env=inherited | own | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return end(start(folder, ["conformance", "run"], arguments, **environment))


def end(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        output, errors = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def report_in(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "results" / "conformance-cpu.json").read_text())
    return report


def verdicts_in(folder: Path) -> dict[str, str]:
    return {cell["id"].split("/")[1]: cell["verdict"] for cell in report_in(folder)["cells"]}


def test_crash_and_hang_cost_one_cell_each(tmp_path: Path) -> None:
    """In xdist's processes; test_runner.py has both without them."""
    crashing = cells("implementation_fakes:DIES_IN_CALL", "id_tap", "call")
    hanging = cells("implementation_fakes:BLOCKS_IN_CALL", "call", "call_no_result")
    ended = run(tmp_path, "-n", "2", "--deadline=5", *crashing, *hanging)
    assert ended.returncode == 1, ended.stderr
    found = {cell["id"].split(":")[1]: (cell["verdict"], cell["attempts"]) for cell in report_in(tmp_path)["cells"]}
    assert found == {
        "DIES_IN_CALL/id_tap/eager/cpu-1dev": ("pass", 1),
        "DIES_IN_CALL/call/eager/cpu-1dev": ("crash(SIGABRT)", 2),
        "BLOCKS_IN_CALL/call/eager/cpu-1dev": ("hang", 2),
        "BLOCKS_IN_CALL/call_no_result/eager/cpu-1dev": ("pass", 1),
    }


def test_pytest_process_that_dies_costs_no_cell(tmp_path: Path) -> None:
    ended = run(tmp_path, "-n", "2", *cells("engine_fakes:KILLS_PYTEST", "id_tap", "call", "call_no_result"))
    assert set(verdicts_in(tmp_path).values()) == {"pass"}, ended.stderr
    # All is well with the cells, and yet something went wrong.
    assert ended.returncode == 1
    (problem,) = report_in(tmp_path)["problems"]
    assert problem.startswith("a pytest process ended while it ran engine_fakes:KILLS_PYTEST/call/eager/cpu-1dev")


@pytest.mark.usefixtures("sigint_reaches_programs")
@pytest.mark.parametrize(
    ("workers", "number", "whole_group"),
    [
        ("1", signal.SIGTERM, False),
        ("2", signal.SIGINT, True),
        pytest.param("2", signal.SIGINT, False, marks=pytest.mark.thorough),
    ],
)
def test_interrupt_ends_at_once_and_keeps_the_conclusions(
    tmp_path: Path, workers: str, number: signal.Signals, whole_group: bool
) -> None:
    blocked = tmp_path / "blocked"
    os.mkfifo(blocked)
    # Of two processes the first gets two cells and the second the others, so that one is over when the other begins.
    chosen = [*cells("implementation_fakes:GOOD", "id_tap", "call"), *cells("engine_fakes:BLOCKS", "id_tap", "call")]
    process = start(tmp_path, ["conformance", "run"], ["-n", workers, "--deadline=1000", *chosen])
    # Opening waits for the cell. Read and write: it must not be missed either if the run ends before.
    with open(os.open(blocked, os.O_RDWR | os.O_NONBLOCK)) as pipe:
        ready, _, _ = select.select([pipe], [], [], DEADLINE)
        assert ready, end(process)
        worker = os.pidfd_open(int(pipe.read(16)))
    if whole_group:
        # As a terminal does it.
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    ended = end(process)
    assert ended.returncode == 1, ended.stderr
    verdicts = {cell["id"]: cell["verdict"] for cell in report_in(tmp_path)["cells"]}
    assert verdicts["engine_fakes:BLOCKS/id_tap/eager/cpu-1dev"] == "pass"
    assert verdicts["engine_fakes:BLOCKS/call/eager/cpu-1dev"] == "missing"
    assert "the run was interrupted" in report_in(tmp_path)["problems"]
    assert "PROBLEM: the run was interrupted" in ended.stdout
    gone, _, _ = select.select([worker], [], [], DEADLINE)
    assert gone, "the worker process outlived the run"


@pytest.mark.contract("C7")
def test_flake_by_chance_and_flake_by_preceding_cells(tmp_path: Path) -> None:
    by_chance = cells("engine_fakes:FAILS_FIRST_TIME", "id_tap", "call")
    by_preceding = cells("implementation_fakes:FAILS_AFTER_ANOTHER", "id_tap", "call")
    ended = run(tmp_path, "-n", "1", *by_chance, *by_preceding)
    assert ended.returncode == 1, ended.stderr
    flakes = {cell["id"].split("/")[0]: cell for cell in report_in(tmp_path)["cells"] if cell["verdict"] != "pass"}
    assert {cell["verdict"] for cell in flakes.values()} == {"flake"}
    assert {cell["attempts"] for cell in flakes.values()} == {3}
    chance, preceding = flakes["engine_fakes:FAILS_FIRST_TIME"], flakes["implementation_fakes:FAILS_AFTER_ANOTHER"]
    assert chance["witness"].startswith("fail after other cells, pass alone, pass after them again: by chance: lost")
    assert "fail after them again: whenever these run before it" in preceding["witness"]
    assert "id_tap/eager/cpu-1dev --cell" in preceding["reproduce"]


@pytest.mark.contract("C46")
def test_pytest_sees_strict_expected_failures(tmp_path: Path) -> None:
    """With its own options: -rA and -v for its terminal, XML of JUnit, -k among the cells."""
    expectations = tmp_path / "cpu.toml"
    loses, good = "implementation_fakes:LOSES_A_CALLBACK", "implementation_fakes:GOOD"
    listed = (f"{loses}/id_tap/*", f"{good}/call/*")
    expectations.write_text("".join(EXPECTATION.format(cells=pattern) for pattern in listed))
    chosen = [*cells(loses, "id_tap", "call", "call_no_result"), *cells(good, "id_tap", "call")]
    of_pytest = ["--", "-k", "not call_no_result", "-v", "-rA", "--tb=short", "--xfail-tb", "--junit-xml=junit.xml"]
    ended = run(tmp_path, "-n", "1", f"--expectations={expectations}", *chosen, *of_pytest)
    assert ended.returncode == 1, ended.stdout
    assert "2 failed, 1 passed, 1 deselected, 1 xfailed" in ended.stdout
    assert "XFAILURES" in ended.stdout
    assert "items.py" not in ended.stdout, "the stack of the suite says nothing about a cell"
    assert "unexpected pass: pass (expected fail)" in ended.stdout
    assert "unexpected: fail at callback (expected pass)\nlost: cpu:0 never ran" in ended.stdout
    junit = (tmp_path / "junit.xml").read_text()
    assert 'failures="2" skipped="1" tests="4"' in junit
    assert f'classname="cells" name="{good}/id_tap/eager/cpu-1dev"' in junit
    # The cell that pytest has left out is not in the results.
    statuses = {"/".join(cell["id"].split("/")[:2]): cell["status"] for cell in report_in(tmp_path)["cells"]}
    assert statuses == {
        f"{loses}/id_tap": "known_failure",
        f"{loses}/call": "unexpected",
        f"{good}/id_tap": "as_expected",
        f"{good}/call": "unexpected_pass",
    }


@pytest.mark.contract("C46")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.thorough), "2"])
def test_pytest_stops_and_runs_the_last_failures(tmp_path: Path, workers: str) -> None:
    """What did not run for -x is MISSING, and the run fails; --lf runs what has failed."""
    chosen = [*cells("implementation_fakes:LOSES_A_CALLBACK", "call"), *cells("implementation_fakes:GOOD", *CALLBACKS)]
    arguments = ["-n", workers, f"--expectations={os.devnull}", *chosen]
    ended = run(tmp_path, *arguments, "--", "-x")
    assert ended.returncode == 1, ended.stderr
    stopped = report_in(tmp_path)
    verdicts = {cell["id"]: cell["verdict"] for cell in stopped["cells"]}
    assert len(verdicts) == 1 + len(CALLBACKS)
    assert "missing" in verdicts.values()
    assert "the run stopped after 1 unexpected results" in stopped["problems"][0]
    again = run(tmp_path, *arguments, "--", "--lf")
    assert (again.returncode, len(report_in(tmp_path)["cells"])) == (1, 1), again.stderr


@pytest.mark.contract("C46")
def test_options_that_pytest_refuses_are_an_error(tmp_path: Path) -> None:
    """And the results of the run before stay."""
    chosen = cells("implementation_fakes:GOOD", "id_tap")
    assert run(tmp_path, "-n", "1", *chosen).returncode == 0
    before = report_in(tmp_path)
    ended = run(tmp_path, "-n", "1", *chosen, "--", "--no-such-option")
    assert (ended.returncode, report_in(tmp_path)) == (2, before)
    assert "ERROR: pytest refuses the options after `--`" in ended.stderr
    assert (tmp_path / "results" / "worker-0.log").exists()


@pytest.mark.contract("C70")
def test_progress_is_shown_without_a_terminal(tmp_path: Path) -> None:
    """How many cells there are comes before the first one, and how many are done with every line."""
    chosen = cells("implementation_fakes:LOSES_A_CALLBACK", *CALLBACKS)
    ended = run(tmp_path, "-n", "2", *chosen)
    first, then, *_, last = ended.stderr.splitlines()
    assert first.startswith("4 cells on 2 workers;")
    assert re.match(r"1/4 cells, \d not as expected$", then), "the first result is shown at once"
    found = re.match(r"4/4 cells, (\d) not as expected", last)
    assert found, ended.stderr
    assert f" {found[1]} unexpected result" in ended.stdout
    assert "..." not in ended.stdout, "neither dots nor xdist's own lines"


def test_surroundings_have_no_say(tmp_path: Path) -> None:
    """Neither the user's own pytest nor plugins that happen to be installed."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not meant for cells')")
    surroundings = {"PYTEST_ADDOPTS": "--collect-only", "PYTEST_PLUGINS": "no_such_plugin"}
    job = tmp_path / "summary.md"
    job.write_text("What the job said before.\n")
    surroundings["GITHUB_STEP_SUMMARY"] = str(job)
    ended = run(tmp_path, "-n", "2", *cells("implementation_fakes:GOOD", "id_tap", "call"), **surroundings)
    assert ended.returncode == 0, ended.stderr
    assert verdicts_in(tmp_path) == {"id_tap": "pass", "call": "pass"}
    # But a CI system gets to know.
    assert job.read_text().startswith("What the job said before.\n# Conformance on cpu: as expected\n")


def test_flag_that_xla_does_not_know_is_left_out(tmp_path: Path) -> None:
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
    slow = [Task(name, "hostcb", one, 60.0, isolated=True) for name in "abcd"]
    assert [task.id for task in in_running_order(slow, 2)] == ["a", "c", "b", "d"]
