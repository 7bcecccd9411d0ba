"""C60: a campaign goes on where it stopped, its report is honest, and its sample finds a mutant that survives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.engine.tasks import Task
from conformance.reports.journal import Journal
from conformance.spec.topology import Topology
from mutation import coverage, equivalents, sample
from mutation.campaigning import results_in
from mutation.commands import all_mutants, main
from mutation.coverage import IMPORT, Coverage, Reached, StaleCoverageError
from mutation.equivalents import EquivalentsError
from mutation.mutant import Mutant, mutants_in
from mutation.order import Kills, Rarity, in_order
from mutation.overlay import PACKAGE, PROJECT, environment_with, make_overlay
from mutation.report import report
from mutation.trial import KILLED, SURVIVED, UNREACHED, Result, Until, has_ended, untried

pytestmark = pytest.mark.contract("C60")

(MUTANT,) = (one for one in mutants_in("x = f(\n    a < 1,\n)", "toy.py") if one.kind == "comparison")
ONE, TWO, THREE = (f"hostcb/{name}/cpu-8dev" for name in ("id_tap/jit", "id_tap/jit.scan", "call/case.raises.jit"))
TEST = "tests/unit/test_mutation.py::test_kills_by_a_test_that_is_gone_are_an_error"


def reached(cell: str, *lines: int, module: str = "toy.py", seconds: float = 1.0) -> Reached:
    return Reached(cell, seconds, {module: frozenset(lines)} if lines else {})


def result(name: str, verdict: str, **fields: Any) -> Result:
    return replace(untried(MUTANT), id=name, verdict=verdict, **fields)


# What reaches a line ---------------------------------------------------------------------------------------------


def test_cells_that_reach_the_change_come_before_those_that_reach_its_statement() -> None:
    cells = {ONE: reached(ONE, 1), TWO: reached(TWO, 1, 2), THREE: reached(THREE, 7)}
    assert [one.id for one in Coverage(cells).reaching(MUTANT)] == [TWO]
    del cells[TWO]
    assert [one.id for one in Coverage(cells).reaching(MUTANT)] == [ONE]
    del cells[ONE]
    assert Coverage(cells).reaching(MUTANT) == []


def test_a_line_of_the_import_is_reached_by_the_cells_of_its_module() -> None:
    cells = {IMPORT: reached(IMPORT, 1, 2), ONE: reached(ONE, 9), TWO: reached(TWO)}
    assert [one.id for one in Coverage(cells).reaching(MUTANT)] == [ONE]
    del cells[ONE]
    assert [one.id for one in Coverage(cells).reaching(MUTANT)] == [TWO], "every cell imports it"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    package, path = tmp_path / "toy", tmp_path / "lines.jsonl"
    package.mkdir()
    (package / "toy.py").write_text("x = 1")
    own = reached(TWO, 1, 8).with_(reached(TWO, 1, module="__init__.py"))
    lines: list[dict[str, Any]] = [{"source": coverage.fingerprint(package)}]
    lines += [reached(ONE, 1, 2, 3, 7).as_json(), own.as_json(), {"id": THREE, "left_out": "fail: it fails"}]
    lines += [reached(IMPORT, 1).as_json(), reached(IMPORT, 2).as_json()]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = coverage.load(path, package)
    assert found.reached[ONE].lines == {"toy.py": {1, 2, 3, 7}} and found.left_out == {THREE: "fail: it fails"}
    assert found.reached[IMPORT].lines == {"toy.py": {1, 2}}
    assert found.reached[TWO].lines["toy.py"] == {8}, "its own process has imported the package"
    (package / "toy.py").write_text("x = 2")
    with pytest.raises(StaleCoverageError, match="record"):
        coverage.load(path, package)


# The order of the cells ------------------------------------------------------------------------------------------


def task(cell: str, isolated: bool = False) -> Task:
    return Task(cell, "hostcb", Topology("cpu", 8), 60.0, isolated)


def test_each_sort_of_cell_comes_once_before_any_comes_twice() -> None:
    cells = [reached(ONE, seconds=1.0), reached(TWO, seconds=2.0), reached(THREE, seconds=3.0)]
    tasks = {cell: task(cell) for cell in (ONE, TWO, THREE)}
    rarity = Rarity(cells)
    assert [each.id for each in in_order(cells, tasks, "toy.py", Kills(), rarity)] == [ONE, THREE, TWO]
    kills = Kills()
    kills.add(TWO, "toy.py")
    assert [each.id for each in in_order(cells, tasks, "toy.py", kills, rarity)] == [TWO, THREE, ONE]


def test_a_cell_that_reaches_what_few_others_do_comes_first() -> None:
    cells = [reached(ONE, 1), reached(TWO, 1), reached(THREE, 1, 2)]
    tasks = {cell: task(cell) for cell in (ONE, TWO, THREE)}
    assert in_order(cells, tasks, "toy.py", Kills(), Rarity(cells))[0].id == THREE


def test_cells_with_a_process_of_their_own_come_after_the_others_of_a_block() -> None:
    tasks = {ONE: task(ONE, isolated=True), THREE: task(THREE)}
    cells = [reached(ONE, seconds=0.1), reached(THREE, seconds=9.0)]
    assert [each.id for each in in_order(cells, tasks, "toy.py", Kills(), Rarity(cells))] == [THREE, ONE]


# The source that processes find ----------------------------------------------------------------------------------


def test_processes_find_the_changed_module_and_all_others(tmp_path: Path) -> None:
    package = tmp_path / "real" / "toy"
    (package / "inner").mkdir(parents=True)
    for name, source in {
        "__init__.py": "",
        "other.py": "x = 1",
        "inner/__init__.py": "",
        "inner/one.py": "y = 1",
    }.items():
        (package / name).write_text(source)
    overlay = make_overlay(tmp_path / "overlay", "inner/one.py", "y = 2", package)
    program = "import toy.other, toy.inner.one; print(toy.other.x, toy.inner.one.y)"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment_with(overlay, os.environ),
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout == "1 2\n"
    assert (package / "inner" / "one.py").read_text() == "y = 1"


# Forks, the journal, the lists -----------------------------------------------------------------------------------


def of_process(program: str) -> str:
    """What a process without JAX's threads prints: this one may have them, and must not fork."""
    command = [sys.executable, "-c", f"import os\nfrom mutation.forks import ForkEndedError, in_forks\n{program}"]
    root = str(PACKAGE.parent)
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_jobs_run_in_forks_some_at_a_time() -> None:
    program = """
me = os.getpid()
print(sorted(in_forks(range(5), 2, lambda number: [number * number, os.getpid() != me])))
"""
    assert of_process(program) == f"{[(number, [number * number, True]) for number in range(5)]}\n"


