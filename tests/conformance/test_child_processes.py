"""Programs of cases in child processes: which implementation they load, and what it means not to begin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from conformance.cases.harness import child_processes
from conformance.cases.harness.case import Case
from conformance.cases.harness.catalogue import all_cases
from conformance.cases.harness.registry import RegisteredCase
from conformance.cases.harness.running import run_case
from conformance.implementations import Implementation, ImplementationError, load, path_of
from conformance.implementations.external import ExternalCallbacks
from conformance.oracle.verdicts import Outcome, Stage, Verdict

pytestmark = pytest.mark.contract("C4")

ROOT = Path(__file__).parents[2]
(OS_EXIT,) = (case for case in all_cases() if (case.kind, case.callback) == ("os_exit", "pure_callback"))

IN_CHILD = """\
import os, sys, time
from conformance.implementations.jax import IMPLEMENTATION

if sys.argv[0].endswith("child_programs.py"):
    {planted}
"""


def implementation_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Implementation:
    """The implementation in a module of this text."""
    # A module is loaded once: every test has a path of its own.
    module = f"planted_{folder.name}"
    (folder / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{folder}")
    return load(module)


def harness_error(outcome: Outcome) -> str:
    assert (outcome.verdict, outcome.signal, outcome.anomaly) == (Verdict.HARNESS_ERROR, None, ""), outcome.reason
    return outcome.reason


@pytest.mark.parametrize(
    ("case", "planted", "words"),
    [
        (OS_EXIT, "import no_such_module", "ended with exit 1: ModuleNotFoundError: No module named"),
        (OS_EXIT, "sys.exit(0)", "ended with exit 0: it wrote nothing"),
        (OS_EXIT, "os._exit(7)", "ended with exit 7: it wrote nothing"),
        (OS_EXIT, "os.abort()", "ended with SIGABRT: Fatal Python error: Aborted"),
        (OS_EXIT, "time.sleep(600)", "it had not begun after 8 s"),
    ],
    ids=["error", "exit", "wanted status", "abort", "hang"],
)
def test_a_program_that_does_not_begin_is_no_crash_of_the_implementation(
    case: RegisteredCase,
    planted: str,
    words: str,
    devices: list[jax.Device],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "sleep" in planted:
        # The others may need longer on a busy machine.
        monkeypatch.setattr(child_processes, "DEADLINE", 8.0)
    implementation = implementation_of(IN_CHILD.format(planted=planted), tmp_path, monkeypatch)
    assert words in harness_error(run_case(case, implementation, devices))


def test_what_an_implementation_prints_is_no_report(
    devices: list[jax.Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may look alike, and it may leave its line open."""
    planted = """print('{"stage": "no such stage"}\\\\n{"said": 1}\\\\n{', end="", flush=True)"""
    implementation = implementation_of(IN_CHILD.format(planted=planted), tmp_path, monkeypatch)
    ended = Case(implementation, "pmap", devices, "pure_callback").child("os_exit")
    assert (ended.status, ended.stage, ended.said) == (7, Stage.CALLBACK, ())


# Which implementation a child process loads -------------------------------------------------------------------------

PLANTED = """\
from conformance.implementations.jax import Jax, NAMESPACE

class Equal(Jax):
    __hash__ = None
    def __eq__(self, other):
        return True

IMPLEMENTATION = Equal(NAMESPACE)
ANOTHER = Equal(NAMESPACE)
"""


def test_the_path_is_that_by_which_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its name nor one that is equal to it."""
    implementation_of(PLANTED, tmp_path, monkeypatch)
    module = f"planted_{tmp_path.name}"
    for path in ("hostcb", "jax", "conformance.mutants:late", module, f"{module}:ANOTHER"):
        assert path_of(load(path)) == path


@pytest.mark.parametrize("name", ["jax", "mine", None, "conformance.planning.cells"])
def test_one_that_no_path_leads_to_is_not_taken_for_another(name: Any, devices: list[jax.Device]) -> None:
    class Nobodys(ExternalCallbacks):
        callback_exception = RuntimeError

        def barrier(self) -> None: ...

    nobodys: Any = Nobodys(SimpleNamespace(pure_callback=jax.pure_callback))
    nobodys.name = name
    with pytest.raises(ImplementationError):
        path_of(nobodys)
    assert "ImplementationError" in harness_error(run_case(OS_EXIT, nobodys, devices))
