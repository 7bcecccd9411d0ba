"""Implementations in modules of their own: every process loads them by their path, which may not be their `name`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from suite_runs import ROOT, python, report_in, run, verdicts

from conformance.implementations import ImplementationError, load

pytestmark = pytest.mark.contract("C2")

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
    return {"PYTHONPATH": f"{ROOT}:elsewhere", "MARKS": str(folder / "marks")}


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
    ended = run(tmp_path, "-n", "2", *(f"--cell={cell}" for cell in cells), **environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert verdicts(report_in(tmp_path / "results")) == dict.fromkeys(cells, "pass")
    marks = (tmp_path / "marks").read_text().splitlines()
    assert sorted(marks) == sorted(f"{mark} in child_programs.py" for mark in PATHS.values())


def test_a_program_of_one_cell_loads_it(tmp_path: Path) -> None:
    """What it starts finds the module where it does: in the folder in which it is called."""
    environment = modules_in(tmp_path)
    (tmp_path / "another").mkdir()
    file = tmp_path / "another" / "cell.py"
    ended = python(tmp_path, "-m", "conformance", "repro", f"mine/{CASE}", "--program", str(file), **environment)
    assert ended.returncode == 0, ended.stderr
    ended = python(tmp_path, str(file), **environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == f"mine/{CASE}: pass"
    assert (tmp_path / "marks").read_text() == "module in child_programs.py\n"


def test_the_example(tmp_path: Path) -> None:
    """The module is found in the folder in which the command is called."""
    names = [f"own_callbacks/{name}/jit/cpu-2dev" for name in ("pure_callback", "io_callback", "io_callback_ordered")]
    chosen = [f"--cell={name}" for name in names]
    ended = python(ROOT / "examples", "-m", "conformance", "run", "--results", str(tmp_path), *chosen)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert verdicts(report_in(tmp_path)) == dict.fromkeys(names, "pass")


@pytest.mark.parametrize(
    "name",
    ["no_such_module", "examples/own_callbacks.py", "conformance.mutants:no_such", "conformance.planning.cells"],
)
def test_unusable_names(name: str) -> None:
    with pytest.raises(ImplementationError, match=re.escape(name.rpartition(":")[2])):
        load(name)
