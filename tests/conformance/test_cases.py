"""How a worker runs cells and cases: broken callbacks, wrong data, whose failure it is, and what a platform refuses."""

from __future__ import annotations

import inspect
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from suite_runs import DEADLINE, PATH, Patch, ran

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
from conformance.implementations.jax import NAMESPACE, Jax
from conformance.implementations.payloads import DataPayload, ProgramFunction
from conformance.oracle.history import Recorder
from conformance.oracle.stages import refusal_in, stacks_in, stage_of_stacks
from conformance.oracle.verdicts import Stage, Verdict
from conformance.planning.cells import TableCell, parse_cell
from conformance.spec.callbacks import HOST_CALLBACKS
from conformance.spec.data import DataKind, flatten
from conformance.worker.cells import run_cell
from conformance.worker.execution import _parts
from conformance.worker.private_jax import several_times
from conformance.worker.transport import last_words

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


def planted(run: Any, program: str = "jit", callback: str = "call") -> RegisteredCase:
    return RegisteredCase("planted", program, callback, (), run)


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

    outcome = run_case(planted(scenario), hostcb, devices)
    assert (outcome.verdict, outcome.stage, outcome.anomaly) == (Verdict.FAIL, Stage.DISPATCH, "error")
    assert "ZeroDivisionError" in outcome.reason
    with pytest.raises(KeyError, match="no_such_layout"):
        run_case(planted(lambda case: case.callback_shape, "no_such_layout"), hostcb, devices)


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
        assert run_case(planted(scenario, "pmap", "io_callback"), implementation, devices).anomaly == kind
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

FIRST = "Fatal Python error: Aborted"
THREAD = (
    'Thread 0x00007fc2 (most recent call first):\n  File "/somewhere/_src/compiler.py", line 9 in backend_compile\n'
)
CURRENT = (
    'Current thread 0x00007fc1 (most recent call first):\n  File "/somewhere/_src/pxla.py", line 1300 in __call__\n'
)
DUMP = f"terminate called\n{FIRST}\n\n{CURRENT}\n{THREAD}\nExtension modules: numpy (total: 1)\n"
# No thread is the current one then; the main thread waits for what the runtime was to do.
CRASH_OF_THE_RUNTIME = (
    'Thread 0x00007fc1 (most recent call first):\n  File "/somewhere/_src/array.py", line 647 in _value\n'
)


def test_the_end_of_a_child_process_is_classed() -> None:
    """Writing over the heap is one failure: a crash in one run, an endless search of the heap in the next."""
    assert stacks_in(DUMP).startswith(FIRST)
    assert (stage_of_stacks(DUMP), stage_of_stacks(CRASH_OF_THE_RUNTIME)) == (Stage.DISPATCH, Stage.RESULT)
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


def test_a_program_that_does_not_begin_is_no_crash_of_the_implementation(
    devices: list[jax.Device], tmp_path: Path, monkeypatch: Patch
) -> None:
    """Even if it ends with the status that the case expects."""
    # A module is loaded once: every test has a path of its own.
    module = f"planted_{tmp_path.name}"
    in_child = 'import os, sys\nif sys.argv[0].endswith("child_programs.py"):\n    os._exit(7)\n'
    text = f"from conformance.implementations.jax import IMPLEMENTATION\n{in_child}"
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{PATH}:{tmp_path}")
    outcome = run_case(FOUND["pure_callback", "case.os_exit.pmap"], load(module), devices)
    assert (outcome.verdict, outcome.signal, outcome.anomaly) == (Verdict.HARNESS_ERROR, None, "")
    assert "ended with exit 7: it wrote nothing" in outcome.reason


@pytest.mark.parametrize("kind", ["donated", "donated_again"])
def test_what_is_not_donated(kind: str, monkeypatch: Patch) -> None:
    """By JAX, which has a list of the platforms that donate; or by the program alone, which is no wrong result."""
    case, jit = FOUND["io_callback", f"case.{kind}.jit"], jax.jit
    with monkeypatch.context() as undonated:
        undonated.setattr(jax, "jit", lambda function, donate_argnums=(), **options: jit(function, **options))
        outcome = run_case(case, load("jax"), jax.devices()[:1])
    assert (outcome.verdict, outcome.anomaly) == (Verdict.UNSUPPORTED, "not applicable")
    assert outcome.cause == outcome.reason == "JAX donates no operand on cpu"
    monkeypatch.setattr(kept_and_donated_operands, "_donating", lambda case, computation: jax.jit(computation))
    outcome = run_case(case, load("jax"), jax.devices()[:1])
    wanted = "not donated" if kind == "donated" else "not refused"
    assert (outcome.verdict, outcome.anomaly, "result:" in outcome.reason) == (Verdict.FAIL, wanted, False)


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


# Broken versions of JAX's own callbacks: those that no mutant of hostcb stands for.


def pure_for_io(function: Any, wanted: Any, *args: Any, ordered: bool = False) -> Any:
    return NAMESPACE.pure_callback(function, wanted, *args, vmap_method="sequential")


def expanding(function: Any, wanted: Any, *args: Any, vmap_method: Any = None) -> Any:
    return NAMESPACE.pure_callback(function, wanted, *args, vmap_method="expand_dims")


def gathered(function: Any, *args: Any, ordered: bool = False, partitioned: bool) -> None:
    jax.debug.callback(function, *args, ordered=ordered)


