"""The searches for the first bad release or commit, which never guess, and for the smallest cell that fails."""

from __future__ import annotations

import random
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite_runs import Capture, Patch

from conformance.bisecting.findings import exit_code, report
from conformance.bisecting.search import Answer, Kind, Samples, answers
from conformance.bisecting.subjects import Sample, sample_of
from conformance.cli import minimise
from conformance.cli.bisect import _next_steps
from conformance.cli.commands import main
from conformance.engine.cell_runner import CellRunner
from conformance.minimising.failures import Counts, Step, failure_of, smallest
from conformance.minimising.steps import SIMPLER_PLACEMENTS, SIMPLER_TRANSFORMS, simpler
from conformance.model.transforms import TRANSFORMS
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import Cell, ProgramCell, parse_cell
from conformance.releases.environments import ReleaseError
from conformance.spec.configurations import PLACEMENTS
from conformance.spec.package import COMMAND

pytestmark = pytest.mark.contract("C9")


LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: cpu:0 never ran #2", anomaly="lost")
ERROR = Outcome(Verdict.FAIL, Stage.TRACE, "error: ValueError: no", anomaly="error")
PASS = Outcome(Verdict.PASS)


class Releases:
    """A line of releases, each with its rate of failure, an outcome, or None where it cannot be tested."""

    def __init__(self, line: Sequence[float | str | None], seed: int = 1) -> None:
        self.line, self.dice, self.probed, self.runs = line, random.Random(seed), list[int](), 0

    def __call__(self, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        self.probed.append(index)
        here = self.line[index]
        if here is None:
            raise ReleaseError(f"release {index} cannot be installed")
        for subject, number in runs.items():
            for _ in range(number):
                self.runs += 1
                failed = here != "pass" if isinstance(here, str) else self.dice.random() < here
                yield subject, Sample((here if isinstance(here, str) else "fail") if failed else "pass", not failed)

    def answer(self, *named: int, runs: int = 1) -> Answer:
        return answers(len(self.line), named, runs, self, {"cell": {}})["cell"]


def pairs(answer: Answer) -> list[tuple[int, int]]:
    return [(change.before, change.after) for change in answer.changes]


@given(st.integers(2, 40), st.data())
def test_the_first_bad_release_or_the_range_that_holds_it(count: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, count - 1))
    missing = data.draw(st.sets(st.integers(1, count - 2)) if count > 2 else st.just(set()))
    line = [None if index in missing else "pass" if index < first_bad else "fail" for index in range(count)]
    releases = Releases(line)
    ((before, after),) = pairs(releases.answer(0, count - 1))
    assert before < first_bad <= after
    assert (line[before], line[after]) == ("pass", "fail")
    # No release inside the range could have shown more.
    assert {*range(before + 1, after)} <= missing
    # Both ends, the halvings, and twice more for the two beside the change.
    assert missing or len(releases.probed) <= 2 + (count - 1).bit_length() + 2


@given(st.lists(st.sampled_from(["pass", "lost", "swapped", None]), min_size=1, max_size=20))
def test_what_is_found_in_the_whole_range_is_there(line: list[str | None]) -> None:
    answer = Releases(line).answer()
    testable = [index for index, outcome in enumerate(line) if outcome]
    if len(testable) < 2:
        assert answer.kind is Kind.UNTESTABLE
        return
    assert answer.ends == (testable[0], testable[-1])
    for before, after in pairs(answer):
        assert line[before] != line[after]
        assert not any(line[before + 1 : after])
    # It is found that anything changes, even if both ends are alike.
    assert answer.kind is (Kind.FOUND if len({line[index] for index in testable}) > 1 else Kind.SAME)
    # An end that was named has no other in its place.
    assert Releases([None, *line]).answer(0) == Answer(Kind.UNTESTABLE, (0,))


def test_chance() -> None:
    for seed in range(2):
        answer = Releases([0.0] * 7 + [0.3] * 6, seed).answer(0, 12, runs=320)
        ((before, after),) = pairs(answer)
        assert before < 7 <= after
        assert answer.kind is Kind.CANNOT_TELL or (before, after) == (6, 7)
    # The first of two changes between named ends.
    assert pairs(Releases(["pass", "pass", "lost", "fail", "fail"]).answer(0, 4)) == [(1, 2)]
    # A rate between both ends is like neither.
    answer = Releases([0.0, 0.1, 1.0], 5).answer(0, 2, runs=20)
    assert (answer.kind, answer.changes[0].unclear) == (Kind.CANNOT_TELL, (1,))


