"""The command `bisect`: in releases that are wheels of a folder, and in the commits of a repository."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from release_wheels import VERSIONS, make_wheels

from conformance.bisecting.samples import sample_of
from conformance.bisecting.scripts import run_script
from conformance.cli.commands import main
from conformance.oracle.verdicts import Outcome, Stage, Verdict

pytestmark = pytest.mark.contract("C9")

ROOT = Path(__file__).parents[2]


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


# Releases -------------------------------------------------------------------------------------------

CHANGES = "import jax; print(jax.__version__ >= '0.6.1')"


def test_the_first_release_with_another_outcome(bisect: Any, tmp_path: Path) -> None:
    code, printed, told = bisect(CHANGES)
    assert code == 0, printed + told
    assert "  FOUND: 0.6.1 is the first with another outcome, after 0.6.0." in printed
    assert "  0.6.0: exit 0, prints False  (3 of 3 runs)\n  0.6.1: exit 0, prints True  (3 of 3 runs)\n" in printed
    assert f"  {VERSIONS[0]}: exit 0, prints False\n" in printed
    assert (tmp_path / "results" / "findings.txt").read_text() == printed
    assert [*(tmp_path / "results").glob("environments-*")] == []
    # Nothing runs again, and the good end may be the newer one.
    code, again, told = bisect(CHANGES, "--resume", "--good", "0.7.0", "--bad", "0.5.3")
    assert (code, "..." in told) == (0, False)
    assert "FOUND: 0.6.1 is the first" in again


def test_releases_that_cannot_be_tested_make_a_range(bisect: Any) -> None:
    source = (
        "import jax\nif jax.__version__ in ('0.6.0', '0.6.1'): raise SystemExit(125)\nprint(jax.__version__ > '0.6')"
    )
    code, printed, _ = bisect(source, "--good", "0.5.3", "--bad", "0.6.2", "--runs", "6")
    assert code == 0
    assert "FOUND a range: the outcome changes between 0.5.3 and 0.6.2; 0.6.0 and 0.6.1 could not be tested." in printed
    assert "0.5.3: exit 0, prints False  (6 of 6 runs)\n      0 of 6 fail (rate 0.000 to 0.586)" in printed


def test_ends(bisect: Any) -> None:
    code, printed, _ = bisect("print(1)", "--good", "0.6.2")
    assert (code, "NOTHING TO FIND: 0.6.2 and 0.7.0 do not differ" in printed) == (1, True)
    # The installer says why.
    code, printed, _ = bisect("print(1)", "--good", "0.5.3", "--bad", "0.7.1")
    assert (code, "UNUSABLE: 0.7.1 cannot be tested, and no other is the end." in printed, "jaxlib" in printed) == (
        2,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is nothing to bisect: give a CELL, -k EXPR or --script FILE"),
        (["--script", "nowhere.py"], "there is no script nowhere.py"),
        (["jax/io_callback/scan/cpu-1dev", "--repo", "."], "--repo needs both ends: --good REV and --bad REV"),
        (["jax/io_callback/scan/cpu-1dev", "--good", "0.6", "--bad", "0.6"], "are both 0.6: two releases are needed"),
        (["jax/io_callback/scan/cpu-1dev", "--good", "0.6.0", "--bad", "0.4.1"], "the suite runs on JAX 0.4.31 and"),
        (["nothing/of/that"], "nothing/of/that"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["bisect", *arguments, "--results", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert words in told.splitlines()[-1]
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("source", "words", "passed"),
    [
        ("print('a'); print('b')", "exit 0, prints a | b", True),
        ("import sys; print('no', file=sys.stderr); sys.exit(3)", "exit 3, prints nothing", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT)", "crash(SIGABRT), prints nothing", False),
        # What it starts ends with it, and holds nothing open.
        (
            "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
            "import threading; threading.Event().wait()",
            "hang",
            False,
        ),
    ],
)
def test_the_outcome_of_a_script(source: str, words: str, passed: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    sample = run_script(script, Path(sys.executable), {**os.environ}, 5.0)
    assert (sample.words, sample.passed, sample.untestable) == (words, passed, False)


def test_the_outcome_of_a_cell_has_verdict_stage_and_anomaly() -> None:
    lost = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: #1", anomaly="lost")
    assert sample_of(lost).words == "fail at callback (lost)"
    assert sample_of(lost, verdict_alone=True).words == "fail"
    lacking = sample_of(Outcome(Verdict.UNSUPPORTED, None, "JAX 0.5.0 has no such thing", anomaly="not applicable"))
    assert (lacking.untestable, lacking.words) == (True, "JAX 0.5.0 has no such thing")


# Commits --------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five commits of a package and a suite of its own; the fourth changes what it does, and the third is broken."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet", "--initial-branch=main")
    for package in ("hostcb", "conformance"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    for number in range(5):
        # All files have one size and, mostly, one second.
        source = "VALUE = 1" if number < 2 else "VALUE = (" if number == 2 else "VALUE = 2"
        (folder / "hostcb" / "__init__.py").write_text(source)
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
import sys
try:
    import hostcb
except SyntaxError:
    sys.exit(125)
print(hostcb.VALUE)
"""


def test_the_first_commit_is_found_and_the_users_tree_is_not_touched(
    bisect: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a hook of another repository.
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    code, printed, told = bisect(SCRIPT, "--repo", str(repository), "--good", "v0", "--bad", "v4")
    monkeypatch.delenv("GIT_DIR")
    names = [git(repository, "rev-parse", "--short=10", f"v{number}") for number in range(5)]
    assert code == 0, printed + told
    assert f"the outcome changes between {names[1]} and {names[3]}; {names[2]} could not be tested." in printed
    assert f"{names[1]} Change 1: exit 0, prints 1  (3 of 3 runs)" in printed
    assert f"{names[3]} Change 3: exit 0, prints 2  (3 of 3 runs)" in printed
    assert (repository / "hostcb" / "__init__.py").read_text() == "VALUE = 'mine'"
    assert git(repository, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(repository, "worktree", "list").count("\n") == 0
    assert git(repository, "for-each-ref", "refs/bisect") == ""
    assert not (repository / "hook-ran").exists()


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("v0", "nowhere", "has no commit 'nowhere'"),
        ("v1", "v1", "are the same commit"),
    ],
)
def test_wrong_revisions(good: str, bad: str, words: str, bisect: Any, repository: Path) -> None:
    code, _, told = bisect(SCRIPT, "--repo", str(repository), "--good", good, "--bad", bad)
    assert (code, words in told) == (2, True)


@pytest.mark.parametrize(
    ("source", "code"), [("print(1)", 0), ("raise SystemExit(1)", 1), ("raise SystemExit(125)", 125)]
)
def test_a_step_of_the_users_own_git_bisect(
    source: str, code: int, bisect: Any, repository: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(repository)
    assert bisect(source, "--step")[0] == code
    assert git(repository, "status", "--porcelain") == "M hostcb/__init__.py"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-option"],
        ["nothing/of/that"],
        # Nothing is known of the ends.
        ["jax/io_callback/scan/cpu-1dev", "--good", "v0", "--bad", "v4"],
    ],
)
def test_a_wrong_step_is_not_a_bad_commit(
    arguments: list[str], repository: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(repository)
    try:
        code: object = main(["bisect", "--step", "--results", str(tmp_path), *arguments])
    except SystemExit as ending:
        code = ending.code
    assert code == 128