def test_a_job_whose_process_ends_is_no_result() -> None:
    program = """
try:
    list(in_forks([0], 1, lambda _: os._exit(3)))
except ForkEndedError as error:
    print(error)
"""
    assert "the process for 0 ended with exit 3" in of_process(program)


def test_a_journal_goes_on_after_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "results" / "journal.jsonl"
    assert results_in(path) == {}
    first, second = result("one", SURVIVED, passed=(ONE,)), result("two", KILLED, killer=TWO)
    for *results, torn in ((first, '{"id": "half'), (second, replace(first, passed=(ONE, TWO)), "")):
        with closing(Journal(path)) as journal:
            for each in results:
                journal.write(**each.as_json())
        with path.open("a") as file:
            file.write(torn)
    assert results_in(path) == {"one": replace(first, passed=(ONE, TWO)), "two": second}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[equivalent]\ngone = "a reason"', "the source has no mutant 'gone' any more"),
        ('[equivalent]\none = ""', "'one' needs one line that says why"),
        ("[equivalent", "is not TOML"),
    ],
)
def test_a_list_of_equivalents_that_is_not_true_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "equivalent.toml"
    assert equivalents.load(path, {"one"}) == {}
    path.write_text('[equivalent]\none = "a reason"')
    assert equivalents.load(path, {"one"}) == {"one": "a reason"}
    path.write_text(text)
    with pytest.raises(EquivalentsError, match=words):
        equivalents.load(path, {"one"})


