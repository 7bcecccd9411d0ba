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
METAL = "`EmitPythonCallback` not supported on METAL backend"
HOST = "host callbacks are not supported on acme_npu"
NO_HANDLER = "No FFI handler registered for xla_ffi_python_cpu_callback"
CPU_CALLBACK = "UNIMPLEMENTED: CpuCallback error calling callback"


@pytest.mark.parametrize(
    ("text", "early", "late"),
    [
        (NOT_FOUND, NOT_FOUND, None),
        (f"{METAL}.", METAL, None),
        (f"pure_callback(f at 0x7f12): {HOST}: JAX has no `emit_...`", HOST, None),
        (f"NOT_FOUND: {NO_HANDLER} on a platform Host", NO_HANDLER, NO_HANDLER),
        ("UNIMPLEMENTED: send of 0x7f1234 is missing\nmore", *["UNIMPLEMENTED: send of # is missing"] * 2),
        ("INTERNAL: something else", None, None),
        # The exception of a callback may have any text.
        ("INTERNAL: CpuCallback error: NotImplementedError: UNIMPLEMENTED", "UNIMPLEMENTED", None),
        (CPU_CALLBACK, CPU_CALLBACK, None),
    ],
)
def test_cells_with_the_same_cause_share_it(text: str, early: str | None, late: str | None) -> None:
    """While a program runs only the words of the runtime count."""
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


def test_the_first_cell_of_a_cause_runs_twice_and_no_other() -> None:
    runner: Any = Runner()
    for name in ("one/a", "one/b", "two/a", "one/c", "two/b"):
        conclusion = run_with_second_chance(Task(name, "jax", Topology("toy", 1), 1.0), runner, Expectations())
        assert conclusion.outcome.verdict is Verdict.UNSUPPORTED
        assert conclusion.attempts == 1 + (name in ("one/a", "two/a"))
    assert runner.alone == ["one/a", "two/a"]


class Unlowerable(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("passes", "refused", "verdict"),
    [(True, True, Verdict.PASS), (False, True, Verdict.UNSUPPORTED), (False, False, Verdict.FAIL)],
)
def test_a_case_runs_before_it_is_called_unsupported(
    passes: bool, refused: bool, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = next(case for case in all_cases() if (case.callback, case.name) == ("pure_callback", "case.raises.jit"))
    case = replace(found, run=lambda one: one.check(passes, "lost", Stage.CALLBACK, "planted"))
    if refused:
        monkeypatch.setattr(support, "stage_of", lambda error: Stage.LOWER)
        monkeypatch.setattr(support, "_applied", lambda *_: (_ for _ in ()).throw(Unlowerable(NOT_FOUND)))
    outcome = running.run_case(case, load("jax"), jax.devices()[:1])
    assert (outcome.verdict, outcome.cause) == (verdict, NOT_FOUND if verdict is Verdict.UNSUPPORTED else "")
