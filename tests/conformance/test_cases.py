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
from conformance.implementations import load
from conformance.implementations.hostcb import Hostcb
from conformance.oracle.stages import stacks_in, stage_of_stacks
from conformance.oracle.verdicts import Stage, Verdict

pytestmark = pytest.mark.contract("C4")

FOUND = {(case.callback, case.name): case for case in all_cases()}


def test_the_catalogue() -> None:
    assert len(FOUND) == len(all_cases())
    for case in all_cases():
        assert case.isolated or not case.xla_flags, f"{case.name} sets flags for all that run in its process"
        assert case.isolated or case.deadline is not None, f"{case.name} may hold up its process for long"
    with pytest.raises(ValueError, match=r"case\.tap_raises\.jit of id_tap is entered twice"):
        registered("jit", "id_tap", kind="tap_raises")(lambda case: None)


def test_whose_failure_it_is(devices: list[jax.Device]) -> None:
    """The implementation's, with its stage, or that of the suite."""

    def refusing(*arguments: Any, **options: Any) -> Any:
        raise TypeError("this library has another signature")

    hostcb = load("hostcb")
    names = {**vars(hostcb.namespace), "call": refusing}  # type: ignore[attr-defined]
    outcome = run_case(FOUND["call", "case.two_threads.jit"], Hostcb(SimpleNamespace(**names)), devices)
    assert outcome.verdict is Verdict.FAIL and "another signature" in outcome.reason

    def scenario(case: Case) -> None:
        case.program(lambda operand: 1 / 0)(case.operand).block_until_ready()

    outcome = run_case(RegisteredCase("planted", "jit", "call", (), scenario), hostcb, devices)
    with pytest.raises(hostcb.callback_exception):
        hostcb.barrier()
    assert (outcome.verdict, outcome.stage, outcome.anomaly) == (Verdict.FAIL, Stage.DISPATCH, "error")
    assert "ZeroDivisionError" in outcome.reason
    mistaken = RegisteredCase("planted", "no_such_layout", "call", (), lambda case: case.callback_shape)
    with pytest.raises(KeyError, match="no_such_layout"):
        run_case(mistaken, hostcb, devices)


# Processes that end.

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
    """Writing over the heap is one failure: a crash in one run, an endless search of the heap in the next."""
    with pytest.raises(ChildEndedError) as caught:
        Ended(status, Stage.CALLBACK, (), DUMP).check()
    assert (caught.value.outcome.label, caught.value.outcome.stage) == (label, Stage.CALLBACK)
    assert "pxla.py" in caught.value.outcome.reason
    Ended(7, Stage.CALLBACK, (), "").check(7)
    case = Case(load("jax"), "jit", [], "ffi_target")
    for stage in (Stage.DISPATCH, Stage.RESULT):
        judge_end(case, "longest_result", Ended(status, stage, (), DUMP))
    assert [anomaly.kind for anomaly in case.anomalies] == ["memory corruption"] * 2
    for kind, stage in (("right_result", Stage.RESULT), ("long_result", Stage.TRACE)):
        with pytest.raises(ChildEndedError):
            judge_end(case, kind, Ended(status, stage, (), DUMP))


IN_CHILD = """\
import os, sys, time
from conformance.implementations.jax import IMPLEMENTATION

if sys.argv[0].endswith("child_programs.py"):
    {planted}
"""


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ("os._exit(7)", "ended with exit 7: it wrote nothing"),
        ("os.abort()", "ended with SIGABRT: Fatal Python error: Aborted"),
        ("time.sleep(600)", "it had not begun after 2 s"),
    ],
)
def test_a_program_that_does_not_begin_is_no_crash_of_the_implementation(
    planted: str, words: str, devices: list[jax.Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it ends with the status that the case expects."""
    if "sleep" in planted:
        # The others may need longer on a busy machine.
        monkeypatch.setattr(child_processes, "DEADLINE", 2.0)
    # A module is loaded once: every test has a path of its own.
    module = f"planted_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(IN_CHILD.format(planted=planted))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{PATH}:{tmp_path}")
    outcome = run_case(FOUND["pure_callback", "case.os_exit.pmap"], load(module), devices)
    assert (outcome.verdict, outcome.signal, outcome.anomaly) == (Verdict.HARNESS_ERROR, None, "")
    assert words in outcome.reason
