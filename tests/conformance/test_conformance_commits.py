"""Commits of a repository, tried in a worktree of their own, and one step of `git bisect run`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from conformance.bisecting.commits import PREFIX, Repository, packages_in
from conformance.cli import bisect_commits
from conformance.cli.commands import main
from conformance.releases.release import ReleaseError

pytestmark = pytest.mark.contract("C9")

ROOT = Path(__file__).parents[2]
CELL = "jax/pure_callback/jit/cpu-1dev"


# A repository ---------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven commits of a package; the fifth changes what it does, and the fourth does not import."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet", "--initial-branch=main")
    package = folder / "hostcb"
    package.mkdir()
    for number in range(7):
        # All files have one size and, mostly, one second.
        source = "VALUE = 1" if number < 4 else "VALUE = 2"
        (package / "__init__.py").write_text("VALUE = (" if number == 3 else source)
        (folder / "number").write_text(str(number))
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", f"Change {number}")
        git(folder, "tag", f"v{number}")
    # A hook of the user's, and changes that are not committed.
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {folder}/hook-ran\n")
    hook.chmod(0o755)
    (package / "__init__.py").write_text("VALUE = 'mine'")
    return folder


SCRIPT = """\
import sys
try:
    import hostcb
except SyntaxError:
    sys.exit(125)
print(hostcb.VALUE)
"""


def bisect(repository: Path, folder: Path, *arguments: str) -> int:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    common = ["--repo", str(repository), "--results", str(folder / "results")]
    return main(["bisect", "--script", str(script), *common, *arguments])


def test_the_first_commit_is_found_and_the_users_tree_is_not_touched(
    repository: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TMPDIR would come too late: pytest has made a folder already.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # As in a hook or a `git bisect run` of another repository.
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    before = [path.stat().st_mtime_ns for path in sorted(repository.glob("[!.]*/**"))]
    assert bisect(repository, tmp_path, "--good", "v0", "--bad", "v6") == 0
    printed = capsys.readouterr().out
    monkeypatch.delenv("GIT_DIR")
    names = {number: git(repository, "rev-parse", "--short=10", f"v{number}") for number in (2, 3, 4)}
    assert f"the outcome changes between {names[2]} and {names[4]}; {names[3]} could not be tested." in printed
    assert f"{names[2]} Change 2: exit 0, prints 1" in printed
    assert "exit 0, prints 1  (3 of 3 runs)" in printed
    assert "exit 0, prints 2  (3 of 3 runs)" in printed
    assert before == [path.stat().st_mtime_ns for path in sorted(repository.glob("[!.]*/**"))]
    assert git(repository, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not (repository / "hook-ran").exists()
    assert [*tmp_path.glob(f"{PREFIX}*")] == []


@pytest.fixture
def shrinking(tmp_path: Path) -> Path:
    """Three commits; the second removes a module and changes another one, which keeps its size and its second."""
    folder = tmp_path / "shrinking"
    module = folder / "hostcb" / "extra" / "__init__.py"
    module.parent.mkdir(parents=True)
    (folder / "hostcb" / "__init__.py").write_text("VALUE = 1")
    module.touch()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number in range(3):
        if number == 1:
            module.unlink()
            (folder / "hostcb" / "__init__.py").write_text("VALUE = 2")
        (folder / "number").write_text(str(number))
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", f"Change {number}")
        git(folder, "tag", f"v{number}")
    return folder


def test_a_module_that_a_commit_removes_is_gone(
    shrinking: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    script = tmp_path / "script.py"
    script.write_text(
        "import hostcb\ntry:\n  import hostcb.extra\n  print('there', hostcb.VALUE)\n"
        "except ImportError:\n  print('gone', hostcb.VALUE)\n"
    )
    common = ["--repo", str(shrinking), "--results", str(tmp_path / "results")]
    assert main(["bisect", "--script", str(script), *common, "--good", "v0", "--bad", "v2"]) == 0
    printed = capsys.readouterr().out
    assert "Change 0: exit 0, prints there 1  (3 of 3 runs)" in printed
    assert "Change 1: exit 0, prints gone 2  (3 of 3 runs)" in printed


def test_what_a_commit_has_written_is_not_there_for_the_next(shrinking: Path) -> None:
    repository = Repository(shrinking)
    with repository.worktree() as tree:
        repository.check_out("v0", tree)
        (tree / ".gitignore").write_text("*.pyc")
        for left in ("hostcb/extra/__pycache__", "nested/.git"):
            (tree / left).mkdir(parents=True)
            (tree / left / "left.pyc").touch()
        repository.check_out("v1", tree)
        assert sorted(path.name for path in tree.iterdir()) == [".git", "hostcb", "number"]
        assert [path.name for path in (tree / "hostcb").iterdir()] == ["__init__.py"]


def test_the_subjects_of_commits_may_hold_what_python_takes_for_an_end_of_line(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    for subject in ("One", "Two\u2028\u0085\x0c\x1c\rtwo", "Three"):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", subject)
    repository = Repository(tmp_path)
    old, middle, new = (repository.commit(name) for name in ("HEAD~2", "HEAD~1", "HEAD"))
    history = repository.history(old, new)
    assert history.commits == (old, middle, new)
    assert history.subjects == ("One", "Two two", "Three")
    assert history.parents == ((), (0,), (1,))


def test_signatures_of_commits_are_no_commits(tmp_path: Path) -> None:
    """This program of signatures finds each one good, and says so, as gpg does."""
    program = tmp_path / "sign"
    program.write_text(
        """\