GATHERED = SimpleNamespace(callback=gathered, print=jax.debug.print)


def taking_anything(function: Any, wanted: Any, **options: Any) -> Any:
    def host(context: Any, out: Any, operand: Any) -> None:
        np.asarray(out)[...] = function(context, out, operand)

    return NAMESPACE.buffer_callback(host, wanted, **options)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "io_callback/jit": ({"io_callback": pure_for_io}, "lost: cpu:0 never ran #2 (unused"),
    "pure_callback_broadcast_all/vmap": ({"pure_callback": expanding}, "wrong operand"),
    "debug_callback_partitioned/pjit": ({"debug": GATHERED}, "wrong operand"),
    "buffer_callback/case.returns_a_value.jit": ({"buffer_callback": taking_anything}, "nothing was raised"),
}


@pytest.mark.contract("C5", "C6")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_callback_is_caught(name: str, devices: list[jax.Device]) -> None:
    names, witness = BROKEN[name]
    implementation = Jax(SimpleNamespace(**{**vars(NAMESPACE), **names}))
    cell: Any = parse_cell(f"jax/{name}/cpu-8dev")
    recorder = Recorder({device.id: index for index, device in enumerate(devices)})
    outcome = run_cell(cell, implementation, recorder, devices)
    assert outcome.verdict is Verdict.FAIL
    assert witness in outcome.reason


@pytest.mark.parametrize("name", ["pure_callback/table.grad", "debug_callback/table.returns"])
def test_a_wrong_entry_of_the_table_is_found(name: str, devices: list[jax.Device]) -> None:
    cell = parse_cell(f"jax/{name}/cpu-8dev")
    assert isinstance(cell, TableCell)
    wrong = replace(cell, entry=replace(cell.entry, supported=not cell.entry.supported))
    for tried, verdict in ((cell, Verdict.PASS), (wrong, Verdict.FAIL)):
        assert run_cell(tried, load("jax"), Recorder(), devices).verdict is verdict


# Data.

CALL = next(callback for callback in HOST_CALLBACKS if callback.name == "call")
VALUE = jnp.float32(7)


def test_one_wrong_element_of_a_result_and_data_of_another_type_or_tree_show() -> None:
    for element in ("bool", "int8", "float8_e4m3fn", "typed_key"):
        payload = DataPayload(CALL, DataKind(element, "vector", "nested"))
        leaves = flatten(payload.new(VALUE))
        assert payload.received(VALUE, payload.new(VALUE)) == 8
        other = ~leaves[-1][1] if element == "bool" else leaves[-1][0]
        wrong = [*leaves[:-1], leaves[-1].at[1].set(other)]
        assert payload.received(VALUE, payload.data.result_tree(wrong)) != 8
    payload = DataPayload(CALL, DataKind("int8", "vector", "pair"))
    first, second = payload.new(VALUE)
    with pytest.raises(AssertionError, match="a result is int16"):
        payload.received(VALUE, (first, second.astype(jnp.int16)))
    with pytest.raises(AssertionError, match="a tree like"):
        payload.received(VALUE, [first, second])
    recorder = Recorder()
    payload = DataPayload(CALL, DataKind("int8", "scalar", "pair"))
    ProgramFunction("first", recorder, payload)([np.float32(7), np.int8(1)])
    assert [event.site for event in recorder.history().events] == ["first with a tree like [*, *] for one like (*, *)"]


@pytest.mark.parametrize(
    ("source", "error"), [("def (", "SyntaxError: "), ("a = 1\nraise ValueError('it')", "ValueError: it")]
)
def test_the_words_of_an_end_have_the_place_of_its_error(tmp_path: Path, source: str, error: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    words = last_words(ran(tmp_path, sys.executable, "-c", "import broken").stderr)
    assert f'broken.py", line {len(source.splitlines())}' in words and error in words


def test_a_history_ends_when_all_devices_have_the_result(devices: list[jax.Device]) -> None:
    returned, ran = threading.Event(), []

    def slow(number: np.ndarray) -> np.ndarray:
        # It ends with the deadline, unless the result was read before.
        if number == 1:
            returned.wait(0.3)
        ran.append(int(number))
        return np.float32(7)

    def on_each(_: jax.Array) -> jax.Array:
        return jax.pure_callback(slow, jax.ShapeDtypeStruct((), np.float32), jax.lax.axis_index("d"))

    mesh = jax.sharding.Mesh(np.array(devices[:2]), "d")
    shards = {"mesh": mesh, "in_specs": PartitionSpec("d"), "out_specs": PartitionSpec(), "check_vma": False}
    program = jax.jit(jax.shard_map(on_each, **shards))
    # JAX dispatches a program anew in C++ from its second run on.
    jax.block_until_ready(program(np.zeros(2, np.float32)))
    ran.clear()
    (whole,) = _parts(program(np.zeros(2, np.float32)))
    returned.set()
    assert whole == 7 and sorted(ran) == [0, 1]


@pytest.mark.contract("C69")
def test_a_thread_lowers_several_programs_in_one_context_of_its_own() -> None:
    made, found, barrier = several_times(object, 10), [], threading.Barrier(2)

    def make() -> None:
        mine = {made() for _ in range(3)}
        barrier.wait(DEADLINE)
        # After the other thread has made its own.
        found.append(mine | {made()})

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert [len(contexts) for contexts in found] == [1, 1] and found[0] != found[1]
