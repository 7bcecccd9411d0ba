"""Cases: their catalogue, whose failure a failure is, and how the end of a child process is classed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from suite_runs import PATH

from conformance.cases.failures.runtime_targets import judge_end
from conformance.cases.harness import child_processes
from conformance.cases.harness.case import Case
from conformance.cases.harness.catalogue import all_cases
from conformance.cases.harness.child_processes import ChildEndedError, Ended
from conformance.cases.harness.registry import RegisteredCase
from conformance.cases.harness.registry import case as registered
from conformance.cases.harness.running import run_case
from conformance.implementations import Implementation, ImplementationError, load, path_of
from conformance.implementations.external import ExternalCallbacks
from conformance.implementations.hostcb import Hostcb
from conformance.oracle.stages import stacks_in, stage_of_stacks
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import CaseCell, make_plan
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C4")

FOUND = {(case.callback, case.name): case for case in all_cases()}


def test_the_catalogue() -> None:
    assert len(FOUND) == len(all_cases())
    for case in all_cases():
        assert case.isolated or not case.xla_flags, f"{case.name} sets flags for all that run in its process"
        assert case.isolated or case.deadline is not None, f"{case.name} may hold up its process for long"
    with pytest.raises(ValueError, match=r"case\.tap_raises\.jit of id_tap is entered twice"):
        registered("jit", "id_tap", kind="tap_raises")(lambda case: None)


def test_a_case_runs_for_implementations_with_the_functions_that_it_uses() -> None:
    case = FOUND["io_callback_ordered", "case.goes_on_beside_a_slow_device.pmap"]
    plan = make_plan(("hostcb", "jax"), (Topology("cpu", 8),))
    assert {cell.implementation for cell in plan.cells if isinstance(cell, CaseCell) and cell.case == case} == {
        "hostcb"
    }
    (reason,) = {one.reason for one in plan.ineligible if one.id == f"jax/io_callback_ordered/{case.name}/cpu-8dev"}
    assert reason == f"jax has no {case.functions}"


# Whose failure it is ------------------------------------------------------------------------------------------------


def test_an_error_of_the_implementation_is_a_failure(devices: list[jax.Device]) -> None:
    def refusing(*arguments: Any, **options: Any) -> Any:
        raise TypeError("this library has another signature")

    names = {**vars(load("hostcb").namespace), "call": refusing}  # type: ignore[attr-defined]
    case = FOUND["call", "case.two_threads.jit"]
    outcome = run_case(case, Hostcb(SimpleNamespace(**names)), devices)
    assert outcome.verdict is Verdict.FAIL
    assert "another signature" in outcome.reason


def test_an_exception_that_escapes_a_case_has_its_stage(devices: list[jax.Device]) -> None:
    def scenario(case: Case) -> None:
        case.program(lambda operand: 1 / 0)(case.operand).block_until_ready()

    implementation = load("hostcb")
    outcome = run_case(RegisteredCase("planted", "jit", "call", (), scenario), implementation, devices)
    with pytest.raises(implementation.callback_exception):
        implementation.barrier()
    assert (outcome.verdict, outcome.stage, outcome.anomaly) == (Verdict.FAIL, Stage.DISPATCH, "error")
    assert "ZeroDivisionError" in outcome.reason


def test_a_mistake_of_the_suite_is_no_failure_of_the_implementation(devices: list[jax.Device]) -> None:
    case = RegisteredCase("planted", "no_such_layout", "call", (), lambda case: case.callback_shape)
    with pytest.raises(KeyError, match="no_such_layout"):
        run_case(case, load("hostcb"), devices)


# Processes that end -------------------------------------------------------------------------------------------------

DUMP = """\
terminate called without an active exception
Fatal Python error: Aborted

Thread 0x00007fc2 (most recent call first):
  File "/somewhere/threading.py", line 359 in wait

Current thread 0x00007fc1 (most recent call first):
  File "/somewhere/jax/_src/interpreters/pxla.py", line 1300 in __call__
  File "/somewhere/program.py", line 3 in <module>

Extension modules: numpy (total: 1)
"""

CRASH_OF_THE_RUNTIME = """\
Fatal Python error: Aborted

Thread 0x00007fc2 (most recent call first):
  File "/somewhere/threading.py", line 359 in wait

Thread 0x00007fc1 (most recent call first):
  File "/somewhere/jax/_src/array.py", line 647 in _value
  File "/somewhere/program.py", line 3 in <module>
"""


def test_stacks_show_the_stage() -> None:
    assert stacks_in(DUMP).startswith("Fatal Python error: Aborted")
    assert stacks_in("nothing of the kind") == ""
    assert stage_of_stacks(DUMP) is Stage.DISPATCH
    # No thread is the current one then; the main thread waits for what the runtime was to do.
    assert stage_of_stacks(CRASH_OF_THE_RUNTIME) is Stage.RESULT
    assert stage_of_stacks("nothing of the kind") is None


@pytest.mark.parametrize(
    ("status", "label"), [(None, "hang"), (-6, "crash(SIGABRT)"), (-11, "crash(SIGSEGV)"), (3, "crash(exit 3)")]
)
def test_the_end_of_a_child_process_is_classed(status: int | None, label: str) -> None:
    with pytest.raises(ChildEndedError) as caught:
        Ended(status, Stage.CALLBACK, (), DUMP).check()
    assert (caught.value.outcome.label, caught.value.outcome.stage) == (label, Stage.CALLBACK)
    assert "pxla.py" in caught.value.outcome.reason
    Ended(7, Stage.CALLBACK, (), "").check(7)


@pytest.mark.parametrize("status", [-6, 1, None])
def test_only_a_wrong_result_corrupts_memory(status: int | None) -> None:
    """Writing over the heap is one failure: a crash in one run, an endless search of the heap in the next."""
    case = Case(load("jax"), "jit", [], "ffi_target")
    for stage in (Stage.DISPATCH, Stage.RESULT):
        judge_end(case, "longest_result", Ended(status, stage, (), DUMP))
    assert [anomaly.kind for anomaly in case.anomalies] == ["memory corruption"] * 2
    for kind, stage in (("right_result", Stage.RESULT), ("long_result", Stage.TRACE)):
        with pytest.raises(ChildEndedError):
            judge_end(case, kind, Ended(status, stage, (), DUMP))


# Programs in child processes: what it means not to begin, and which implementation they load --------------------------

OS_EXIT = FOUND["pure_callback", "case.os_exit.pmap"]

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
    monkeypatch.setenv("PYTHONPATH", f"{PATH}:{folder}")
    return load(module)


def harness_error(outcome: Outcome) -> str:
    assert (outcome.verdict, outcome.signal, outcome.anomaly) == (Verdict.HARNESS_ERROR, None, ""), outcome.reason
    return outcome.reason


@pytest.mark.parametrize(
    ("case", "planted", "words"),
    [
        (OS_EXIT, "import no_such_module", "ended with exit 1: ModuleNotFoundError: No module named"),
        (OS_EXIT, "os._exit(7)", "ended with exit 7: it wrote nothing"),
        (OS_EXIT, "os.abort()", "ended with SIGABRT: Fatal Python error: Aborted"),
        (OS_EXIT, "time.sleep(600)", "it had not begun after 2 s"),
    ],
    ids=["error", "wanted status", "abort", "hang"],
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
        monkeypatch.setattr(child_processes, "DEADLINE", 2.0)
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
