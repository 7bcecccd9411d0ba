"""`run --compiled DIR`: programs that are kept from run to run are the ones that would be compiled (C68)."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bundle_fakes
import pytest

from conformance.bundles.making import members_of
from conformance.cli import compiled
from conformance.engine.preparation import ConflictingOptionsError
from conformance.reports.results import UnreadableResultsError
from conformance.spec.depths import Depth
from conformance.worker.kept import FOLDER, KeptPrograms, why_not

pytestmark = pytest.mark.contract("C68")

ROOT = Path(__file__).parents[2]
DEADLINE = 240.0

CELLS = (
    "hostcb/id_tap/scan/cpu-8dev",
    "hostcb/call/while_cond/cpu-8dev",
    "hostcb/io_callback_ordered/pmap/cpu-8dev",
    "hostcb/pure_callback/shard_map/cpu-8dev",
    "hostcb/buffer_callback/jit/cpu-8dev",
    "hostcb/call/fault.raises.jit/cpu-8dev",
    "jax/pure_callback/vmap/cpu-8dev",
    "jax/io_callback_ordered/scan/cpu-8dev",
    "jax/debug_callback/pjit/cpu-8dev",
)

HERE = importlib.metadata.version("jaxlib")
KEEPS = pytest.mark.skipif(why_not("cpu", Depth.RUN) is not None, reason=f"jaxlib {HERE} cannot keep programs (C68)")


class Client:
    """A client of JAX's as far as `KeptPrograms` asks for it; an executable of it is a tuple."""

    platform = "cpu"

    def __init__(self, devices: int = 1, here: int | None = None, loads: bool = True) -> None:
        self._devices, self._here, self._loads = devices, here, loads
        self.compiled = 0

    def device_count(self) -> int:
        return self._devices

    def local_device_count(self) -> int:
        return self._devices if self._here is None else self._here

    def deserialize_executable(
        self, program: bytes, devices: Any, options: Any, callbacks: Sequence[Any] = ()
    ) -> Executable:
        if not self._loads:
            raise RuntimeError("INVALID_ARGUMENT: it was made by another compiler")
        return Executable(program, tuple(callbacks))


class Executable:
    def __init__(self, program: bytes | None, callbacks: tuple[Any, ...]) -> None:
        self.program, self.callbacks = program, callbacks

    def serialize(self) -> bytes:
        if self.program is None:
            raise RuntimeError("UNIMPLEMENTED: this executable cannot be serialized")
        return self.program


class Device:
    def __init__(self, number: int) -> None:
        self.id = number


class Settings:
    def __init__(self, text: bytes = b"options") -> None:
        self._text = text

    def SerializeAsString(self) -> bytes:
        return self._text


