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

import pytest

from conformance.cli import compiled
from conformance.cli.commands import main
from conformance.engine.preparation import ConflictingOptionsError
from conformance.spec.depths import Depth
from conformance.worker.kept import KeptPrograms, why_not

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


class Module:
    """A module of MLIR's. Its text has no locations; with them, it has the names of its operations."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name, self.operation = text, name, self

    def __str__(self) -> str:
        return self._text

    def get_asm(self, enable_debug_info: bool) -> str:
        assert enable_debug_info
        return (
            f'{self._text}\n#loc1 = loc("conformance/worker/execution.py":173:0)\n#loc2 = loc("{self._name}"(#loc1))\n'
        )


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
        module: str = "stablehlo.custom_call @xla_ffi_python_cpu_callback(%arg0)",
        name: str = "jit(f)/pure_callback",
        devices: Sequence[int] = (0,),
        options: bytes = b"options",
        callbacks: Sequence[str] = ("first",),
        client: Client | None = None,
        program: bytes | None = b"program",
    ) -> tuple[Executable, int]:
        """The executable, and how often the compiler ran."""
        client = client or Client()

        def plain(client: Client, module: Module, devices: Any, options: Any, callbacks: Any) -> Executable:
            client.compiled += 1
            return Executable(program, tuple(callbacks))

        made = KeptPrograms(self.folder).compile(
            plain,
            client,
            Module(module, name),
            [Device(number) for number in devices],
            Settings(options),
            list(callbacks),
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
    [
        {"module": "stablehlo.custom_call @hostcb_tap_3(%arg0)"},
        {"name": "jit(f)/scope/pure_callback"},
        {"devices": (1,)},
        {"options": b"others"},
        {"callbacks": ("first", "second")},
        {"client": Client(devices=8)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_differs_is_compiled(kept: Kept, other: dict[str, Any]) -> None:
    kept.compile()
    assert kept.compile(**other)[1] == 1
    assert len(kept.files) == 2


@pytest.mark.parametrize("target", ["CustomSPMDPartitioning", "somebody_elses_call"])
def test_a_program_with_a_call_that_is_not_known_is_compiled_each_time(target: str, kept: Kept) -> None:
    """Its text may have an address, at which there is another object the next time."""
    assert [kept.compile(module=f"stablehlo.custom_call @{target}(%arg0)")[1] for _ in range(2)] == [1, 1]
    assert kept.files == []


def test_other_threads_compile_anew(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA:CPU divides large loops for the threads that there are."""
    kept.compile()
    monkeypatch.setenv("NPROC", "16")
    assert kept.compile()[1] == 1


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
    whole = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        whole(path, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert kept.compile()[1] == 1
    assert kept.files == []


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


@pytest.mark.parametrize(
    ("topology", "words"), [("cpu-2x2", "over several processes"), ("cpu-1dev", "it is no folder")]
)
@pytest.mark.skipif(why_not("cpu", Depth.RUN) is not None, reason=f"jaxlib {HERE} cannot keep programs (C68)")
def test_what_cannot_be_kept_is_refused(
    topology: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    if topology == "cpu-1dev":
        folder.write_text("")
    cell = f"jax/pure_callback/jit/{topology}"
    assert main(["run", "--cell", cell, "--compiled", str(folder), "--results", str(tmp_path / "results")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "results" / "conformance-cpu.json").exists()


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


PROGRAMS = """
import pathlib, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback
import hostcb as hcb
from conformance.worker.kept import KeptPrograms
from conformance.worker.private_jax import compile_with

compiled = []

def compiling(plain, *arguments):
    def counted(*arguments):
        compiled.append(arguments)
        return plain(*arguments)
    return kept.compile(counted, *arguments)

kept = KeptPrograms(pathlib.Path(sys.argv[1]))
compile_with(compiling)
seen = []
# One of them has a token: JAX orders the tokens of two effects by their addresses, in each process in its own way.
tap = lambda value, transforms: seen.append(float(value))
step = lambda x, y: (hcb.id_tap(tap, x + y), io_callback(lambda x: x * 2, x, x))
scanned = jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(3.0)))(jnp.float32(1))
mapped = jax.pmap(lambda x: hcb.call(lambda x: x + 1, x, result_shape=x))(jnp.arange(2.0))
hcb.barrier_wait()
print(len(compiled), scanned[0], scanned[1].tolist(), mapped.tolist(), seen)
"""

PARTITIONED = """
import gc, pathlib, sys
import jax, numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from conformance.worker.kept import KeptPrograms
from conformance.worker.private_jax import compile_with

compile_with(KeptPrograms(pathlib.Path(sys.argv[1])).compile)
halves = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("i",)), PartitionSpec("i"))
x = jax.device_put(np.zeros(4, np.float32), halves)

def plus(number):
    added = custom_partitioning(lambda x: x + number)
    added.def_partition(
        partition=lambda mesh, shapes, result: (mesh, lambda x: x + number, halves, (halves,)),
        infer_sharding_from_operands=lambda mesh, shapes, result: halves,
        sharding_rule="i -> i",
    )
    return float(jax.jit(lambda x: added(x))(x)[0])

# JAX writes the address of an object into the module, and the object of the next program may have the same one.
wrong = []
for number in range(1, 41):
    if plus(float(number)) != number:
        wrong.append(number)
    jax.clear_caches()
    gc.collect()
print(wrong)
"""


def printed_by(program: str, folder: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@KEEPS
def test_another_process_compiles_nothing_and_calls_its_own_functions(tmp_path: Path) -> None:
    first, second = (printed_by(PROGRAMS, tmp_path) for _ in range(2))
    count, _, values = first.partition(" ")
    assert int(count) > 2
    assert second == f"0 {values}"
    assert values == "4.0 [2.0, 2.0, 4.0] [1.0, 2.0] [1.0, 2.0, 4.0]"


@KEEPS
def test_a_program_whose_partition_is_python_is_never_mistaken(tmp_path: Path) -> None:
    assert printed_by(PARTITIONED, tmp_path) == "[]"


@KEEPS
def test_a_second_run_passes_and_says_that_it_kept_programs(tmp_path: Path) -> None:
    first, second = run(tmp_path, "first"), run(tmp_path, "second")
    assert first.returncode == 0, first.stdout
    assert second.returncode == 0, second.stdout
    assert len([path for path in (tmp_path / "kept").rglob("*") if path.is_file()]) > len(CELLS)
    results = json.loads((tmp_path / "second" / "conformance-cpu.json").read_text())
    assert results["run"]["options"]["compiled"] is True
    assert [cell["verdict"] for cell in results["cells"]] == ["pass"] * len(CELLS)


@pytest.mark.skipif(why_not("cpu", Depth.RUN) is None, reason=f"jaxlib {HERE} can keep programs (C68)")
def test_an_older_jaxlib_is_refused_before_a_cell_runs(tmp_path: Path) -> None:
    ended = run(tmp_path, "results")
    assert ended.returncode == 2
    assert f"it needs jaxlib >=0.12, and {HERE} is installed" in ended.stderr
    assert not (tmp_path / "results" / "conformance-cpu.json").exists()
