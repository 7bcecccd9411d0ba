"""Programs of case cells in processes of their own: which implementation they load, and what it means not to begin."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from conformance.cases.harness import child_processes as child_processes
from conformance.cases.harness import child_programs as child_programs
from conformance.cases.harness.bench import Bench
from conformance.cases.harness.catalogue import all_cases
from conformance.cases.harness.child_processes import ChildEndedError, run_child
from conformance.cases.harness.registry import RegisteredCase
from conformance.cases.harness.running import run_case
from conformance.implementations import Implementation, ImplementationError, load, path_of
from conformance.implementations.external import ExternalCallbacks
from conformance.oracle.verdicts import Outcome, Stage, Verdict

pytestmark = pytest.mark.contract("C4")

ROOT = Path(__file__).parents[2]
(PENDING,) = (case for case in all_cases() if case.kind == "pending_at_exit")
(OS_EXIT,) = (case for case in all_cases() if (case.kind, case.callback) == ("os_exit", "pure_callback"))

MODULE = """\
import os, sys, time
from conformance.implementations.jax import IMPLEMENTATION

if sys.argv[0].endswith("child_programs.py"):
    {planted}
"""


def implementation_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool = True) -> Implementation:
    """What a module of this text has, which other processes find if it is on their path."""
    # What was loaded by a path is kept: every test has a path of its own.
    module = f"planted_{folder.name}"
    (folder / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{folder}" if on_path else str(ROOT))
    return load(module)


def harness_error(outcome: Outcome) -> str:
    assert (outcome.verdict, outcome.signal, outcome.anomaly) == (Verdict.HARNESS_ERROR, None, ""), outcome.reason
    return outcome.reason


# What does not begin --------------------------------------------------------------------------------

PLANTED = {
    "import": (OS_EXIT, "import no_such_module", "ended with exit 1: ModuleNotFoundError: No module named"),
    "error": (PENDING, "raise ValueError('a planted one')", "ended with exit 1: ValueError: a planted one"),
    "exit": (PENDING, "sys.exit(0)", "ended with exit 0: it wrote nothing"),
    "wanted status": (OS_EXIT, "os._exit(7)", "ended with exit 7: it wrote nothing"),
    "abort": (OS_EXIT, "os.abort()", "ended with SIGABRT: Fatal Python error: Aborted"),
}


@pytest.mark.parametrize(("case", "planted", "words"), PLANTED.values(), ids=PLANTED)
def test_a_program_that_does_not_begin_is_no_crash_of_the_implementation(
    case: RegisteredCase,
    planted: str,
    words: str,
    devices: list[jax.Device],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    implementation = implementation_of(MODULE.format(planted=planted), tmp_path, monkeypatch)
    assert words in harness_error(run_case(case, implementation, devices))


def test_a_program_that_hangs_before_it_begins(
    devices: list[jax.Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_processes, "DEADLINE", 8.0)
    implementation = implementation_of(MODULE.format(planted="time.sleep(600)"), tmp_path, monkeypatch)
    reason = harness_error(run_case(OS_EXIT, implementation, devices))
    assert "it had not begun after 8 s" in reason


@pytest.mark.parametrize("name", ["raw", "running_at_exit"])
def test_nor_of_any_other_program(
    name: str, devices: list[jax.Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases that judge the signal themselves never see this one."""
    implementation = implementation_of(MODULE.format(planted="os.abort()"), tmp_path, monkeypatch)
    with pytest.raises(ChildEndedError) as caught:
        run_child(Bench(implementation, "jit", devices), name)
    harness_error(caught.value.outcome)


def test_an_implementation_that_other_processes_do_not_find(
    devices: list[jax.Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from conformance.implementations.jax import IMPLEMENTATION"
    implementation = implementation_of(text, tmp_path, monkeypatch, on_path=False)
    reason = harness_error(run_case(OS_EXIT, implementation, devices))
    assert "ImplementationError: there is no implementation" in reason


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"XLA_FLAGS": "--xla_no_such_flag=1"}, "Unknown flag"),
        ({"XLA_FLAGS": ""}, "the cell has 8 devices, this process 1"),
        ({"JAX_PLATFORMS": "nonesuch"}, "nonesuch"),
        ({"PYTHONHOME": "/nowhere"}, "encodings"),
    ],
    ids=["flags", "devices", "platform", "interpreter"],
)
def test_surroundings_that_are_not_right(environment: dict[str, str], words: str, devices: list[jax.Device]) -> None:
    with pytest.raises(ChildEndedError) as caught:
        run_child(Bench(load("jax"), "jit", devices), "os_exit", "pure_callback", environment=environment)
    assert words in harness_error(caught.value.outcome)


