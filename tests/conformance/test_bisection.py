"""A search over releases or commits gives the right one or the right range, and never guesses; and the command."""

from __future__ import annotations

import random
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite_runs import Capture, Patch

from conformance.bisecting.findings import exit_code, report
from conformance.bisecting.search import Answer, Kind, Samples, answers
from conformance.bisecting.subjects import Sample, sample_of
from conformance.cli.bisect import _next_steps
from conformance.cli.commands import main
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.releases.environments import ReleaseError
from conformance.spec.package import COMMAND

pytestmark = pytest.mark.contract("C9")


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
    text = report(found, samples, [f"v{index}" for index in range(8)])
    assert "3a\n3b\n  FOUND: v3 is the first that fails, after v2.\n" in text
    # What to do next is said of what was found, with the names of both sides.
    text = report(
        found, samples, [f"v{index}" for index in range(8)], steps=lambda *names: ["next: " + " ".join(names)]
    )
    assert [line for line in text.splitlines() if "next" in line] == ["  next: 3a v2 v3"]
    assert exit_code([*found.values()]) == 0
    assert exit_code([found["9"], Answer(Kind.CANNOT_TELL, (0, 7))]) == 3
    # The outcome of a cell has verdict, stage and anomaly.
    lost = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: #1", anomaly="lost")
    assert sample_of(lost).words == "fail at callback (lost)"
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


def test_the_first_release_with_another_outcome_and_those_that_cannot_be_tested(bisect: Bisect, tmp_path: Path) -> None:
    source = "import jax; print('new' if jax.__version__ >= '0.6.1' else 'old')"
    code, printed, errors = bisect(source)
    assert code == 0, printed + errors
    assert "  FOUND: 0.6.1 is the first with another outcome, after 0.6.0." in printed
    assert "  0.6.0: exit 0, prints old  (3 of 3 runs)\n  0.6.1: exit 0, prints new  (3 of 3 runs)\n" in printed
    assert "what changed in JAX: https://github.com/jax-ml/jax/compare/jax-v0.6.0...jax-v0.6.1\n" in printed
    ends = "--good jax-v0.6.0 --bad jax-v0.6.1\n"
    assert f"{COMMAND} bisect --script {tmp_path}/script.py --repo CLONE --python ENV {ends}" in printed
    assert [*(tmp_path / "results").glob("environments-*")] == []
    # Nothing runs again. A process that was killed may have left half a line.
    with (tmp_path / "results" / "runs.jsonl").open("a") as journal:
        journal.write('{"run": ["0.7')
    code, again, errors = bisect(source, "--resume", "--good", "0.7.0", "--bad", "0.5.3")
    assert (code, again) == (0, printed) and "trying" not in errors
    code, printed, _ = bisect("print(1)", "--good", "0.5.3", "--bad", "0.7.1")
    assert (code, "UNUSABLE: 0.7.1 cannot be tested" in printed) == (2, True)
    _, printed, _ = bisect("print(1)", "--good", "0.5.3", "--bad", "0.7.2")
    assert "JAX 0.7.2 cannot be installed: it needs Python 3.99 or newer: give --python 3.99\n" in printed


NOTED = """\
import jax
error = ValueError('w' * 400)
error.add_note('-' * 20)
error.add_note('For simplicity, JAX has removed its internal frames from the traceback of the following exception.')
raise error if jax.__version__ < '0.7.0' else SystemExit(0)
"""


def test_a_script_that_fails_is_witnessed_by_its_error_and_not_by_jaxs_note(bisect: Bisect) -> None:
    _, printed, _ = bisect(NOTED, "--good", "0.7.0", "--bad", "0.6.2")
    (line,) = [line for line in printed.splitlines() if "ValueError" in line]
    # What is cut says so.
    assert line.startswith("      ValueError: www") and line.endswith("w…") and len(line) == 302, line


def test_the_next_steps_name_the_releases_and_the_interpreter() -> None:
    options = Namespace(repo=None, script=None)
    _, commits, cell = _next_steps(options, "jax/debug_callback/scan/cpu-1dev", "0.6.1", "0.6.2")
    assert "--repo CLONE --python ENV --good jax-v0.6.1 --bad jax-v0.6.2" in commits
    assert cell.startswith("the cell as a program, to run with JAX 0.6.1 and with 0.6.2: ")


def test_a_pattern_in_the_place_of_a_cell_is_told_the_option_for_it(capfd: Capture) -> None:
    for pattern in ("jax and scan", "jax/*/scan/cpu-1dev"):
        assert main(["bisect", pattern]) == 2
        assert f"`{COMMAND} bisect -k '{pattern}'`" in capfd.readouterr().err


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
    assert code == 130
    lines = [line for line in errors.splitlines() if line.startswith("0.")]
    # Of five releases, half of those in doubt are left after each try; the script has one name, which needs no line.
    assert lines == [
        "0.5.3: trying it, 1 run; about 3 are left after it",
        f"0.5.3: {old}",
        "0.7.0: trying it, 1 run; about 2 are left after it",
        f"0.7.0: {new}",
        "0.6.1: trying it, 1 run; about 1 is left after it",
        f"0.6.1: {new}",
        "0.6.0: trying it, 1 run",
    ]
    found = "NOT FINISHED: the outcome changes between 0.5.3 and 0.6.1."
    assert printed == f"{script}\n  {found}\n\n  0.5.3: {old}\n  0.6.1: {new}\n  0.7.0: {new}\n"
    assert "interrupted" in errors and "--resume" in errors.splitlines()[-1]
    code, printed, errors = bisect(INTERRUPTS, *ends, "--resume")
    assert (code, "FOUND: 0.6.1 is the first" in printed) == (0, True)
    assert "0.6.0: trying it, 1 run" in errors and "0.7.0: trying" not in errors


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commits of a package and a suite of its own; one is broken, the next and another one change what it does."""
    folder = tmp_path_factory.mktemp("repository")
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
    return folder


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
    bisect: Bisect, repository: Path, monkeypatch: Patch
) -> None:
    names = [git(repository, "rev-parse", "--short=10", f"v{number}") for number in range(7)]
    for (good, bad), words in FOUND.items():
        with monkeypatch.context() as hook:
            # As in a hook of another repository.
            hook.setenv("GIT_DIR", "/nowhere")
            _, printed, errors = bisect(SCRIPT, "--repo", str(repository), "--good", f"v{good}", "--bad", f"v{bad}")
        assert words.format(*names) in printed + errors
        assert not printed or f"{names[good]} Change {good}: exit 0, prints " in printed
        assert ("what changed: git -C " in printed) == ("FOUND" in printed)
    assert (repository / "hostcb" / "__init__.py").read_text() == "VALUE = 'mine'"
    assert git(repository, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(repository, "worktree", "list").count("\n") == 0
    assert git(repository, "for-each-ref", "refs/bisect") == ""
    assert not (repository / "hook-ran").exists()
