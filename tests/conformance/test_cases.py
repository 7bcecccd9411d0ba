"""Cases: their catalogue, whose failure a failure is, how children end, and what a platform refuses."""

from __future__ import annotations

import inspect
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from suite_runs import DEADLINE, PATH, Patch

from conformance.cases.failures.runtime_targets import judge_end
from conformance.cases.harness import running
from conformance.cases.harness.case import Case
from conformance.cases.harness.catalogue import all_cases
from conformance.cases.harness.child_processes import ChildEndedError, Ended
from conformance.cases.harness.hosts import fail
from conformance.cases.harness.registry import RegisteredCase
from conformance.cases.harness.registry import case as registered
from conformance.cases.harness.running import run_case
from conformance.cases.lifetimes import kept_and_donated_operands
from conformance.implementations import load
from conformance.implementations.hostcb import Hostcb
from conformance.oracle.stages import refusal_in, stacks_in, stage_of_stacks
from conformance.oracle.verdicts import Stage, Verdict

pytestmark = pytest.mark.contract("C4")

FOUND = {(case.callback, case.name): case for case in all_cases()}


def test_the_catalogue() -> None:
    assert len(FOUND) == len(all_cases())
    for case in all_cases():
        assert case.isolated or not case.xla_flags, f"{case.name} sets flags for all that run in its process"
        assert case.isolated or case.deadline is not None, f"{case.name} may hold up its process for long"
        assert inspect.getdoc(case.run), f"{case.name} does not say what must hold"
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
    assert (outcome.verdict, outcome.stage, outcome.anomaly) == (Verdict.FAIL, Stage.DISPATCH, "error")
    assert "ZeroDivisionError" in outcome.reason
    mistaken = RegisteredCase("planted", "no_such_layout", "call", (), lambda case: case.callback_shape)
    with pytest.raises(KeyError, match="no_such_layout"):
        run_case(mistaken, hostcb, devices)


def test_failures_of_a_case_are_not_of_the_next(devices: list[jax.Device]) -> None:
    """Neither that of a case that ends with it, nor one that the case's own barrier has raised."""
    implementation, dispatched = load("jax"), threading.Event()

    def host(operand: Any) -> Any:
        dispatched.wait(DEADLINE)
        return fail(operand)

    def scenario(case: Case) -> None:
        result = case.program(host)(case.operand)
        dispatched.set()
        if ends:
            result.block_until_ready()

    for ends, kind in ((True, "error"), (False, "stale error")):
        dispatched.clear()
        planted = RegisteredCase("planted", "pmap", "io_callback", (), scenario)
        assert run_case(planted, implementation, devices).anomaly == kind
        implementation.barrier()
        jax.effects_barrier()


def test_a_program_that_does_not_compile_has_no_failure_of_an_earlier_one(devices: list[jax.Device]) -> None:
    for function, found in (("backend_compile", (Stage.COMPILE, "error")), ("run", (Stage.DISPATCH, "stale error"))):
        names: dict[str, Any] = {}
        exec(compile(f"def {function}(x): raise ValueError('planted')", "/somewhere/compiler.py", "exec"), names)
        case = Case(load("jax"), "jit", devices[:1], "io_callback")
        case.gives(None, names[function], 1)
        assert [(each.stage, each.kind) for each in case.anomalies] == [found]


# Processes that end.

THREAD = 'Thread 0x00007fc2 (most recent call first):\n  File "/somewhere/threading.py", line 359 in wait\n\n'
DUMP = f"""\
terminate called without an active exception
Fatal Python error: Aborted

{THREAD}Current thread 0x00007fc1 (most recent call first):
  File "/somewhere/jax/_src/interpreters/pxla.py", line 1300 in __call__
  File "/somewhere/program.py", line 3 in <module>

Extension modules: numpy (total: 1)
"""
CRASH_OF_THE_RUNTIME = f"""\
Fatal Python error: Aborted

{THREAD}Thread 0x00007fc1 (most recent call first):
  File "/somewhere/jax/_src/array.py", line 647 in _value
"""


def test_the_end_of_a_child_process_is_classed() -> None:
    """Writing over the heap is one failure: a crash in one run, an endless search of the heap in the next."""
    assert stacks_in(DUMP).startswith("Fatal Python error: Aborted")
    assert stage_of_stacks(DUMP) is Stage.DISPATCH
    # No thread is the current one then; the main thread waits for what the runtime was to do.
    assert stage_of_stacks(CRASH_OF_THE_RUNTIME) is Stage.RESULT
    assert (stacks_in("nothing of the kind"), stage_of_stacks("nothing of the kind")) == ("", None)
    labels = {None: "hang", -6: "crash(SIGABRT)", -11: "crash(SIGSEGV)", 3: "crash(exit 3)"}
    case = Case(load("jax"), "jit", [], "ffi_target")
    for status, label in labels.items():
        with pytest.raises(ChildEndedError) as caught:
            Ended(status, "", DUMP, Stage.CALLBACK, ()).check()
        assert (caught.value.outcome.label, caught.value.outcome.stage) == (label, Stage.CALLBACK)
        assert "pxla.py" in caught.value.outcome.reason
        for stage in (Stage.DISPATCH, Stage.RESULT):
            judge_end(case, "longest_result", Ended(status, "", DUMP, stage, ()))
        for kind, stage in (("right_result", Stage.RESULT), ("long_result", Stage.TRACE)):
            with pytest.raises(ChildEndedError):
                judge_end(case, kind, Ended(status, "", DUMP, stage, ()))
    assert [anomaly.kind for anomaly in case.anomalies] == ["memory corruption"] * 2 * len(labels)
    Ended(7, "", "", Stage.CALLBACK, ()).check(7)


