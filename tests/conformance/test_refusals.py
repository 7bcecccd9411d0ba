"""A platform's refusal of a program: recognised in its many words, once for each cause, and never without a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import pytest

from conformance.cases.harness import running, support
from conformance.cases.harness.catalogue import all_cases
from conformance.engine.conclusions import run_with_second_chance
from conformance.engine.tasks import Task
from conformance.expectations.entries import Expectations
from conformance.implementations import load
from conformance.oracle.causes import refusal_in
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C51")


NOT_FOUND = "MLIR translation rule for primitive 'debug_callback' not found for platform acme_npu"


@pytest.mark.parametrize(
    ("text", "early", "late"),
    [
        (NOT_FOUND, NOT_FOUND, None),
        (
            "`EmitPythonCallback` not supported on METAL backend.",
            "`EmitPythonCallback` not supported on METAL backend",
            None,
        ),
        (
            "pure_callback(f at 0x7f12): host callbacks are not supported on acme_npu: JAX has no `emit_...`",
            *("host callbacks are not supported on acme_npu", None),
        ),
        (
            "NOT_FOUND: No FFI handler registered for xla_ffi_python_cpu_callback on a platform Host",
            *["No FFI handler registered for xla_ffi_python_cpu_callback"] * 2,
        ),
        ("UNIMPLEMENTED: send of 0x7f1234 is missing\nmore", *["UNIMPLEMENTED: send of # is missing"] * 2),
        ("INTERNAL: something else", None, None),
        # The exception of a callback may have any text.
        ("INTERNAL: CpuCallback error: NotImplementedError: UNIMPLEMENTED", "UNIMPLEMENTED", None),
        (
            "UNIMPLEMENTED: CpuCallback error calling callback",
            "UNIMPLEMENTED: CpuCallback error calling callback",
            None,
        ),
    ],
)
def test_cells_with_the_same_cause_share_it(text: str, early: str | None, late: str | None) -> None:
    """While a program runs only the words of the runtime count."""
    assert refusal_in(text, Stage.LOWER) == refusal_in(text, Stage.COMPILE) == early
    assert refusal_in(text, Stage.DISPATCH) == refusal_in(text, Stage.RESULT) == late


# Second chances -------------------------------------------------------------------------------------


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


def test_the_first_cell_of_a_cause_runs_twice_and_no_other() -> None:
    runner: Any = Runner()
    for name in ("one/a", "one/b", "two/a", "one/c", "two/b"):
        task = Task(name, "jax", Topology("toy", 1), 1.0)
        conclusion = run_with_second_chance(task, runner, Expectations())
        assert conclusion.outcome.verdict is Verdict.UNSUPPORTED
        assert conclusion.attempts == 1 + (name in ("one/a", "two/a"))
    assert runner.alone == ["one/a", "two/a"]


# Cases ---------------------------------------------------------------------------------------------

CASE = next(case for case in all_cases() if (case.callback, case.name) == ("pure_callback", "case.raises.jit"))


class Unlowerable(RuntimeError):
    pass


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("refused", [True, False])
def test_a_fault_is_planted_before_it_is_called_unsupported(
    passes: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(CASE, run=lambda one: one.check(passes, "lost", Stage.CALLBACK, "planted"))
    if refused:
        words = "MLIR translation rule for primitive 'pure_callback' not found for platform toy"
        monkeypatch.setattr(support, "stage_of", lambda error: Stage.LOWER)
        monkeypatch.setattr(support, "_applied", lambda *_: (_ for _ in ()).throw(Unlowerable(words)))
    outcome = running.run_case(case, load("jax"), jax.devices()[:1])
    wanted = Verdict.PASS if passes else Verdict.UNSUPPORTED if refused else Verdict.FAIL
    assert outcome.verdict is wanted
    if wanted is Verdict.UNSUPPORTED:
        assert outcome.cause == words
        assert outcome.reason.endswith("that is what pure_callback alone does here under jit")
