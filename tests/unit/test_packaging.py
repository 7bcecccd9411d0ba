"""How the native extension is built: what the environment says, and what is read of a compiled library."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import jax
import pytest
from support.subprocesses import ROOT

from hostcb._native import library

sys.path.insert(0, str(ROOT / "ci" / "packaging"))

import binaries
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


@pytest.mark.skipif(sys.platform != "linux" or not native.compiler(), reason="needs Linux and a C compiler")
def test_a_library_for_linux_is_read(tmp_path: Path) -> None:
    found = binaries.read(native.build(folder=folder_of_sources(tmp_path)).read_bytes())
    assert found.system == "linux" and native.platform_tag() == f"linux_{found.machine}"
    assert {"hostcb_tap", "hostcb_instantiate", "hostcb_sleep"} <= found.exported
    assert found.oldest >= (2, 2)


def test_a_library_for_macos_is_read() -> None:
    names = b"\0_hostcb_tap\0_hidden\0_pthread_join\0"
    symbols = [(1, 0x0F, 1), (13, 0x1F, 1), (21, 0x01, 0)]
    table = b"".join(struct.pack("<IBBHQ", name, flags, section, 0, 0) for name, flags, section in symbols)
    commands = [
        struct.pack("<6I", 0x32, 24, 1, 11 << 16 | 3 << 8, 0, 0),
        struct.pack("<6I", 0x02, 24, 120, len(symbols), 120 + len(table), len(names)),
        struct.pack("<4I", 0x1D, 16, 0, 0),
    ]
    head = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, len(commands), sum(map(len, commands)), 0, 0)
    found = binaries.read((head + b"".join(commands)).ljust(120, b"\0") + table + names)
    assert found == binaries.Binary("macosx", "arm64", frozenset({"hostcb_tap"}), (11, 3), signed=True)


def test_anything_else_is_refused() -> None:
    with pytest.raises(binaries.UnreadableError, match="b'no lib'"):
        binaries.read(b"no library")