def test_the_lists_and_the_kills_are_of_this_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 600
    known = mutants()
    ids = {mutant.id for mutant in known}
    assert equivalents.load(equivalents.FILE, ids)
    kills = sample.load()
    assert kills.keys() <= ids
    assert len(sample.drawn(known, kills, sample.COUNT, 0)) == sample.COUNT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["try", "-k", "no such", "--killer", "hostcb/id_tap/jit/cpu-1dev"],
            "ERROR: no mutant has 'no such' in its id",
        ),
        (["try", "-k", "_runtime/queue/queues", "--killer", "CELL"], "ERROR: 'CELL' is no cell id"),
    ],
)
def test_a_name_of_nothing_is_an_error(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(words)


def mutants() -> list[Mutant]:
    return all_mutants()


# Tests as killers ------------------------------------------------------------------------------------------------


def test_kills_by_a_test_that_is_gone_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "kills.json"
    path.write_text(json.dumps({"one": TEST, "two": ONE}))
    assert sample.load(path) == {"one": TEST, "two": ONE}
    path.write_text(json.dumps({"one": TEST + "_gone"}))
    with pytest.raises(sample.KillsError, match="no such test"):
        sample.load(path)


def test_kills_of_earlier_campaigns_stay_while_the_source_has_their_mutants(tmp_path: Path) -> None:
    path = tmp_path / "kills.json"
    path.write_text(json.dumps({"one": ONE, "two": TWO, "gone": TWO}))
    results = [
        result("one", KILLED, killer=TEST, tried=1, seconds=1.0),
        result("two", SURVIVED, tried=9),
        result("slow", KILLED, killer=TWO, tried=1, seconds=100.0),
        result("locks", KILLED, killer=TWO, tried=1, seconds=1.0, kind="drop lock"),
    ]
    sample.save(results, {"one", "two", "slow", "locks"}, path)
    assert sample.load(path) == {"one": TEST, "two": TWO}


# The report ------------------------------------------------------------------------------------------------------


def test_the_report_counts_what_nothing_reaches_as_not_killed() -> None:
    results = [
        result("one", KILLED, killer=ONE),
        result("two", SURVIVED, tried=3, reaching=5),
        result("three", UNREACHED, kind="drop copy"),
        result("four", SURVIVED),
    ]
    text = report(results, {"four": "nobody reads it"}, 9, ())
    assert "4 of 9 mutants were tried: 1 are killed (0 by a test), 1 survived, 1 are on lines" in text
    assert "1 are equivalent. Killed of those not equivalent: 33.3 %." in text
    assert "| `toy.py` | 0/1 | 1/2 | 1/3 |" in text and "| all | 0/1 | 1/2 | 1/3 |" in text
    assert "(3 of 5 cells and tests; then its time was over)" in text
    assert "a < 1 → (a <= 1)`: nobody reads it" in text


def test_a_mutant_that_is_killed_is_not_equivalent() -> None:
    assert "1 are killed (0 by a test), 0 survived, 0 are on" in report(
        [result("one", KILLED)], {"one": "nobody reads it"}, 1, ()
    )


def test_the_report_names_faults_that_kill_nothing_that_others_do_not() -> None:
    test = TEST
    of_a_tap, loop = THREE.replace("call", "id_tap"), ONE.replace("jit", "scan")
    results = [
        result("one", KILLED, killer=THREE, killers=(THREE,)),
        result("two", KILLED, killer=of_a_tap, killers=(of_a_tap, THREE)),
        result("three", KILLED, killer=THREE, killers=(THREE, ONE)),
        result("four", KILLED, killer=loop, killers=(loop, ONE)),
        result("five", KILLED, killer=test, killers=(test,)),
        result("six", KILLED, killer=ONE),
    ]
    text = report(results, {}, 6, [ONE, TWO, THREE, of_a_tap, loop])
    assert "The trials of 5 killed mutants went on" in text
    assert "1 cases and programs are the only ones that notice a mutant:\n\n- 2 `case.raises`\n" in text
    assert text.endswith("The other 2 kill none of these mutants that no other kills:\n\n- `jit`\n- `scan`\n")


@pytest.mark.parametrize(
    ("until", "killers", "ended"),
    [
        (Until.FIRST, (), False),
        (Until.FIRST, (ONE,), True),
        (Until.ANOTHER, (), False),
        (Until.ANOTHER, (ONE,), False),
        (Until.ANOTHER, (ONE, THREE), True),
        (Until.ANOTHER, (TEST,), True),
        (Until.ALL, (ONE, THREE), False),
    ],
)
def test_a_trial_ends_at_the_kill_that_is_asked_for(until: Until, killers: tuple[str, ...], ended: bool) -> None:
    assert has_ended(until, killers) == ended


# With hostcb -----------------------------------------------------------------------------------------------------


def test_the_sample_kills_a_mutant_and_says_when_one_survives(tmp_path: Path) -> None:
    kills = json.loads(sample.KILLS.read_text())
    known = [mutant.id for mutant in mutants() if mutant.id in kills and mutant.module == "_api/host_callback.py"]
    command = [sys.executable, "-m", "mutation", "sample", "-n", "1", "--results", str(tmp_path), "-k", known[0]]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "1 of 1 mutants are killed"), ended


def test_a_mutant_survives_a_cell_that_does_not_reach_it(tmp_path: Path) -> None:
    """The end of a worker counts as a kill, so a worker that could not take any cell would kill every mutant."""
    kills = json.loads(sample.KILLS.read_text())
    of_meshes = next(mutant for mutant, killer in kills.items() if "case.one_of_its_devices.pmap" in killer)
    command = [sys.executable, "-m", "mutation", "try", "-n", "1", "--results", str(tmp_path), "-k", of_meshes]
    command += ["--killer", "hostcb/id_tap/jit/cpu-1dev"]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=300)
    assert "survived: 1 of 1" in ended.stdout, ended