def test_cells_share_a_release_and_what_is_found_alike_is_reported_once() -> None:
    calls: list[tuple[int, int]] = []

    def probe(index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        calls.append((index, len(runs)))
        for subject, number in runs.items():
            failed = index >= int(subject[0])
            yield from [(subject, Sample("fail" if failed else "pass", not failed))] * number

    samples: Samples = {"3a": {}, "3b": {}, "9": {}}
    found = answers(8, (0, 7), 1, probe, samples)
    assert {subject: pairs(answer) for subject, answer in found.items()} == {"3a": [(2, 3)], "3b": [(2, 3)], "9": []}
    assert (calls[:2], len(calls)) == ([(0, 3), (7, 3)], 9)
    # What to do next is said of what was found, with the names of both sides.
    text = report(
        found, samples, [f"v{index}" for index in range(8)], steps=lambda *names: ["next: " + " ".join(names)]
    )
    assert "3a\n3b\n  FOUND: v3 is the first that fails, after v2.\n" in text
    assert [line for line in text.splitlines() if "next" in line] == ["  next: 3a v2 v3"]
    assert exit_code([*found.values()]) == 0
    assert exit_code([found["9"], Answer(Kind.CANNOT_TELL, (0, 7))]) == 3
    assert sample_of(LOST).words == "fail at callback (lost)"
    assert sample_of(Outcome(Verdict.UNSUPPORTED, None, "JAX has none", anomaly="not applicable")).untestable
    assert sample_of(Outcome(Verdict.HARNESS_ERROR, None, "Traceback\nKeyError: 1\n")).untestable


# The command `bisect`, in releases that are wheels of a folder, and in commits.

Bisect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bisect(wheels: Path, tmp_path: Path, capfd: Capture) -> Bisect:
    def run(source: str, *arguments: str) -> tuple[int, str, str]:
        (tmp_path / "script.py").write_text(source)
        folders = ["--find-links", str(wheels), "--results", str(tmp_path / "results")]
        code = main(["bisect", "--script", str(tmp_path / "script.py"), *folders, *arguments])
        return code, *capfd.readouterr()

    return run


NOTED = """\
import jax
if jax.__version__ >= '0.6.1':
    raise SystemExit(print('new'))
error = ValueError('w' * 400)
error.add_note('-' * 20)
error.add_note('For simplicity, JAX has removed its internal frames from the traceback of the following exception.')
raise error
"""


def test_the_first_release_with_another_outcome_and_those_that_cannot_be_tested(bisect: Bisect, tmp_path: Path) -> None:
    code, printed, errors = bisect(NOTED)
    assert code == 0, printed + errors
    assert "  FOUND: 0.6.1 is the first that passes, after 0.6.0." in printed
    # The error is the witness, and not JAX's note. What is cut says so.
    _, error, after = printed[printed.index("  0.6.0: exit 1, prints nothing  (3 of 3 runs)\n") :].splitlines()[:3]
    assert error.startswith("      ValueError: www") and error.endswith("w…") and len(error) == 302, error
    assert after == "  0.6.1: exit 0, prints new  (3 of 3 runs)"
    assert "what changed in JAX: https://github.com/jax-ml/jax/compare/jax-v0.6.0...jax-v0.6.1\n" in printed
    ends = "--good jax-v0.6.0 --bad jax-v0.6.1\n"
    assert f"{COMMAND} bisect --script {tmp_path}/script.py --repo CLONE --python ENV {ends}" in printed
    assert [*(tmp_path / "results").glob("environments-*")] == []
    # Nothing runs again. A process that was killed may have left half a line.
    with (tmp_path / "results" / "runs.jsonl").open("a") as journal:
        journal.write('{"run": ["0.7')
    code, again, errors = bisect(NOTED, "--resume", "--good", "0.7.0", "--bad", "0.5.3")
    assert (code, again) == (0, printed) and "trying" not in errors
    for bad, why in (("0.7.1", ""), ("0.7.2", "it needs Python 3.99 or newer: give --python 3.99\n"), ("0.6.9", "")):
        code, printed, errors = bisect("print(1)", "--good", "0.5.3", "--bad", bad)
        # Before the other one runs.
        assert (code, printed, f"JAX {bad} cannot be installed: {why}" in errors, "trying" in errors) == (
            2,
            "",
            True,
            False,
        )
    code, printed, _ = bisect("raise SystemExit(125)", "--good", "0.5.3", "--bad", "0.7.0")
    assert (code, "UNUSABLE: 0.5.3 and 0.7.0 cannot be tested" in printed) == (2, True)


def test_the_next_steps_name_the_report_of_a_known_failure_and_not_of_another_kind() -> None:
    name = "jax/io_callback_ordered/case.cond_without_results.jit/cpu-1dev"
    for words, known in (("fail at compile (error)", 1), ("fail at callback (lost)", 0)):
        samples: Samples = {name: {0: [Sample("pass", True)], 1: [Sample(words)]}}
        options = Namespace(repo=None, script=None, platform="cpu")
        steps = _next_steps(options, samples, name, "0.10.2", "0.12.0.1")
        assert steps.count("known: docs/jax-bugs/cond-without-results.md") == known
        assert steps.count("the program of that page: docs/jax-bugs/cond-without-results.py") == known


INTERRUPTS = """\
import jax, os, pathlib, signal, time
if jax.__version__ == '0.6.0' and not (marker := pathlib.Path(__file__).with_name('interrupted')).exists():
    marker.touch()
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
print('new' if jax.__version__ >= '0.6.1' else 'old')
"""


@pytest.mark.usefixtures("sigint_reaches_programs")
def test_an_interrupted_search_says_what_it_tried_and_found_and_goes_on(bisect: Bisect, tmp_path: Path) -> None:
    script, old, new = tmp_path / "script.py", "exit 0, prints old", "exit 0, prints new"
    ends = ("--good", "0.5.3", "--bad", "0.7.0")
    code, printed, errors = bisect(INTERRUPTS, *ends)
    assert (code, "--resume" in errors.splitlines()[-1]) == (130, True)
    # Of five releases, half of those in doubt are left after each try; the script has one name, which needs no line.
    assert [line for line in errors.splitlines() if line.startswith("0.")] == [
        "0.5.3: trying it, 1 run; about 3 more releases or commits to try",
        f"0.5.3: {old}",
        "0.7.0: trying it, 1 run; about 2 more releases or commits to try",
        f"0.7.0: {new}",
        "0.6.1: trying it, 1 run; about 1 more releases or commits to try",
        f"0.6.1: {new}",
        "0.6.0: trying it, 1 run",
    ]
    found = "NOT FINISHED: the outcome changes between 0.5.3 and 0.6.1."
    assert printed == f"{script}\n  {found}\n\n  0.5.3: {old}\n  0.6.1: {new}\n  0.7.0: {new}\n"
    code, printed, errors = bisect(INTERRUPTS, *ends, "--resume")
    assert (code, "FOUND: 0.6.1 is the first" in printed) == (0, True)
    assert "0.6.0: trying it, 1 run" in errors and "0.7.0: trying" not in errors


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


SCRIPT = """\
try:
    import hostcb
except SyntaxError:
    raise SystemExit(125)
print(hostcb.VALUE)
"""
FOUND = {
    (3, 6): "FOUND: {5} is the first with another outcome, after {4}.",
    (4, 0): "FOUND a range: the outcome changes between {1} and {3}; {2} could not be tested.",
    (0, 1): "NOTHING TO FIND: {0} and {1} do not differ",
    (0, 9): "has no commit 'v9'",
}


def test_the_first_commit_is_found_and_the_users_tree_is_not_touched(
    bisect: Bisect, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Of a package and a suite of its own; one commit is broken, the next and another one change what it does."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for package in ("hostcb", "conformance"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    # All files have one size and, mostly, one second.
    for number, source in enumerate("11(2233"):
        (folder / "hostcb" / "__init__.py").write_text(f"VALUE = {source}")
        (folder / "number").write_text(str(number))
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", f"Change {number}")
        git(folder, "tag", f"v{number}")
    # A hook of the user's, and changes that are not committed.
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {folder}/hook-ran\n")
    hook.chmod(0o755)
    (folder / "hostcb" / "__init__.py").write_text("VALUE = 'mine'")
    names = [git(folder, "rev-parse", "--short=10", f"v{number}") for number in range(7)]
    for (good, bad), words in FOUND.items():
        with monkeypatch.context() as hook:
            # As in a hook of another repository.
            hook.setenv("GIT_DIR", "/nowhere")
            _, printed, errors = bisect(SCRIPT, "--repo", str(folder), "--good", f"v{good}", "--bad", f"v{bad}")
        assert words.format(*names) in printed + errors
        assert not printed or f"{names[good]} Change {good}: exit 0, prints " in printed
        assert ("what changed: git -C " in printed) == ("FOUND" in printed)
    assert (folder / "hostcb" / "__init__.py").read_text() == "VALUE = 'mine'"
    assert git(folder, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(folder, "worktree", "list").count("\n") == 0
    assert git(folder, "for-each-ref", "refs/bisect") == ""
    assert not (folder / "hook-ran").exists()


# The smallest cell that fails in the same way: the search, the steps, the counts, and the command with fake processes.

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
    known = "known to fail by chance: docs/jax-bugs/ordered-io-and-debug.md"
    code, lines = minimised(lambda cell: PASS, "jax/io_and_debug_ordered/scan/cpu-8dev")
    assert (code, known in lines) == (minimise.PASSES, True)
    assert known in minimised(lambda cell: LOST, "jax/io_and_debug_ordered/scan/cpu-8dev")[1]
    assert minimised(lambda cell: Outcome(Verdict.HARNESS_ERROR), "jax/io_callback/scan/cpu-8dev")[0] == 2