def test_an_interpreter_that_is_not_there(devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(ChildEndedError) as caught:
        run_child(Bench(load("jax"), "jit", devices), "os_exit", "pure_callback", fresh=True)
    assert "/no/such/python" in harness_error(caught.value.outcome)


def test_what_an_implementation_prints_is_no_report(
    devices: list[jax.Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may look alike, and it may leave its line open."""
    planted = """print('{"stage": "no such stage"}\\\\n{"said": 1}\\\\n{', end="", flush=True)"""
    implementation = implementation_of(MODULE.format(planted=planted), tmp_path, monkeypatch)
    ended = run_child(Bench(implementation, "pmap", devices), "os_exit", "pure_callback")
    assert (ended.status, ended.stage, ended.said) == (7, Stage.CALLBACK, ())


def test_no_thread_reports_after_the_last_stage(
    devices: list[jax.Device], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread may be ready to say that it waits for results while a callback ends the process."""
    others: list[bool] = []

    def end(status: int) -> None:
        thread = threading.Thread(target=lambda: others.append(child_programs._writing.acquire(blocking=False)))
        thread.start()
        thread.join()
        raise RuntimeError("the end")

    monkeypatch.setattr("os._exit", end)
    hostcb = load("hostcb")
    with pytest.raises(RuntimeError):
        child_programs.os_exit(Bench(hostcb, "jit", devices), "pure_callback")
    with pytest.raises(hostcb.callback_exception):
        hostcb.barrier()
    assert others == [False]
    assert '{"stage": "callback"}' in capfd.readouterr().out


# Which implementation -------------------------------------------------------------------------------


class Nobodys(ExternalCallbacks):
    """An implementation that no import path leads to."""

    callback_exception = RuntimeError

    def __init__(self, name: Any) -> None:
        super().__init__(SimpleNamespace(pure_callback=jax.pure_callback))
        if name is not None:
            self.name = name

    def barrier(self) -> None: ...


def test_the_path_is_what_it_was_loaded_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [path_of(load(path)) for path in ("hostcb", "jax")] == ["hostcb", "jax"]
    mutant = "conformance.mutants:late"
    assert path_of(load(mutant)) == mutant
    text = """\
from conformance.implementations.jax import Jax, NAMESPACE

class Equal(Jax):
    name = "jax"
    __hash__ = None
    def __eq__(self, other):
        return True

IMPLEMENTATION = Equal(NAMESPACE)
"""
    implementation = implementation_of(text, tmp_path, monkeypatch)
    assert path_of(implementation) == f"planted_{tmp_path.name}", "neither its name nor one that is equal to it"


NAMES = """\
from conformance.implementations.jax import Jax, NAMESPACE

class Raising(Jax):
    @property
    def name(self):
        raise RuntimeError("it has none")

def named(name):
    implementation = Jax(NAMESPACE)
    implementation.name = name
    return implementation

NUMBER, NOTHING, EMPTY, SAME, AGAIN = map(named, (5, None, "", "the same", "the same"))
IMPLEMENTATION = Raising(NAMESPACE)
"""


def test_its_name_has_no_part_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    implementation_of(NAMES, tmp_path, monkeypatch)
    module = f"planted_{tmp_path.name}"
    for path in (module, *(f"{module}:{name}" for name in ("NUMBER", "NOTHING", "EMPTY", "SAME", "AGAIN"))):
        assert path_of(load(path)) == path


@pytest.mark.parametrize("name", ["jax", "mine", 5, None, "", ".", "no/path", "conformance.planning.cells"])
def test_one_that_has_no_path_is_not_taken_for_another(name: Any, devices: list[jax.Device]) -> None:
    """Another implementation may have its name."""
    with pytest.raises(ImplementationError):
        path_of(Nobodys(name))
    reason = harness_error(run_case(OS_EXIT, Nobodys(name), devices))
    assert "ImplementationError" in reason