class Kept:
    """A folder, and what one process after the other compiles with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def compile(
        self,
        module: str = "module",
        devices: Sequence[int] = (0,),
        options: bytes = b"options",
        callbacks: Sequence[str] = ("first",),
        client: Client | None = None,
        program: bytes | None = b"program",
    ) -> tuple[Executable, int]:
        """The executable, and how often the compiler ran."""
        client = client or Client()

        def plain(client: Client, module: str, devices: Any, options: Any, callbacks: Any) -> Executable:
            client.compiled += 1
            return Executable(program, tuple(callbacks))

        made = KeptPrograms(self.folder).compile(
            plain, client, module, [Device(number) for number in devices], Settings(options), list(callbacks)
        )
        return made, client.compiled

    @property
    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "compiled")


def test_a_kept_program_is_loaded_with_the_callbacks_of_the_one_that_asks(kept: Kept) -> None:
    kept.compile(callbacks=["first"])
    executable, compiled_again = kept.compile(callbacks=["second"])
    assert (compiled_again, executable.program, executable.callbacks) == (0, b"program", ("second",))


@pytest.mark.parametrize(
    "other",
    [{"module": "another"}, {"devices": (1,)}, {"options": b"others"}, {"callbacks": ("first", "second")}],
    ids=lambda other: next(iter(other)),
)
def test_what_differs_is_compiled(kept: Kept, other: dict[str, Any]) -> None:
    kept.compile()
    assert kept.compile(**other)[1] == 1
    assert len(kept.files) == 2


def test_another_compiler_and_another_processor_compile_anew(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.compile()
    monkeypatch.setattr("conformance.worker.kept._compiler_and_machine", lambda: "another" * 8)
    assert kept.compile()[1] == 1


@pytest.mark.parametrize("length", [0, 10, 35])
def test_a_damaged_file_is_compiled_anew_and_written_again(kept: Kept, length: int) -> None:
    kept.compile()
    (file,) = kept.files
    whole = file.read_bytes()
    file.write_bytes(whole[:length])
    assert kept.compile()[1] == 1
    assert file.read_bytes() == whole
    assert kept.compile()[1] == 0


def test_a_program_that_cannot_be_loaded_is_compiled(kept: Kept) -> None:
    kept.compile()
    assert kept.compile(client=Client(loads=False))[1] == 1


def test_a_program_that_cannot_be_kept_is_compiled_each_time(kept: Kept) -> None:
    assert [kept.compile(program=None)[1] for _ in range(2)] == [1, 1]
    assert kept.files == []


def test_a_folder_that_takes_no_files_fails_no_cell(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert kept.compile()[1] == 1


def test_a_process_among_several_keeps_nothing(kept: Kept) -> None:
    assert [kept.compile(client=Client(devices=4, here=2))[1] for _ in range(2)] == [1, 1]
    assert kept.files == []


@pytest.mark.parametrize(
    ("platform", "depth", "jaxlib", "words"),
    [
        ("cpu", Depth.RUN, "0.10.2", "it needs jaxlib >=0.12, and 0.10.2 is installed"),
        ("cuda", Depth.RUN, "0.12.0.1", "this is cuda at depth run"),
        ("cpu", Depth.LOWER, "0.12.0.1", "this is cpu at depth lower"),
    ],
)
def test_the_reason_is_told_where_nothing_can_be_kept(platform: str, depth: Depth, jaxlib: str, words: str) -> None:
    assert words in (why_not(platform, depth, jaxlib) or "")
    assert why_not("cpu", Depth.RUN, "0.12.0.1") is None


@pytest.mark.parametrize("option", ["scheduler", "distributed"])
def test_cells_on_other_machines_have_no_such_folder(option: str) -> None:
    options = argparse.Namespace(compiled=Path("kept"), scheduler=None, distributed=False)
    compiled.check_options(options)
    setattr(options, option, "tcp://scheduler:8786")
    with pytest.raises(ConflictingOptionsError, match="names a folder of this machine"):
        compiled.check_options(options)


def test_only_the_option_lets_workers_keep_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "of somebody else")
    with compiled.in_force(None):
        assert FOLDER not in os.environ
    with compiled.in_force(tmp_path / "kept"):
        assert os.environ[FOLDER] == str(tmp_path / "kept")
    assert os.environ[FOLDER] == "of somebody else"


def test_no_bundle_is_made_of_them(tmp_path: Path) -> None:
    folder = bundle_fakes.write(tmp_path / "results")
    file = folder / "conformance-cpu.json"
    members_of(folder)
    results = json.loads(file.read_text())
    results["run"]["options"]["compiled"] = True
    file.write_text(json.dumps(results))
    with pytest.raises(UnreadableResultsError, match="run the cells again without it, and bundle that"):
        members_of(folder)


def run(folder: Path, results: str) -> subprocess.CompletedProcess[str]:
    cells = [word for cell in CELLS for word in ("--cell", cell)]
    options = ("--compiled", str(folder / "kept"), "--results", str(folder / results), "-n", "2")
    return subprocess.run(
        [sys.executable, "-m", "conformance", "run", *cells, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@KEEPS
def test_a_second_run_compiles_nothing_and_passes(tmp_path: Path) -> None:
    first = run(tmp_path, "first")
    assert first.returncode == 0, first.stdout
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    assert len(before) > len(CELLS)
    second = run(tmp_path, "second")
    assert second.returncode == 0, second.stdout
    # What a run compiles it keeps, so nothing new was compiled.
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    results = json.loads((tmp_path / "second" / "conformance-cpu.json").read_text())
    assert results["run"]["options"]["compiled"] is True
    assert [cell["verdict"] for cell in results["cells"]] == ["pass"] * len(CELLS)


@pytest.mark.skipif(why_not("cpu", Depth.RUN) is None, reason=f"jaxlib {HERE} can keep programs (C68)")
def test_an_older_jaxlib_is_refused_before_a_cell_runs(tmp_path: Path) -> None:
    ended = run(tmp_path, "results")
    assert ended.returncode == 2
    assert f"it needs jaxlib >=0.12, and {HERE} is installed" in ended.stderr
    assert not (tmp_path / "results" / "conformance-cpu.json").exists()
