"""The cache of environments: complete or not there, whatever happens while one is made."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.cli.commands import main
from conformance.releases import environments as caching
from conformance.releases import folders, making
from conformance.releases.environments import Environments
from conformance.releases.making import DiskFullError, index_for_uv, make
from conformance.releases.pythons import Interpreter
from conformance.releases.release import Release, ReleaseError

pytestmark = pytest.mark.contract("C8")

HERE = sys.version_info[:2]
THIS = Interpreter(Path(sys.executable), HERE)
OLD, NEW = Release("0.4.37", "0.4.36"), Release("0.6.2", "0.6.2")


def fill(release: Release, python: Interpreter, folder: Path) -> None:
    """In the place of an installation."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python.path)
    (folder / "package").write_bytes(b"x" * 10_000)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Release]:
    """The releases for which an environment was made."""
    releases = []

    def make(release: Release, python: Interpreter, folder: Path) -> None:
        releases.append(release)
        fill(release, python, folder)

    monkeypatch.setattr(caching, "make", make)
    # Some file systems find blocks for a file only long after it is written, or compress it.
    monkeypatch.setattr(caching, "_held", lambda status: status.st_size)
    return releases


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_environment_is_made_once(tmp_path: Path, made: list[Release]) -> None:
    first = Environments(tmp_path, HERE).get(OLD)
    again = Environments(tmp_path, HERE).get(OLD)
    assert first == again
    assert first.python.samefile(sys.executable)
    assert made == [OLD]
    assert names(tmp_path) == ["jax-0.4.37-jaxlib-0.4.36-py{}.{}".format(*HERE)]
    assert not Environments(tmp_path, (3, 99)).has(OLD)


def test_the_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Environments().folder == tmp_path / "hostcb-conformance" / "environments"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Environments().folder == tmp_path / "home" / ".cache" / "hostcb-conformance" / "environments"


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_needs_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert main(["environments"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ERROR: you have no home folder for the cache: set HOME or XDG_CACHE_HOME")
    assert told.count("\n") == 1
    assert main(["environments", "--environments", str(tmp_path)]) == 0


def failing(error: BaseException) -> Callable[[Release, Interpreter, Path], None]:
    def make(release: Release, python: Interpreter, folder: Path) -> None:
        fill(release, python, folder)
        raise error

    return make


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ReleaseError("JAX 0.6.2 cannot be installed"), "^JAX 0.6.2 cannot be installed$"),
        (
            DiskFullError(""),
            r"the disk is full, and JAX 0.6.2 was not installed; the cached environments in .* have 0\.0",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (
            PermissionError(errno.EACCES, "Permission denied"),
            r"the environment of JAX 0\.6\.2 cannot be made: .*denied",
        ),
        (KeyboardInterrupt(), "^$"),
    ],
)
def test_nothing_half_made_is_left(
    error: BaseException, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "make", failing(error))
    wanted = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ReleaseError
    with pytest.raises(wanted, match=words):
        Environments(tmp_path, HERE).get(NEW)
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReleaseError, match=r"the environment of JAX 0\.6\.2 cannot be made: .*file"):
        Environments(tmp_path / "file" / "environments", HERE).get(NEW)


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path, made: list[Release]) -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    (tmp_path / f".unfinished-{ended.pid}-abc").mkdir()
    (tmp_path / f".unfinished-{os.getpid()}-def").mkdir()
    assert [entry.release for entry in Environments(tmp_path).entries()] == [None]
    Environments(tmp_path, HERE).get(NEW)
    assert [name for name in names(tmp_path) if "unfinished" in name] == [f".unfinished-{os.getpid()}-def"]


