"""Cases: every one can be run, a failure is not taken for an error of the suite, and outcomes are classed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from conformance.cases.failures.runtime_targets import judged
from conformance.cases.harness.bench import Bench
from conformance.cases.harness.catalogue import all_cases
from conformance.cases.harness.child_processes import ChildEndedError, Ended, run_child
from conformance.cases.harness.registry import RegisteredCase, bench_case
from conformance.cases.harness.running import run_case
from conformance.implementations import load, why_without
from conformance.implementations.hostcb import Hostcb
from conformance.oracle.stages import stacks_in, stage_of_stacks
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import CaseCell, make_plan
from conformance.spec.callbacks import HOST_CALLBACKS
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C4")

FOUND = {(case.callback, case.name): case for case in all_cases()}


def run(name: str, devices: list[jax.Device], implementation: Any = None) -> Outcome:
    callback, _, kind = name.partition("/")
    return run_case(FOUND[callback, kind], implementation or load("hostcb"), devices)


# The catalogue -------------------------------------------------------------------------------------


def test_names_are_unique() -> None:
    assert len(FOUND) == len(all_cases())


def test_a_fault_is_entered_once() -> None:
    with pytest.raises(ValueError, match=r"case\.slow\.jit of id_tap is entered twice"):
        bench_case("jit", "id_tap", kind="slow")(lambda bench, callback: [])


def test_a_fault_has_the_promise_about_failures_unless_it_names_others() -> None:
    assert FOUND["call", "case.raises.pmap"].promises == ("H15",)
    assert FOUND["io_callback_ordered", "case.raises.jit"].promises == ("X3", "H15")
    assert FOUND["id_tap", "case.slow.jit"].promises == ("H13",)


def test_what_may_end_its_process_does_not_share_it() -> None:
    for case in all_cases():
        assert case.isolated or not case.xla_flags, f"{case.name} sets flags for all that run in its process"
        assert case.isolated or case.deadline is not None, f"{case.name} may hold up its process for long"


def test_a_fault_is_not_asked_of_an_implementation_without_the_functions_that_it_uses() -> None:
    case = FOUND["io_callback", "case.barrier_in_time.jit"]
    assert why_without("hostcb", case.functions) is None
    assert why_without("jax", case.functions) == f"jax has no {case.functions}"
    plan = make_plan(("hostcb", "jax"), (Topology("cpu", 8),))
    assert {cell.implementation for cell in plan.cells if isinstance(cell, CaseCell) and cell.case == case} == {
        "hostcb"
    }


# Whose failure it is --------------------------------------------------------------------------------


def refusing(*arguments: Any, **options: Any) -> Any:
    raise TypeError("this library has another signature")


def test_an_error_of_the_program_is_a_failure(devices: list[jax.Device]) -> None:
    names = {**vars(load("hostcb").namespace), "call": refusing}  # type: ignore[attr-defined]
    outcome = run("call/case.two_threads.jit", devices, Hostcb(SimpleNamespace(**names)))
    assert outcome.verdict is Verdict.FAIL
    assert "another signature" in outcome.reason


def test_an_error_that_escapes_a_scenario_has_its_stage(devices: list[jax.Device]) -> None:
    def function(bench: Bench, callback: Any) -> Any:
        bench.applying(callback, lambda operand: 1 / 0)(bench.operand).block_until_ready()

    (call,) = (callback for callback in HOST_CALLBACKS if callback.name == "call")
    case = RegisteredCase("planted", "jit", "call", (), lambda bench: function(bench, call))
    implementation = load("hostcb")
    outcome = run_case(case, implementation, devices)
    with pytest.raises(implementation.callback_exception):
        implementation.barrier()
    assert (outcome.verdict, outcome.stage, outcome.anomaly) == (Verdict.FAIL, Stage.DISPATCH, "error")
    assert "ZeroDivisionError" in outcome.reason


def test_a_mistake_of_the_suite_is_none(devices: list[jax.Device]) -> None:
    case = RegisteredCase("planted", "no_such_layout", "call", (), lambda bench: [*bench.callback_shape])
    with pytest.raises(KeyError, match="no_such_layout"):
        run_case(case, load("hostcb"), devices)


# Processes that end ---------------------------------------------------------------------------------

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


def test_stacks_are_found_and_tell_the_stage() -> None:
    assert stacks_in(DUMP).startswith("Fatal Python error: Aborted")
    assert stacks_in("nothing of the kind") == ""
    assert stage_of_stacks(DUMP) is Stage.DISPATCH
    assert stage_of_stacks("nothing of the kind") is None


def test_stage_of_a_crash_in_a_thread_of_the_runtime() -> None:
    """No thread is the current one then; the main thread waits for what the runtime was to do."""
    waiting = """\
