"""A killed run goes on, one run has a folder at a time, and a run that tests nothing leaves the last results."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import suite_runs
from suite_runs import Capture, Patch, cells

from conformance.cli import commands
from conformance.engine import preparation
from conformance.engine.conclusions import Conclusion
from conformance.engine.pytest_cells import exclusive
from conformance.engine.results_folder import locking
from conformance.engine.results_folder.locking import FolderLock
from conformance.engine.results_folder.resuming import MOST_FLIGHTS, Past, ResumeError, begin, past_of
from conformance.expectations.entries import Expectations
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning import selection as selecting
from conformance.spec.errors import CommandError

pytestmark = pytest.mark.contract("C42")

CELL, OTHER = "hostcb/call/eager/cpu-1dev", "hostcb/id_tap/eager/cpu-1dev"
PASS, FAIL = Outcome(Verdict.PASS, seconds=0.5), Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: it", anomaly="lost")
PASSED, UNLISTED = Conclusion(PASS), Expectations()
HEADER = {
    **{"selection": "a", "shard": None, "versions": {"jax": "0.12.0"}, "expectations": "none"},
    "options": {"deadline": 60.0, "repeat": 1},
}

# The journal.

BEGIN, BAD = {"event": "begin", "cell": CELL}, {"event": "end", "cell": CELL, "outcome": FAIL.as_json()}


def journal(folder: Path, *lines: dict[str, Any], torn: str = "") -> Path:
    path = folder / "journal-cpu.jsonl"
    begin(path, HEADER, Past())
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
    assert found.with_earlier(CELL, PASSED, UNLISTED) == Conclusion(PASS, attempts=2)
    assert found.with_earlier(OTHER, PASSED, UNLISTED) == PASSED
    found = past(journal(tmp_path, BEGIN, BAD, BEGIN))
    assert (found.flights, found.firsts) == ({CELL: 1}, {CELL: FAIL})
    good = found.with_earlier(CELL, PASSED, UNLISTED)
    assert (good.outcome.verdict, good.attempts) == (Verdict.FLAKE, 3)
    again = found.with_earlier(CELL, Conclusion(FAIL, attempts=2), UNLISTED)
    assert (again.outcome, again.attempts) == (FAIL, 4)


def test_a_cell_that_is_in_flight_again_and_again_is_given_up(tmp_path: Path) -> None:
    path = journal(tmp_path)
    for flights in range(1, MOST_FLIGHTS + 1):
        with path.open("a") as file:
            file.write(json.dumps(BEGIN) + "\n")
        found = past(path)
        assert found.flights == {CELL: flights}
        # As `--resume` does it.
        begin(path, HEADER, found)
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


# The folder.


@pytest.mark.contract("C43")
def test_one_run_holds_a_folder(tmp_path: Path, capsys: Capture) -> None:
    holder = f"process {os.getpid()} on "
    with FolderLock(tmp_path) as lock:
        lock.acquire()
        with pytest.raises(CommandError, match=rf"{tmp_path}: {holder}.*--results"):
            FolderLock(tmp_path).__enter__()
        assert commands.main(["mutants", "-k", "lost", "--results", str(tmp_path)]) == 2
        assert f"ERROR: another run writes into {tmp_path}: {holder}" in capsys.readouterr().err


@pytest.mark.contract("C43")
@pytest.mark.parametrize("platform", ["nosuch", "cpu"])
def test_the_last_results_stay(tmp_path: Path, monkeypatch: Patch, capsys: Capture, platform: str) -> None:
    """Without a device; and where what is selected means nothing, so that there is no cell."""
    old = {f"conformance-{platform}.json": "{}", f"journal-{platform}.jsonl": '{"event": "begin"}\n'}
    old["worker-0.log"] = "old"
    for name, text in old.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(selecting, "whole_plan_of", lambda *arguments: preparation.Plan((), ()))
    chosen = ["--cell", f"jax/io_callback/eager/{platform}-1dev"] if platform == "nosuch" else ["--devices", "1"]
    assert commands.main(["run", "-n", "1", "--results", str(tmp_path), *chosen]) == 2
    said = capsys.readouterr()
    assert "nothing was tested" in said.err or "still has the results of an earlier run" in said.out
    # Locks and pytest's cache are no results.
    shutil.rmtree(tmp_path / ".pytest_cache", ignore_errors=True)
    for name in (locking.NAME, exclusive.GATE, exclusive.CELLS):
        (tmp_path / name).unlink(missing_ok=True)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == old


# A whole run.


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """kill -9 while a cell is in flight; a second run is refused as long as the first one lives, and not after."""
    chosen = cells("implementation_fakes:GOOD", "id_tap", "call", "call_no_result")
    blocking = cells("engine_fakes:BLOCKS_FIRST_TIME", "call")
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