IN_CHILD = """\
import os, sys
from conformance.implementations.jax import IMPLEMENTATION

if sys.argv[0].endswith("child_programs.py"):
    os._exit(7)
"""


def test_a_program_that_does_not_begin_is_no_crash_of_the_implementation(
    devices: list[jax.Device], tmp_path: Path, monkeypatch: Patch
) -> None:
    """Even if it ends with the status that the case expects."""
    # A module is loaded once: every test has a path of its own.
    module = f"planted_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(IN_CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{PATH}:{tmp_path}")
    outcome = run_case(FOUND["pure_callback", "case.os_exit.pmap"], load(module), devices)
    assert (outcome.verdict, outcome.signal, outcome.anomaly) == (Verdict.HARNESS_ERROR, None, "")
    assert "ended with exit 7: it wrote nothing" in outcome.reason


@pytest.mark.parametrize("kind", ["donated", "donated_again"])
def test_a_platform_on_which_jax_does_not_donate(kind: str, monkeypatch: Patch) -> None:
    """JAX has a list of the platforms that donate, and leaves out those that it does not know."""
    case, jit = FOUND["io_callback", f"case.{kind}.jit"], jax.jit

    def undonated(function: Any, donate_argnums: Any = (), **options: Any) -> Any:
        return jit(function, **options)

    monkeypatch.setattr(jax, "jit", undonated)
    outcome = run_case(case, load("jax"), jax.devices()[:1])
    assert (outcome.verdict, outcome.anomaly) == (Verdict.UNSUPPORTED, "not applicable")
    assert outcome.cause == outcome.reason == "JAX donates no operand on cpu"


@pytest.mark.parametrize("kept", [True, False])
def test_an_operand_that_is_not_donated_is_not_a_wrong_result(kept: bool, monkeypatch: Patch) -> None:
    """The program of the case donates nothing, though JAX would."""
    monkeypatch.setattr(kept_and_donated_operands, "_donating", lambda case, computation: jax.jit(computation))
    case = FOUND["io_callback", f"case.{'donated_again' if kept else 'donated'}.jit"]
    outcome = run_case(case, load("jax"), jax.devices()[:1])
    assert (outcome.verdict, outcome.anomaly) == (Verdict.FAIL, "not refused" if kept else "not donated")
    assert "result:" not in outcome.reason


# A platform's refusal of a program: recognised in its many words, once for each cause, and never without a trial.

NOT_FOUND = "MLIR translation rule for primitive 'debug_callback' not found for platform acme_npu"
HOST = "host callbacks are not supported on acme_npu"
NO_HANDLER = "No FFI handler registered for xla_ffi_python_cpu_callback"
CPU_CALLBACK = "UNIMPLEMENTED: CpuCallback error calling callback"


@pytest.mark.contract("C51")
def test_cells_with_the_same_cause_share_it() -> None:
    """While a program runs only the words of the runtime count."""
    for text, early, late in (
        (NOT_FOUND, NOT_FOUND, None),
        (f"pure_callback(f at 0x7f12): {HOST}: JAX has no `emit_...`", HOST, None),
        (f"NOT_FOUND: {NO_HANDLER} on a platform Host", NO_HANDLER, NO_HANDLER),
        ("UNIMPLEMENTED: send of 0x7f1234 is missing\nmore", *["UNIMPLEMENTED: send of # is missing"] * 2),
        ("INTERNAL: something else", None, None),
        # The exception of a callback may have any text.
        ("INTERNAL: CpuCallback error: NotImplementedError: UNIMPLEMENTED", "UNIMPLEMENTED", None),
        (CPU_CALLBACK, CPU_CALLBACK, None),
    ):
        assert refusal_in(text, Stage.LOWER) == refusal_in(text, Stage.COMPILE) == early
        assert refusal_in(text, Stage.DISPATCH) == refusal_in(text, Stage.RESULT) == late


@pytest.mark.contract("C51")
@pytest.mark.parametrize(
    ("passes", "refused", "verdict"),
    [(True, True, Verdict.PASS), (False, True, Verdict.UNSUPPORTED), (False, False, Verdict.FAIL)],
)
def test_a_case_runs_before_it_is_called_unsupported(
    passes: bool, refused: bool, verdict: Verdict, monkeypatch: Patch
) -> None:
    found = FOUND["pure_callback", "case.raises.jit"]
    case = replace(found, run=lambda one: one.check(passes, "lost", Stage.CALLBACK, "planted"))
    if refused:
        monkeypatch.setattr(running, "stage_of", lambda error: Stage.LOWER)
        monkeypatch.setattr(running, "_applied", lambda *_: (_ for _ in ()).throw(RuntimeError(NOT_FOUND)))
    outcome = running.run_case(case, load("jax"), jax.devices()[:1])
    assert (outcome.verdict, outcome.cause) == (verdict, NOT_FOUND if verdict is Verdict.UNSUPPORTED else "")
