"""The command `bisect`: in releases that are wheels of a folder, and in the commits of a repository."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from release_wheels import make_wheels

from conformance.bisecting.commits import Repository
from conformance.bisecting.subjects import sample_of
from conformance.cli.commands import main
from conformance.oracle.verdicts import Outcome, Stage, Verdict

pytestmark = pytest.mark.contract("C9")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheels(tmp_path_factory.mktemp("wheels") / "all")


@pytest.fixture
def bisect(wheels: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(source: str, *arguments: str) -> tuple[int, str, str]:
        script = tmp_path / "script.py"
        script.write_text(source)
        folders = ["--find-links", str(wheels), "--results", str(tmp_path / "results")]
        code = main(["bisect", "--script", str(script), *folders, *arguments])
        return code, *capfd.readouterr()

    return run


def test_the_first_release_with_another_outcome(bisect: Any, tmp_path: Path) -> None:
    source = "import jax; print('new' if jax.__version__ >= '0.6.1' else 'old'); print(2)"
    code, printed, told = bisect(source)
    assert code == 0, printed + told
    assert "  FOUND: 0.6.1 is the first with another outcome, after 0.6.0." in printed
    old, new = "exit 0, prints old | 2", "exit 0, prints new | 2"
    assert f"  0.5.3: {old}\n  0.6.0: {old}  (3 of 3 runs)\n  0.6.1: {new}  (3 of 3 runs)\n" in printed
    assert (tmp_path / "results" / "findings.txt").read_text() == printed
    assert [*(tmp_path / "results").glob("environments-*")] == []
    # Nothing runs again, and the good end may be the newer one. A process that was killed may have left half a line.
    with (tmp_path / "results" / "runs.jsonl").open("a") as journal:
        journal.write('{"run": ["0.7')
    assert bisect(source, "--resume", "--good", "0.7.0", "--bad", "0.5.3") == (0, printed, "")


def test_releases_that_cannot_be_tested_make_a_range(bisect: Any) -> None:
    source = "import sys, jax; v = jax.__version__; sys.exit(125 if v in ('0.6.0', '0.6.1') else v > '0.6')"
    code, printed, _ = bisect(source, "--good", "0.5.3", "--bad", "0.6.2", "--runs", "6")
    assert code == 0
    assert "FOUND a range: the outcome changes between 0.5.3 and 0.6.2; 0.6.0 and 0.6.1 could not be tested." in printed
    passing = "0.5.3: exit 0, prints nothing  (6 of 6 runs)\n      0 of 6 fail (rate 0.000 to 0.586)"
    assert passing in printed


def test_ends(bisect: Any) -> None:
    code, printed, _ = bisect("print(1)", "--good", "0.6.2")
    assert (code, "NOTHING TO FIND: 0.6.2 and 0.7.0 do not differ" in printed) == (1, True)
    # The installer says why.
    code, printed, _ = bisect("print(1)", "--good", "0.5.3", "--bad", "0.7.1")
    assert (code, "UNUSABLE: 0.7.1 cannot be tested" in printed, "jaxlib" in printed) == (2, True, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--script FILE"),
        (["--script", "nowhere.py"], "nowhere.py"),
        (["jax/io_callback/scan/cpu-1dev", "--repo", "."], "--repo"),
        (["jax/io_callback/scan/cpu-1dev", "--good", "0.6.0", "--bad", "0.4.1"], "0.4.1"),
        (["nothing/of/that"], "nothing/of/that"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["bisect", *arguments, "--results", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_a_script_that_hangs_or_crashes_has_an_outcome_and_leaves_no_process(bisect: Any) -> None:
    source = (
        "import jax, os, subprocess, sys, threading\nif jax.__version__ > '0.6': os.abort()\n"
        "subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\nthreading.Event().wait()"
    )
    code, printed, _ = bisect(source, "--good", "0.5.3", "--bad", "0.6.0", "--deadline", "2", "--runs", "1")
    assert (code, "0.5.3: hang  (" in printed, "0.6.0: crash (Aborted), prints nothing  (" in printed) == (
        0,
        True,
        True,
    )


def test_the_outcome_of_a_cell_has_verdict_stage_and_anomaly() -> None:
    lost = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: #1", anomaly="lost")
    assert sample_of(lost).words == "fail at callback (lost)"
    lacking = sample_of(Outcome(Verdict.UNSUPPORTED, None, "JAX 0.5.0 has no such thing", anomaly="not applicable"))
    assert (lacking.untestable, lacking.words) == (True, "JAX 0.5.0 has no such thing")
    assert sample_of(Outcome(Verdict.HARNESS_ERROR, None, "Traceback\nKeyError: 1\n")).untestable


# Commits --------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        (3, 6, "FOUND: {5} is the first with another outcome, after {4}."),
        (4, 0, "FOUND a range: the outcome changes between {1} and {3}; {2} could not be tested."),
        (0, 1, "NOTHING TO FIND: {0} and {1} do not differ"),
        (0, 9, "has no commit 'v9'"),
    ],
)
def test_the_first_commit_is_found_and_the_users_tree_is_not_touched(
    good: int, bad: int, words: str, bisect: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a hook of another repository.
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    _, printed, told = bisect(SCRIPT, "--repo", str(repository), "--good", f"v{good}", "--bad", f"v{bad}")
    monkeypatch.delenv("GIT_DIR")
    names = [git(repository, "rev-parse", "--short=10", f"v{number}") for number in range(7)]
    assert words.format(*names) in printed + told
    assert not printed or f"{names[good]} Change {good}: exit 0, prints " in printed
    assert (repository / "hostcb" / "__init__.py").read_text() == "VALUE = 'mine'"
    assert git(repository, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(repository, "worktree", "list").count("\n") == 0
    assert git(repository, "for-each-ref", "refs/bisect") == ""
    assert not (repository / "hook-ran").exists()


def test_a_merge_is_one_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for number, command in enumerate(("switch -c side", "switch main", "merge side --no-ff -m Merge")):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", f"Change {number}")
        git(tmp_path, *command.split())
    lines = {"main": ["Change 0", "Change 2", "Merge"], "main^2": ["Change 0", "Change 1"]}
    for new, messages in lines.items():
        assert [label[11:] for label in Repository(tmp_path).between("main~2", new).values()] == messages
