"""Cases: their catalogue, whose failure a failure is, how children end, and what a platform refuses."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import pytest
from suite_runs import DEADLINE, PATH, Patch

from conformance.cases.failures.runtime_targets import judge_end
from conformance.cases.harness import child_processes, running
from conformance.cases.harness.case import Case
from conformance.cases.harness.catalogue import all_cases
from conformance.cases.harness.child_processes import ChildEndedError, Ended
from conformance.cases.harness.hosts import fail
from conformance.cases.harness.registry import RegisteredCase
from conformance.cases.harness.registry import case as registered
from conformance.cases.harness.running import run_case
from conformance.engine import cell_runner
from conformance.engine.conclusions import run_with_second_chance
from conformance.engine.tasks import Task
from conformance.expectations.entries import Expectations
from conformance.implementations import load
from conformance.implementations.hostcb import Hostcb
from conformance.oracle.stages import refusal_in, stacks_in, stage_of_stacks, summary
from conformance.oracle.verdicts import Outcome, Stage, Verdict
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


def test_an_error_from_elsewhere_says_where(tmp_path: Path) -> None:
    """The last frame outside of JAX, hostcb and the suite, of a traceback or of one that a plugin reports as text."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import jax\ndef lowered(x):\n    return jax.numpy.reshape(x, (2, 3))\n")
    found: dict[str, Any] = {}
    exec(compile(plugin.read_text(), str(plugin), "exec"), found)
    with pytest.raises(TypeError) as caught:
        jax.jit(found["lowered"])(1.0)
    assert summary(caught.value).endswith(f" (in lowered, line 3 of {plugin})")
    told = f'INTERNAL: Traceback (most recent call last):\n  File "{plugin}", line 7, in f\n    x\nKeyError: 21\n'
    assert summary(RuntimeError(told)).endswith(f"KeyError: 21 (in f, line 7 of {plugin})")
    try:
        load("no_such_module")
    except Exception as error:
        # Of the suite, by way of Python's own modules; the frame of this test is from elsewhere.
        traceback = error.__traceback__
        assert traceback
        assert " (in " not in summary(error.with_traceback(traceback.tb_next))


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


@pytest.mark.parametrize("name", ["hostcb", "jax"])
def test_failures_of_a_case_are_not_of_the_next(name: str, devices: list[jax.Device]) -> None:
    """Neither that of a case that ends with it, nor one that the case's own barrier has raised."""
    implementation, dispatched = load(name), threading.Event()

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
            Ended(status, Stage.CALLBACK, (), DUMP).check()
        assert (caught.value.outcome.label, caught.value.outcome.stage) == (label, Stage.CALLBACK)
        assert "pxla.py" in caught.value.outcome.reason
        for stage in (Stage.DISPATCH, Stage.RESULT):
            judge_end(case, "longest_result", Ended(status, stage, (), DUMP))
        for kind, stage in (("right_result", Stage.RESULT), ("long_result", Stage.TRACE)):
            with pytest.raises(ChildEndedError):
                judge_end(case, kind, Ended(status, stage, (), DUMP))
    assert [anomaly.kind for anomaly in case.anomalies] == ["memory corruption"] * 2 * len(labels)
    Ended(7, Stage.CALLBACK, (), "").check(7)


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
    planted: str, words: str, devices: list[jax.Device], tmp_path: Path, monkeypatch: Patch
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


# A platform's refusal of a program: recognised in its many words, once for each cause, and never without a trial.

NOT_FOUND = "MLIR translation rule for primitive 'debug_callback' not found for platform acme_npu"
METAL = "`EmitPythonCallback` not supported on METAL backend"
HOST = "host callbacks are not supported on acme_npu"
NO_HANDLER = "No FFI handler registered for xla_ffi_python_cpu_callback"
CPU_CALLBACK = "UNIMPLEMENTED: CpuCallback error calling callback"


@pytest.mark.contract("C51")
def test_cells_with_the_same_cause_share_it() -> None:
    """While a program runs only the words of the runtime count."""
    for text, early, late in (
        (NOT_FOUND, NOT_FOUND, None),
        (f"{METAL}.", METAL, None),
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


class Runner:
    """A runner whose cells are all refused, for the causes in their ids."""

    def __init__(self) -> None:
        self.causes: dict[str, str] = {}
        self.alone: list[str] = []

    def run(self, task: Task) -> tuple[Outcome, Sequence[Task]]:
        cause = task.id.partition("/")[0]
        return Outcome(Verdict.UNSUPPORTED, Stage.LOWER, f"unsupported: {cause}", cause=cause), ()

    def run_alone(self, task: Task, after: Sequence[Task] = ()) -> Outcome:
        self.alone.append(task.id)
        return self.run(task)[0]


@pytest.mark.contract("C51")
def test_the_first_cell_of_a_cause_runs_twice_and_no_other() -> None:
    runner: Any = Runner()
    for name in ("one/a", "one/b", "two/a", "one/c", "two/b"):
        conclusion = run_with_second_chance(Task(name, "jax", Topology("toy", 1), 1.0), runner, Expectations())
        assert conclusion.outcome.verdict is Verdict.UNSUPPORTED
        assert conclusion.attempts == 1 + (name in ("one/a", "two/a"))
    assert runner.alone == ["one/a", "two/a"]


class RefusingWorker:
    """A process on a platform that refuses the callbacks of all isolated cases."""

    alive = True
    buried = False
    run_info: ClassVar[dict[str, Any]] = {}
    started: ClassVar[list[Any]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.started.append(arguments)

    def run(self, cell_id: str, deadline: float, trial: bool = False) -> Outcome:
        return Outcome(Verdict.UNSUPPORTED if trial else Verdict.PASS)

    def finish(self) -> Outcome:
        return Outcome(Verdict.PASS)


@pytest.mark.contract("C51")
def test_isolated_cases_of_a_refused_callback_share_a_process(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cell_runner, "ProcessGroup", RefusingWorker)
    runner = cell_runner.CellRunner(tmp_path / "log")
    names = ("wrong_shape.jit", "wrong_dtype.jit", "wrong_count.jit", "wrong_shape.pmap")
    tasks = [Task(f"jax/call/case.{name}/toy-1dev", "jax", Topology("toy", 1), 9.0, isolated=True) for name in names]
    assert {runner.run(task)[0].verdict for task in tasks} == {Verdict.UNSUPPORTED}
    assert len(RefusingWorker.started) == 1


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
