"""Implementations in modules of their own: every process loads them by their path, which may not be their `name`."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from suite_runs import ROOT, report_in, run, verdicts

from conformance.implementations import ImplementationError, load, path_of
from conformance.implementations.external import ExternalCallbacks

pytestmark = pytest.mark.contract("C2")

CASE = "pure_callback/case.os_exit.pmap/cpu-1dev"

MODULE = """\
import os, sys
from types import SimpleNamespace
import jax
from conformance.implementations.external import ExternalCallbacks

class Mine(ExternalCallbacks):
    callback_exception = RuntimeError
    __hash__ = None
    def __eq__(self, other):
        return True
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


def test_programs_of_cases_load_what_the_cell_names(tmp_path: Path) -> None:
    """The cell's id, by which it is expected, repeated and compared, has the path.

    One module is in the current folder, one in another, and the last is the example of the documentation.
    """
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "other.py").write_text(MODULE.replace('"module"', '"elsewhere"'))
    # The second folder is relative, and counts from where the command is called.
    environment = {"PYTHONPATH": f"{ROOT}:elsewhere:{ROOT / 'examples'}", "MARKS": str(tmp_path / "marks")}
    marks = {f"mine/{CASE}": "module", f"mine:JAX/{CASE}": "jax", f"other/{CASE}": "elsewhere"}
    cells = [*marks, "own_callbacks/io_callback_ordered/jit/cpu-1dev"]
    ended = run(tmp_path, "-n", "1", *(f"--cell={cell}" for cell in cells), **environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert verdicts(report_in(tmp_path / "results")) == dict.fromkeys(cells, "pass")
    written = (tmp_path / "marks").read_text().splitlines()
    assert sorted(written) == sorted(f"{mark} in child_programs.py" for mark in marks.values())


def test_a_path_is_that_by_which_an_implementation_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its name nor one that is equal to it; and where no path leads to it there is an error."""
    module = f"planted_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    for path in ("hostcb", "jax", "conformance.mutants:late", module, f"{module}:JAX"):
        assert path_of(load(path)) == path

    class Nobodys(ExternalCallbacks):
        callback_exception = RuntimeError

        def barrier(self) -> None: ...

    nobodys: Any = Nobodys(SimpleNamespace(pure_callback=jax.pure_callback))
    for name in ("jax", "mine", None, "conformance.planning.cells"):
        nobodys.name = name
        with pytest.raises(ImplementationError):
            path_of(nobodys)


@pytest.mark.parametrize(
    "name",
    ["no_such_module", "examples/own_callbacks.py", "conformance.mutants:no_such", "conformance.planning.cells"],
)
def test_unusable_names(name: str) -> None:
    with pytest.raises(ImplementationError, match=re.escape(name.rpartition(":")[2])):
        load(name)