#!/bin/sh
case "$*" in
  *--verify*) echo "gpg: Good signature from Someone" >&2; echo "[GNUPG:] GOODSIG 1 Someone" ;;
  *) cat > /dev/null; echo "[GNUPG:] SIG_CREATED " >&2
     printf -- "-----BEGIN PGP SIGNATURE-----\\n\\nx\\n-----END PGP SIGNATURE-----\\n" ;;
esac
"""
    )
    program.chmod(0o755)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "gpg.program", str(program))
    git(tmp_path, "config", "log.showSignature", "true")
    for subject in ("One", "Two"):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "--gpg-sign=1", "--message", subject)
    assert "Good signature" in git(tmp_path, "log")
    repository = Repository(tmp_path)
    old, new = repository.commit("HEAD~1"), repository.commit("HEAD")
    history = repository.history(old, new)
    assert (history.commits, history.subjects) == ((old, new), ("One", "Two"))


def test_modules_beside_a_script_come_after_the_checkout(repository: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "beside.py").write_text(SCRIPT)
    (tmp_path / "hostcb.py").write_text("VALUE = 'beside the script'")
    script = tmp_path / "importing.py"
    script.write_text("import beside")
    common = ["--repo", str(repository), "--results", str(tmp_path / "results")]
    assert main(["bisect", "--script", str(script), *common, "--good", "v2", "--bad", "v4"]) == 0
    printed = capsys.readouterr().out
    assert "Change 2: exit 0, prints 1" in printed
    assert "Change 4: exit 0, prints 2" in printed


def test_ends_the_wrong_way_round(repository: Path, tmp_path: Path, capsys: Any) -> None:
    assert bisect(repository, tmp_path, "--good", "v5", "--bad", "v2") == 0
    told = capsys.readouterr().err
    assert told.startswith("NOTE: the good end comes after the bad end: the search is for the commit that mended it")


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("v9", "v6", "has no commit 'v9'"),
        ("v6", "HEAD", "--good and --bad are the same commit"),
        ("other", "v6", "other is no ancestor of v6: give two ends of one history"),
    ],
)
def test_wrong_revisions(good: str, bad: str, words: str, repository: Path, tmp_path: Path, capsys: Any) -> None:
    tree = git(repository, "commit-tree", "-m", "Elsewhere", git(repository, "rev-parse", "v0^{tree}"))
    git(repository, "tag", "--force", "other", tree)
    assert bisect(repository, tmp_path, "--good", good, "--bad", bad) == 2
    told = capsys.readouterr().err
    assert told.startswith("ERROR: ")
    assert words in told


def test_what_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="is no git repository"):
        Repository(tmp_path)


def test_a_repository_that_git_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\necho \"fatal: detected dubious ownership in repository at '/x'\" >&2\nexit 128\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ReleaseError, match=r"git reads: detected dubious ownership in repository at '/x'$"):
        Repository(tmp_path)


def test_a_worktree_is_gone_after_an_interruption(repository: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Repository(repository).worktree() as tree:
        Repository(repository).check_out("v1", tree)
        assert (tree / "number").read_text() == "1"
        raise KeyboardInterrupt
    assert not tree.parent.exists()
    assert git(repository, "worktree", "list").count("\n") == 0


def test_a_worktree_of_a_killed_search_is_removed_by_the_next(repository: Path, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    left, alive = tmp_path / f"{PREFIX}{ended.pid}-x", tmp_path / f"{PREFIX}{os.getpid()}-x"
    for folder in (left, alive):
        git(repository, "worktree", "add", "--detach", str(folder / "tree"), "v0")
    with Repository(repository).worktree():
        assert not left.exists()
        assert alive.exists()
    git(repository, "worktree", "remove", "--force", str(alive / "tree"))
    assert git(repository, "worktree", "list").count("\n") == 0


def test_source_of_jaxlib_is_not_taken_for_an_installed_one(tmp_path: Path) -> None:
    for name in ("jax", "jaxlib", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    assert [*packages_in(tmp_path)] == ["jax"]


# git bisect run -------------------------------------------------------------------------------------


def test_git_bisect_run_understands_it(repository: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(repository), str(clone))
    git(clone, "bisect", "start", "v6", "v0")
    arguments = ["--script", str(script), "--good-outcome", "exit 0, prints 1"]
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-m", "conformance", "bisect-run", *arguments]
    found = subprocess.run(["git", "bisect", "run", *command], cwd=clone, capture_output=True, text=True, check=False)
    # It skips the commit that does not import, so it cannot tell that one from the next.
    assert "only 'skip'ped commits left" in found.stdout + found.stderr
    assert git(clone, "rev-parse", "v3") in found.stdout
    assert git(clone, "rev-parse", "v4") in found.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["jax/pure_callback/jit/cpu-1dev"], 125, "this commit has no package hostcb and no package jax"),
        (["jax/nothing/jit/cpu-1dev"], 128, "ERROR: jax has no callback 'nothing'"),
        ([], 128, "ERROR: give either a CELL or --script FILE"),
        (["--script", "nope.py"], 128, "ERROR: there is no script nope.py"),
        ([CELL, "--good-outcome", "bananas"], 128, "ERROR: --good-outcome 'bananas' is no outcome of a cell: expected"),
        ([CELL, "--good-outcome", "passes"], 128, "ERROR: --good-outcome 'passes' is no outcome of a cell: expected"),
        ([CELL, "--good-outcome", "missing"], 128, "ERROR: --good-outcome 'missing' is no outcome of a cell"),
        ([CELL, "--good-outcome", "crash(SIGABRT)"], 125, "this commit has no package hostcb and no package jax"),
    ],
)
def test_what_cannot_be_tested_is_not_bad(
    arguments: list[str], code: int, words: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bisect-run", *arguments]) == code
    assert words in capsys.readouterr().err


# Nothing is compared here, so a confidence has no meaning.
@pytest.mark.parametrize("arguments", [["--runs", "none"], ["--confidence", "0.9"]])
def test_a_wrong_option_is_not_a_bad_commit(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["bisect-run", *arguments])
    assert ending.value.code == 128


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no such thing"), "ValueError: no such thing\nERROR: the suite itself failed"),
        (OSError("the disk is full"), "OSError: the disk is full\nERROR: the suite itself failed"),
        (KeyboardInterrupt(), "interrupted: nothing is known of this commit"),
    ],
)
def test_an_error_of_the_suite_is_not_a_bad_commit(
    error: BaseException, words: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(bisect_commits, "site_of", fails)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").touch()
    assert main(["bisect-run", "--script", "script.py"]) == 128
    assert words in capsys.readouterr().err


def test_a_machine_without_a_temporary_folder_is_not_a_bad_commit(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisect_commits.tempfile, "tempdir", str(tmp_path / "none"))
    assert main(["bisect-run", "jax/pure_callback/jit/cpu-1dev"]) == 128
    assert "No such file or directory" in capsys.readouterr().err


def test_a_cell_runs_with_the_packages_of_the_checkout(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hostcb comes before the installed one and before that of the suite's own checkout."""
    (tmp_path / "hostcb").mkdir()
    source = "import sys; sys.exit('the hostcb of the checkout')"
    (tmp_path / "hostcb" / "__init__.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert main(["bisect-run", "hostcb/id_tap/jit/cpu-1dev"]) == 125
    assert "the hostcb of the checkout" in capsys.readouterr().err
    assert main(["bisect-run", "jax/pure_callback/jit/cpu-1dev"]) == 0
    assert main(["bisect-run", "jax/pure_callback/jit/cpu-1dev", "--good-outcome", "fail at callback (lost)"]) == 1
