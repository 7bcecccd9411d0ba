"""Which releases of JAX there are: what pip writes, read for several Pythons."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from conformance.releases import index as asking
from conformance.releases import pythons as finding
from conformance.releases.index import NO_VERSION, Index, Offer, asked
from conformance.releases.pip import last_error, pip, pip_of
from conformance.releases.pythons import Interpreter, interpreters_of
from conformance.releases.release import Release, ReleaseError, Skipped
from conformance.spec.versions import version_key

pytestmark = pytest.mark.contract("C8")

OLD, NEW = Interpreter(Path("/python3.11"), (3, 11)), Interpreter(Path("/python3.13"), (3, 13))

# Pip 23 names a yanked version among the others; pip 24 names it apart.
ANSWERS: Mapping[tuple[Path, str, str], str] = {
    (OLD.path, "download", "jax"): (
        "ERROR: Ignored the following versions that require a different python version: 0.11.0 Requires-Python >=3.12;"
        " 0.12.0.1 Requires-Python >=3.12\n"
        f"ERROR: Could not find a version that satisfies the requirement jax=={NO_VERSION}"
        " (from versions: 0.1, 0.4.30, 0.4.31, 0.4.32, 0.4.33, 0.4.37, 0.10.2)\n"
        f"ERROR: No matching distribution found for jax=={NO_VERSION}"
    ),
    (OLD.path, "index", "jax"): "jax (0.10.2)\nAvailable versions: 0.10.2, 0.4.37, 0.4.33, 0.4.31, 0.4.30, 0.1",
    (OLD.path, "index", "jaxlib"): "Available versions: 0.10.2, 0.4.36, 0.4.33, 0.4.31, 0.4.30",
    (NEW.path, "download", "jax"): (
        "ERROR: Ignored the following yanked versions: 0.4.32\n"
        "ERROR: Could not find a version that satisfies the requirement x (from versions: 0.4.31, 0.4.33, 0.11.0)"
    ),
    (NEW.path, "index", "jaxlib"): "Available versions: 0.11.0, 0.10.2, 0.4.36",
}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    def answer(python: Path, *arguments: str, deadline: float) -> subprocess.CompletedProcess[str]:
        command = next(word for word in arguments if word in ("download", "index"))
        package = arguments[-1].partition("==")[0]
        return subprocess.CompletedProcess([], 0, "", ANSWERS[python, command, package])

    monkeypatch.setattr(asking, "pip", answer)
    return asked((OLD, NEW))


def test_all_releases_that_a_python_here_can_have(index: Index) -> None:
    releases, skipped = index.released()
    assert [release.label for release in releases] == [
        *("0.4.31", "0.4.33", "0.4.37 with jaxlib 0.4.36", "0.10.2", "0.11.0"),
    ]
    assert skipped == (
        Skipped("0.1 to 0.4.30 (2 releases)", "the suite runs on JAX 0.4.31 and newer"),
        Skipped("0.4.32", "it was yanked, that is, withdrawn"),
        Skipped("0.12.0.1", "it needs Python >=3.12, and there is Python 3.11, Python 3.13"),
    )


def test_the_python_of_a_release(index: Index) -> None:
    assert index.python_for(index.release("0.4.33")) == OLD
    assert index.python_for(index.release("0.11.0")) == NEW
    assert index.release("0.4.33", "0.4.31") == Release("0.4.33", "0.4.31")


@pytest.mark.parametrize(
    ("jax", "jaxlib", "words"),
    [
        ("0.4.20", None, "JAX 0.4.20 cannot be tried: the suite runs on JAX 0.4.31 and newer"),
        ("0.4.32", None, "JAX 0.4.32 cannot be installed: it was yanked, that is, withdrawn"),
        ("0.6.3", None, "JAX 0.6.3 cannot be installed: the index has no such release, which has 0.4.31 to 0.12.0.1"),
        ("0.12.0.1", None, "it needs Python >=3.12"),
        ("0.4.33", "0.4.99", "JAX 0.4.33 cannot be installed with jaxlib 0.4.99"),
        ("newest", None, "'newest' is no version like 0.6.2"),
    ],
)
def test_a_release_that_cannot_be_had_says_why(jax: str, jaxlib: str | None, words: str, index: Index) -> None:
    with pytest.raises(ReleaseError, match=words.replace("(", r"\(")):
        index.release(jax, jaxlib)


def test_a_release_without_wheels_for_the_python() -> None:
    """The newest jaxlib that this Python can have is of another series."""
    offer = Offer(OLD, ("0.10.2",), ("0.6.2",))
    assert Index((offer,)).why_not("0.10.2") == "the index has no jaxlib for it and Python 3.11"


BROKEN = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<object>: Failed to establish"
    " a new connection: [Errno 111] Connection refused')': /simple/jax/\n"
    f"ERROR: Could not find a version that satisfies the requirement jax=={NO_VERSION} (from versions: none)\n"
    f"ERROR: No matching distribution found for jax=={NO_VERSION}"
)
NONE = f"ERROR: No matching distribution found for jax=={NO_VERSION}"


@pytest.mark.parametrize(
    ("written", "words"),
    [(BROKEN, "pip cannot connect to it ([Errno 111] Connection refused)"), (NONE, "pip finds no version there")],
)
def test_no_index(written: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "pip", lambda *_, deadline: subprocess.CompletedProcess([], 1, "", written))
    with pytest.raises(ReleaseError) as raised:
        asked((OLD, NEW))
    assert str(raised.value) == f"the package index that pip uses tells of no release of JAX: {words}"


def test_an_index_that_is_not_reached_beside_a_folder_of_wheels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine without a network may have such a folder; its releases are not all there are."""
    written = BROKEN.replace("(from versions: none)", "(from versions: 0.6.1, 0.6.2)")
    listed = f"{BROKEN.splitlines()[0]}\nAvailable versions: 0.6.2, 0.6.1"

    def answer(_: Path, *arguments: str, deadline: float) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", written if "download" in arguments else listed)

    monkeypatch.setattr(asking, "pip", answer)
    monkeypatch.setattr(asking, "interpreters_of", lambda python: (OLD, NEW))
    asking.index.cache_clear()
    try:
        found = asking.index()
        assert asking.index() is found
    finally:
        asking.index.cache_clear()
    words = "pip cannot connect to the package index ([Errno 111] Connection refused)"
    assert capsys.readouterr().err == f"NOTE: {words}: only releases of find-links are seen\n"
    assert [release.jax for release in found.released()[0]] == ["0.6.1", "0.6.2"]
    assert found.why_not("0.6.3") == f"the index has no such release, which has 0.6.1 to 0.6.2; {words}"