def test_two_processes_make_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is ready while this one still installs."""
    other = Environments(tmp_path, HERE)

    def slowly(release: Release, python: Interpreter, folder: Path) -> None:
        monkeypatch.setattr(caching, "make", fill)
        other.get(release)
        fill(release, python, folder)

    monkeypatch.setattr(caching, "make", slowly)
    assert Environments(tmp_path, HERE).get(NEW) == other.get(NEW)
    assert len(names(tmp_path)) == 1


def test_an_environment_whose_python_is_gone_is_made_again(tmp_path: Path, made: list[Release]) -> None:
    python = Environments(tmp_path, HERE).get(NEW).python
    python.unlink()
    python.symlink_to(tmp_path / "gone")
    assert Environments(tmp_path, HERE).get(NEW).python.samefile(sys.executable)
    assert made == [NEW, NEW]


def test_the_size_of_a_folder_is_that_of_its_blocks(tmp_path: Path) -> None:
    """A file of holes holds none; a source of the suite holds some, and was written long ago."""
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 24)
    assert caching.size_of(tmp_path) < 1 << 20
    assert caching._held(os.stat(caching.__file__)) >= 512


def test_sizes_and_pruning(tmp_path: Path, made: list[Release], capsys: pytest.CaptureFixture[str]) -> None:
    for release in (NEW, OLD):
        Environments(tmp_path, HERE).get(release)
    (tmp_path / "something else").mkdir()
    entries = Environments(tmp_path).entries()
    assert [entry.release for entry in entries] == [OLD, NEW]
    assert all(10_000 <= entry.size < 100_000 for entry in entries)
    # Removing a file that another folder has, too, frees nothing.
    os.link(entries[0].folder / "package", tmp_path / "shared")
    assert Environments(tmp_path).entries()[0].size < 10_000

    arguments = ["environments", "--environments", str(tmp_path)]
    assert main(arguments) == 0
    assert f"JAX 0.4.37 with jaxlib 0.4.36, Python {HERE[0]}.{HERE[1]}\n" in capsys.readouterr().out
    for wrong, words in (
        (["--prune", "--keep", "9.9.9"], "--keep 9.9.9: there is no"),
        (["--keep", "0.6.2"], "--prune"),
    ):
        assert main([*arguments, *wrong]) == 2
        assert words in capsys.readouterr().err
    assert main([*arguments, "--prune", "--keep", "0.6.2"]) == 0
    assert "1 environments are left" in capsys.readouterr().out
    assert [entry.release for entry in Environments(tmp_path).entries()] == [NEW]


def test_two_processes_prune_the_same_one(tmp_path: Path, made: list[Release], monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one was quicker after both had listed what there is."""
    for release in (NEW, OLD):
        Environments(tmp_path, HERE).get(release)
    rename = Path.rename
    gone = []

    def renamed(path: Path, target: Path) -> Path:
        if not gone:
            gone.append(path)
            shutil.rmtree(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    assert 10_000 <= Environments(tmp_path).prune() < 20_000
    assert names(tmp_path) == []


def test_pruning_leaves_what_is_in_use(tmp_path: Path, made: list[Release]) -> None:
    users = Environments(tmp_path, HERE)
    users.get(NEW)
    assert Environments(tmp_path).prune() == 0
    del users
    assert Environments(tmp_path).prune() >= 10_000
    assert names(tmp_path) == []


# Making one -----------------------------------------------------------------------------------------


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A uv that writes down its arguments and makes an interpreter."""
    uv = tmp_path / "tools" / "uv"
    uv.parent.mkdir()
    log = tmp_path / "commands"
    uv.write_text(
        f"""#!{sys.executable} -S
import json, os, sys
open({str(log)!r}, "a").write(json.dumps(sys.argv[1:]) + "\\n")
if "venv" in sys.argv:
    os.makedirs(sys.argv[-1] + "/bin", exist_ok=True)
    with open(sys.argv[-1] + "/bin/python", "w") as file:
        file.write("#!/bin/sh\\necho 0.6.2 0.6.2\\n")
    os.chmod(sys.argv[-1] + "/bin/python", 0o755)
elif os.environ.get("UV_FAILS"):
    sys.exit("error: " + os.environ["UV_FAILS"])
"""
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(making, "index_for_uv", lambda python: ["--find-links", "folder"])
    return log


def test_uv_is_used_where_it_is_there(commands: Path, tmp_path: Path) -> None:
    make(NEW, THIS, tmp_path / "new")
    venv, install = map(json.loads, commands.read_text().splitlines())
    assert venv[0] == "venv"
    assert install[-4:] == ["jax==0.6.2", "jaxlib==0.6.2", "numpy", "absl-py"]
    assert "--find-links" in install


def test_a_full_disk_is_told_by_uv(commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_FAILS", "No space left on device (os error 28)")
    with pytest.raises(DiskFullError):
        make(NEW, THIS, tmp_path / "new")


def test_pip_says_why_where_uv_fails(commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_FAILS", "no such version")
    (tmp_path / "new").mkdir()

    def refuse(*_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for jax==0.6.2")

    monkeypatch.setattr(making, "installing", refuse)
    with pytest.raises(ReleaseError) as raised:
        make(NEW, THIS, tmp_path / "new")
    assert str(raised.value) == (
        f"JAX 0.6.2 cannot be installed for {THIS.name}: No matching distribution found for jax==0.6.2"
    )


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (
            "raise SystemExit('ImportError: numpy.core is gone')",
            "is installed and cannot be imported: ImportError: numpy",
        ),
        ("print('0.6.1 0.6.1')", r"JAX 0\.6\.2 was asked for, and 0\.6\.1 and 0\.6\.1 came"),
    ],
)
def test_an_environment_that_does_not_work(
    inside: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was resolved beside an old JAX may be too new for it."""
    monkeypatch.setattr(making.shutil, "which", lambda name: None)
    monkeypatch.setattr(making, "installing", lambda *_: subprocess.CompletedProcess([], 0, "", ""))
    monkeypatch.setattr(making, "_TRIED", inside)
    with pytest.raises(ReleaseError, match=words):
        make(NEW, THIS, tmp_path / "new")


@pytest.mark.parametrize("hanging", ["-m venv", "-c"])
def test_a_command_without_an_end_is_told(hanging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the other releases of a table are tried."""
    python = tmp_path / "new" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for path in (tmp_path / "python", python):
        path.write_text(f'#!/bin/sh\ncase "$*" in "{hanging}"*) exec sleep 60;; esac\n')
        path.chmod(0o755)
    monkeypatch.setattr(making.shutil, "which", lambda name: None)
    monkeypatch.setattr(making, "installing", lambda *_: subprocess.CompletedProcess([], 0, "", ""))
    monkeypatch.setattr(making, "DEADLINE", 5.0)
    with pytest.raises(ReleaseError, match=rf"JAX 0\.6\.2: `.*python {hanging}.* did not end within 5 s"):
        make(NEW, Interpreter(tmp_path / "python", HERE), tmp_path / "new")


def test_the_configuration_of_pip_as_options_of_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        ":env:.find-links='/wheels'\nglobal.extra-index-url='file:///one file:///two'\n"
        "global.index-url='https://a/simple'\nuser.index-url='https://b/simple'\ninstall.no-index='true'\n"
    )
    monkeypatch.setattr(making, "pip", lambda *_: subprocess.CompletedProcess([], 0, listed, ""))
    assert index_for_uv(Path("python")) == [
        *("--index-url", "https://b/simple"),
        *("--extra-index-url", "file:///one", "--extra-index-url", "file:///two"),
        *("--find-links", "/wheels", "--no-index", "--index-strategy", "unsafe-best-match"),
    ]


# Sources --------------------------------------------------------------------------------------------


def test_a_checkout_is_its_own_source() -> None:
    (folder,) = folders.sources()
    assert (folder / "conformance" / "releases").is_dir()


def test_an_installed_suite_shows_no_package_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JAX of the command's own environment must not be found by workers with another one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(folders, "PACKAGE", "hostcb_conformance")
    (folder,) = folders.sources()
    assert folders.sources() == (folder,)
    assert names(folder) == ["hostcb", "hostcb_conformance"]
    assert (folder / "hostcb_conformance" / "releases").is_dir()
    assert (folder / "hostcb" / "__init__.py").exists()