Fatal Python error: Aborted

Thread 0x00007fc2 (most recent call first):
  File "/somewhere/threading.py", line 359 in wait

Thread 0x00007fc1 (most recent call first):
  File "/somewhere/jax/_src/array.py", line 647 in _value
  File "/somewhere/program.py", line 3 in <module>
"""
    assert stage_of_stacks(waiting) is Stage.RESULT


@pytest.mark.parametrize(
    ("status", "label"), [(None, "hang"), (-6, "crash(SIGABRT)"), (-11, "crash(SIGSEGV)"), (3, "crash(exit 3)")]
)
def test_the_end_of_a_victim_is_classed(status: int | None, label: str) -> None:
    with pytest.raises(ChildEndedError) as caught:
        Ended(status, Stage.CALLBACK, (), DUMP).check()
    assert (caught.value.outcome.label, caught.value.outcome.stage) == (label, Stage.CALLBACK)
    assert "pxla.py" in caught.value.outcome.reason


def test_a_good_end_is_good() -> None:
    Ended(0, Stage.EXIT, (), "").check()
    Ended(7, Stage.CALLBACK, (), "").check(7)


def test_a_victim_says_where_it_was(devices: list[jax.Device]) -> None:
    ended = run_child(Bench(load("hostcb"), "pmap", devices), "os_exit", "call")
    assert (ended.status, ended.stage) == (7, Stage.CALLBACK)


@pytest.mark.parametrize(
    ("name", "anomaly"),
    [
        ("ffi_target/case.short_result.jit", "silent garbage"),
        ("ffi_target/case.no_result.jit", "memory corruption"),
        ("buffer_target/case.short_result.jit", ""),
    ],
)
def test_unchecked_results_are_classed(name: str, anomaly: str, devices: list[jax.Device]) -> None:
    outcome = run(name, devices, load("jax"))
    assert outcome.anomaly == anomaly, outcome.reason
    assert outcome.verdict is (Verdict.FAIL if anomaly else Verdict.PASS)


@pytest.mark.parametrize(("status", "how"), [(-6, "SIGABRT ended"), (1, "exit 1 ended"), (None, "the process hung")])
def test_a_corrupted_process_may_end_in_any_way(status: int | None, how: str) -> None:
    """Writing over the heap is one failure: a crash in one run, an endless search of it in the next."""
    for stage in (Stage.DISPATCH, Stage.RESULT):
        (anomaly,) = judged("longest_result", Ended(status, stage, (), DUMP))
        assert anomaly.kind == "memory corruption"
        assert how in anomaly.witness


@pytest.mark.parametrize(
    ("kind", "stage"), [("right_result", Stage.RESULT), ("legitimate_mark", Stage.RESULT), ("long_result", Stage.TRACE)]
)
@pytest.mark.parametrize("status", [-6, None])
def test_an_end_without_a_wrong_result_is_no_corruption(kind: str, stage: Stage, status: int | None) -> None:
    with pytest.raises(ChildEndedError):
        judged(kind, Ended(status, stage, (), DUMP))


# What is not broken passes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "id_tap/case.several_fail.pmap",
        "id_tap/case.full_queue.jit",
        "id_tap/case.stops_and_starts.pmap",
        "id_tap/case.order_across_threads.pmap",
        "call/case.two_threads.pmap",
        "io_callback/case.blocks_until_released.pmap",
        "dlpack_callback/case.keeps_its_view.jit",
        "pure_callback/case.special_exceptions.jit",
    ],
)
def test_hostcb_passes(name: str, devices: list[jax.Device]) -> None:
    outcome = run(name, devices)
    assert outcome.verdict is Verdict.PASS, outcome.reason