def test_the_words_of_pip() -> None:
    assert last_error("ERROR: Cannot install a and b\nERROR: ResolutionImpossible: see x") == "Cannot install a and b"
    assert last_error("ERROR: x (from versions: 1, 2)\nERROR: No matching distribution") == "No matching distribution"
    assert last_error("") == "pip wrote nothing"


def test_a_pip_that_does_not_answer() -> None:
    """Its deadline is over before it can start."""
    with pytest.raises(ReleaseError, match="pip did not answer within 0 s: is the package index reachable"):
        pip(Path(sys.executable), "--version", deadline=0.0)


def test_a_python_without_pip_uses_the_one_that_python_brings(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] && exit 1\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = pip_of(python)
    assert command[0] == str(python)
    assert "pip-" in command[1]


def test_a_python_whose_pip_is_in_a_folder_of_the_distribution(tmp_path: Path) -> None:
    """Debian's ensurepip has no wheels, and is not there at all without a package of its own."""
    (tmp_path / "wheels").mkdir()
    wheel = tmp_path / "wheels" / "pip-99.0-py3-none-any.whl"
    wheel.touch()
    python = tmp_path / "python"
    debian = (
        "import sys, sysconfig; sys.modules['ensurepip'] = None\n"
        f"sysconfig.get_config_vars()['WHEEL_PKG_DIR'] = {str(wheel.parent)!r}\n"
    )
    (tmp_path / "debian.py").write_text(debian + "exec(sys.argv[1])")
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] && exit 1\nexec {sys.executable} {tmp_path}/debian.py "$2"\n')
    python.chmod(0o755)
    assert pip_of(python) == (str(python), str(wheel / "pip"))


def test_versions_are_sorted() -> None:
    versions = ["0.13.0.dev20261122", "0.13.0rc1", "0.13", "0.13.0.post1", "0.13.0.1", "0.9.2", "0.10.0"]
    assert sorted(versions, key=version_key) == ["0.9.2", "0.10.0", *versions[:5]]
    assert version_key("0.13") == version_key("0.13.0") == version_key("0.13.0+local")
    with pytest.raises(ValueError, match="no version like"):
        version_key("0.6.2;x")


# Pythons --------------------------------------------------------------------------------------------


def fake_python(path: Path, answer: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


def test_pythons_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = tmp_path / "pyenv" / "versions"
    newest = fake_python(versions / "3.99.10" / "bin" / "python3.99", "echo cpython 3 99 False")
    fake_python(versions / "3.99.9" / "bin" / "python3.99", "echo cpython 3 99 False")
    fake_python(versions / "3.9.18" / "bin" / "python3.9", "echo cpython 3 9 False")
    of_uv = fake_python(tmp_path / "uv" / "cpython-3.98.1-linux" / "bin" / "python3.98", "echo cpython 3 98 False")
    # A shim of a version that is not active, another kind of Python, one without the lock that JAX's wheels need.
    fake_python(tmp_path / "bin" / "python3.97", "exit 127")
    fake_python(tmp_path / "bin" / "python3.96", "echo pypy 3 96 False")
    fake_python(tmp_path / "bin" / "python3.95", "echo cpython 3 95 True")
    on_path = fake_python(tmp_path / "bin" / "python3.94", "echo cpython 3 94 None")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/nonexistent")
    here = Interpreter(Path(sys.executable), sys.version_info[:2])
    found = [one for one in finding.pythons.__wrapped__() if one.path.is_relative_to(tmp_path) or one == here]
    assert found == [
        here,
        Interpreter(on_path, (3, 94)),
        Interpreter(of_uv, (3, 98)),
        Interpreter(newest, (3, 99)),
    ]


@pytest.mark.usefixtures("no_home")
def test_pythons_for_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_python(tmp_path / "bin" / "python3.94", "echo cpython 3 94 None")
    for name in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    here = Interpreter(Path(sys.executable), sys.version_info[:2])
    assert finding.pythons.__wrapped__() == (here, Interpreter(on_path, (3, 94)))


def test_a_python_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "pythons", lambda: (OLD, NEW))
    assert interpreters_of((3, 13)) == (NEW,)
    assert interpreters_of(None) == (OLD, NEW)
    with pytest.raises(ReleaseError, match=r"no Python 3\.12 on this machine, only Python 3\.11, Python 3\.13"):
        interpreters_of((3, 12))
