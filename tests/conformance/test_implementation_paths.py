"""Implementations whose `name` is not what they are loaded by: every process loads them by their path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.contract("C2")

ROOT = Path(__file__).parents[2]
CASE = "pure_callback/case.os_exit.pmap/cpu-1dev"

MODULE = """\
import os, sys
from types import SimpleNamespace
import jax
from conformance.implementations.external import ExternalCallbacks

class Mine(ExternalCallbacks):
    callback_exception = RuntimeError
    def __init__(self, mark):
        super().__init__(SimpleNamespace(pure_callback=jax.pure_callback))
        self.mark = mark
    def invoke(self, *arguments, **options):
        with open(os.environ["MARKS"], "a") as marks:
            marks.write(f"{self.mark} in {os.path.basename(sys.argv[0])}\\n")
        return super().invoke(*arguments, **options)
    def barrier(self):
        jax.effects_barrier()

IMPLEMENTATION, JAX = Mine("module"), Mine("jax")
IMPLEMENTATION.name = "my own callbacks"
# Another one is loaded by this.
JAX.name = "jax"
"""


def modules_in(folder: Path) -> dict[str, str]:
    """An environment in which modules are found in the current folder, in another one, and in a package."""
    (folder / "mine.py").write_text(MODULE)
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "__init__.py").write_text(MODULE.replace('"module"', '"package"'))
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "other.py").write_text(MODULE.replace('"module"', '"elsewhere"'))
    # The second one is relative, and counts from where the command is called.
    return os.environ | {"PYTHONPATH": f"{ROOT}:elsewhere", "MARKS": str(folder / "marks")}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


PATHS = {
    "mine": "module",
    "mine:JAX": "jax",
    "mypackage": "package",
    "other": "elsewhere",
}


def test_programs_of_faults_load_what_the_cell_names(tmp_path: Path) -> None:
    """In xdist's processes, too. The cell's id, by which it is expected, repeated and compared, has the path.

    The module and the package call themselves the same.
    """
    environment = modules_in(tmp_path)
    cells = [f"{path}/{CASE}" for path in PATHS]
    arguments = [argument for cell in cells for argument in ("--cell", cell)]
    ended = run(["-m", "conformance", "run", "-n", "2", "--results", "results", *arguments], tmp_path, environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "results" / "conformance-cpu.json").read_text())
    assert {cell["id"]: cell["verdict"] for cell in report["cells"]} == dict.fromkeys(cells, "pass")
    marks = (tmp_path / "marks").read_text().splitlines()
    assert sorted(marks) == sorted(f"{mark} in child_programs.py" for mark in PATHS.values())


@pytest.mark.parametrize("beside", [True, False], ids=["beside the module", "called beside the module"])
def test_a_program_of_one_cell_loads_it(beside: bool, tmp_path: Path) -> None:
    """What it starts finds the module where it does: beside itself, or in the folder in which it is called."""
    environment = modules_in(tmp_path)
    other = tmp_path / "another"
    other.mkdir()
    file = (tmp_path if beside else other) / "cell.py"
    ended = run(["-m", "conformance", "repro", f"mine/{CASE}", "--program", str(file)], tmp_path, environment)
    assert ended.returncode == 0, ended.stderr
    ended = run([str(file)], other if beside else tmp_path, environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == f"mine/{CASE}: pass"
    assert (tmp_path / "marks").read_text() == "module in child_programs.py\n"
