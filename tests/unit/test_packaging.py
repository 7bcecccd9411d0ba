"""How the native extension is built, and where."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import pytest
from support.subprocesses import ROOT

from hostcb._native import library

sys.path.insert(0, str(ROOT / "ci" / "packaging"))

import native

pytestmark = pytest.mark.contract("H24")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "HOSTCB_BUILD_NATIVE", "HOSTCB_BUILD_PLATFORM"):
        monkeypatch.delenv(name, raising=False)


def test_the_mark_is_the_one_that_the_installed_copy_looks_for() -> None:
    assert native.mark() == library.build_of(library.SOURCES)


@pytest.mark.skipif(native.os.name != "posix", reason="no library is built without POSIX threads")
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"HOSTCB_BUILD_NATIVE": "0"}, "HOSTCB_BUILD_NATIVE=0 asks for that"),
        ({"CC": "no-such-compiler -O2"}, "CC names 'no-such-compiler -O2', which is not there"),
        ({"PATH": ""}, "there is no C compiler (set CC to name one)"),
    ],
)
def test_why_no_library_is_built(variables: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert native.lacks() == reason
    with pytest.raises(native.NotBuiltError, match=reason.partition(" (")[0]):
        native.build()


def test_a_value_that_is_neither_0_nor_1_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTCB_BUILD_NATIVE", "perhaps")
    with pytest.raises(ValueError, match=r"HOSTCB_BUILD_NATIVE.*'perhaps'"):
        native.lacks()


def folder_of_sources(folder: Path) -> Path:
    for path in native.sources():
        (folder / path.name).symlink_to(path)
    return folder


def test_a_compiler_that_fails_leaves_the_library_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of_sources(tmp_path)
    (folder / native.NAME).write_bytes(b"old")
    monkeypatch.setenv("CC", f"{sys.executable} -c \"raise SystemExit('nothing compiles')\"")
    with pytest.raises(native.NotBuiltError, match="nothing compiles"):
        native.build(folder=folder)
    assert (folder / native.NAME).read_bytes() == b"old"
    assert {path.name for path in folder.iterdir()} == {native.NAME, *(path.name for path in native.sources())}


def headers_of(folder: Path, minor: int) -> Path:
    header = folder / "jaxlib" / "include" / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text(f"#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR {minor}\n")
    return folder / "jaxlib" / "include"


def test_headers_are_those_of_the_build_or_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.headers() == Path(jax.ffi.include_dir())
    # A build in isolation sees no jaxlib. The environment's own folder is known all the same.
    monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(native.sysconfig, "get_path", lambda name: str(tmp_path / name))
    assert native.headers() is None
    include = headers_of(tmp_path / "platlib", minor=native.OLDEST_HEADERS)
    assert native.headers() == include


def test_headers_that_are_too_old_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers_of(tmp_path / "platlib", minor=native.OLDEST_HEADERS - 1)
    monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(native.sysconfig, "get_path", lambda name: str(tmp_path / name))
    assert native.headers() is None
    if native.lacks() is None:
        with pytest.raises(native.NotBuiltError, match=r"jaxlib 0\.10\.2"):
            native.build()


def test_a_cross_compilers_platform_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTCB_BUILD_PLATFORM", "macosx_11_0_arm64")
    assert native.platform_tag() == "macosx_11_0_arm64"


@pytest.mark.skipif(native.os.name != "posix", reason="no library is built without POSIX threads")
@pytest.mark.parametrize("here", [("Darwin", "arm64"), ("Linux", "aarch64"), ("FreeBSD", "amd64")])
def test_where_its_tests_have_never_run_a_library_is_built_on_request_alone(
    here: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native.platform, "system", lambda: here[0])
    monkeypatch.setattr(native.platform, "machine", lambda: here[1])
    reason = native.lacks()
    assert reason is not None and " ".join(here) in reason and "HOSTCB_BUILD_NATIVE=1" in reason
    monkeypatch.setenv("HOSTCB_BUILD_NATIVE", "1")
    assert (native.lacks() is None) == bool(native.compiler())
