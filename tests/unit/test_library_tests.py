"""The comparison of `nox -s libraries`: tests of a library that pass one way alone are found, and callbacks counted."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import io
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "examples" / "libraries"
sys.path.insert(0, str(FOLDER))

import own_tests  # noqa: E402
from own_tests import Result  # noqa: E402
from suites import SUITES, Suite  # noqa: E402

SUITE = Suite("library", ("test_one.py",), "a bar")
OWN = {"a": Result("passed", 0), "b": Result("failed", 0)}
OURS = {"a": Result("passed", 3), "b": Result("failed", 0)}


def test_equal_outcomes_do_not_differ() -> None:
    assert own_tests.differences(SUITE, OWN, OURS) == []


@pytest.mark.parametrize(
    ("own", "ours", "words"),
    [
        ("passed", "failed", "c: passed with JAX's own callbacks, failed under hostcb"),
        ("failed", "passed", "c: failed with JAX's own callbacks, passed under hostcb"),
        ("passed", None, "c: passed with JAX's own callbacks, missing under hostcb"),
        (None, "skipped", "c: missing with JAX's own callbacks, skipped under hostcb"),
    ],
)
def test_a_test_that_differs(own: str | None, ours: str | None, words: str) -> None:
    before = OWN | ({"c": Result(own, 0)} if own else {})
    after = OURS | ({"c": Result(ours, 1)} if ours else {})
    assert own_tests.differences(SUITE, before, after) == [words]


def test_named_differences_must_be_there() -> None:
    suite = dataclasses.replace(SUITE, differ=("c",))
    both = {"c": Result("passed", 0)}
    assert own_tests.differences(suite, OWN | both, OURS | {"c": Result("failed", 0)}) == []
    (line,) = own_tests.differences(suite, OWN | both, OURS | both)
    assert line.startswith("c: passed both ways; remove it from `differ`")
    (line,) = own_tests.differences(suite, OWN, OURS)
    assert line.startswith("c: missing both ways")


def test_a_run_without_callbacks_says_nothing() -> None:
    (line,) = own_tests.differences(SUITE, OWN, OWN)
    assert line.startswith("hostcb ran no callback in any test")


def test_the_row_counts_tests_callbacks_and_what_passed() -> None:
    ours = OURS | {"b": Result("passed", 0), "c": Result("skipped", 1)}
    jax = importlib.metadata.version("jax")
    assert own_tests.row(SUITE, "1.2", OWN, ours) == f"| library 1.2 | {jax} | 3 | 2 | 1 | 2 | a bar |"


def test_names_choose_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, other = (Suite(name, (), "", jax=jax) for name, jax in (("old", "0.10.2"), ("new", ""), ("other", "")))
    monkeypatch.setattr(own_tests, "SUITES", (old, new, other))
    assert own_tests.chosen([], "0.10.2") == own_tests.chosen([], "0.12.0.1") == [new, other]
    assert own_tests.chosen(["other", "old"], "0.10.2") == [other, old]
    with pytest.raises(ValueError, match=r"0\.10\.2.*0\.12\.0\.1"):
        own_tests.chosen(["old"], "0.12.0.1")
    with pytest.raises(ValueError, match="old, new, other"):
        own_tests.chosen(["nothing"], "0.10.2")


def make_sdist(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"library-1.2/{name}")
            archive.addfile(member, io.BytesIO())
    return path


def test_one_folder_of_an_sdist_is_unpacked(tmp_path: Path) -> None:
    """The package beside it would come before the installed one."""
    sdist = make_sdist(tmp_path / "library-1.2.tar.gz", "tests/test_one.py", "library/tests/test_two.py", "setup.py")
    root = own_tests.unpack(sdist, "tests", tmp_path)
    found = [str(path.relative_to(root)) for path in root.rglob("*.py")]
    assert found == ["tests/test_one.py"]


def test_an_sdist_without_the_folder_is_refused(tmp_path: Path) -> None:
    sdist = make_sdist(tmp_path / "library-1.2.tar.gz", "setup.py")
    with pytest.raises(AssertionError, match=r"library-1\.2\.tar\.gz"):
        own_tests.unpack(sdist, "tests", tmp_path)


TESTS = """
import jax, hostcb, pytest

def test_calls():
    print(hostcb.pure_callback(abs, jax.ShapeDtypeStruct((), "float32"), -1.0))

def test_fails():
    assert False

@pytest.fixture
def broken():
    yield
    raise ValueError

def test_fails_at_its_end(broken):
    pass

@pytest.mark.skip(reason="the plugin reports it")
def test_skipped():
    pass
"""


@pytest.mark.parametrize("install", [False, True])
def test_what_the_plugin_writes(tmp_path: Path, install: bool) -> None:
    (tmp_path / "test_one.py").write_text(TESTS)
    results = own_tests.run(SUITE, tmp_path, install)
    outcomes = {name.removeprefix("test_one.py::"): result.outcome for name, result in results.items()}
    assert outcomes == {
        "test_calls": "passed",
        "test_fails": "failed",
        "test_fails_at_its_end": "failed",
        "test_skipped": "skipped",
    }
    assert [result.callbacks for result in results.values()] == [int(install), 0, 0, 0]


def test_a_pytest_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="pytest exited with 4"):
        own_tests.run(SUITE, tmp_path, install=False)


def test_each_suite_is_of_a_library_that_the_session_installs() -> None:
    libraries = tomllib.loads((PROJECT / "ci/sessions.toml").read_text())["libraries"]
    installed = {name.partition("[")[0] for names in libraries.values() for name in names}
    assert {suite.library for suite in SUITES} <= installed
