"""Random programs that run: the corpus, standalone programs, the worker, and defects that must be found."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from conformance.cases.harness.catalogue import FAULTS
from conformance.cli.commands import main
from conformance.fuzz import trying as fuzz_trying
from conformance.fuzz import worker
from conformance.fuzz.corpus import kept
from conformance.fuzz.description import Program, to_json
from conformance.fuzz.oracle import expect
from conformance.fuzz.standalone import standalone_text
from conformance.fuzz.trial import Tried, try_program
from conformance.fuzz.trying import Trying
from conformance.implementations import load
from conformance.oracle.fair_deadline import FairDeadline
from conformance.oracle.literals import literal

pytestmark = pytest.mark.contract("C63")

CORPUS = {one.name: one.program for one in kept()}
PROJECT = Path(__file__).parents[2]

ENDING = """\
import os
import jax
import hostcb
from conformance.implementations.hostcb import Hostcb

class Ending(Hostcb):
    name = __name__

    def tap(self, function, operand):
        HOW

IMPLEMENTATION = Ending(hostcb)
"""


@pytest.mark.parametrize(
    ("mutant", "program", "kind"),
    [
        ("duplicated", "grad_checkpoint_call", "duplicate"),
        ("neighbours_swapped", "vmap_while_tap", "order"),
        ("io_twice", "while_condition", "duplicate"),
        ("lost_in_differentiated_loop", "grad_scan_io", "lost"),
        ("permuted", "pmap_moves", "result"),
        ("outermost_batch_first", "vmap_in_vmap", "wrong operand"),
        ("tangent_tapped", "jvp_while_rules", "wrong operand"),
        ("neighbours_swapped", "grad_of_grad", "order"),
        ("cotangent_untapped", "jvp_of_grad", "lost"),
        ("dropped", "shard_map_collectives", "lost"),
        ("texts_mistaken", "prints_in_loops", "lost"),
        ("printed_in_pieces", "prints_in_loops", "error"),
        ("dropped", "buffers_in_scan", "lost"),
    ],
)
def test_a_defect_is_found(mutant: str, program: str, kind: str) -> None:
    tried = try_program(CORPUS[program], load(f"conformance.mutants:{mutant}"), jax.devices())
    assert kind in {one.kind for one in tried.anomalies}, tried


@pytest.fixture(scope="module")
def trying() -> Iterator[Trying]:
    with Trying("hostcb", devices=2) as trying:
        yield trying


@pytest.mark.parametrize("name", ["grad_scan_rules", "pmap_moves"])
def test_a_worker_tries_programs_of_the_corpus(trying: Trying, name: str) -> None:
    answer = trying.ask(CORPUS[name])
    assert (answer.kind, answer.witness, answer.unjudged) == ("", "", "")


def ending(folder: Path, monkeypatch: pytest.MonkeyPatch, how: str, deadline: float) -> tuple[str, Trying]:
    (folder / "ending.py").write_text(ENDING.replace("HOW", how))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{PROJECT}")
    return "ending", Trying("ending", devices=2, deadline=deadline)


def test_a_crash_costs_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, crashing = ending(tmp_path, monkeypatch, "os.abort()", 60)
    with crashing:
        answer = crashing.ask(CORPUS["grad_checkpoint_call"])
        assert answer.kind == "crash"
        assert answer.witness.startswith("SIGABRT")
        # It has no tap.
        assert crashing.ask(CORPUS["ordered_of_jax"]).kind == ""


def test_a_hang_is_found_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, hanging = ending(tmp_path, monkeypatch, "import threading; threading.Event().wait()", 2)
    with hanging:
        answer = hanging.ask(CORPUS["grad_checkpoint_call"])
    assert answer.kind == "hang"
    assert "in tap" in answer.witness


def test_an_error_costs_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's ordered effects hand a failure on, so the programs after it would fail as well."""
    _, failing = ending(tmp_path, monkeypatch, "raise ValueError('planted')", 60)
    with failing:
        answer = failing.ask(CORPUS["grad_checkpoint_call"])
        assert (answer.kind, "planted" in answer.witness) == ("error", True)
        assert failing._process is None
        assert failing.ask(CORPUS["ordered_of_jax"]).kind == ""


def test_a_busy_machine_extends_the_deadline(trying: Trying, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of fuzzing beside other work took programs for hangs that were slow to compile."""
    begun: list[tuple[float, int]] = []

    class Noted(FairDeadline):
        def __init__(self, seconds: float, *pids: int) -> None:
            begun.append((seconds, *pids))  # type: ignore[arg-type]
            super().__init__(seconds, *pids)

    monkeypatch.setattr(fuzz_trying, "FairDeadline", Noted)
    assert trying.ask(CORPUS["pmap_moves"]).kind == ""
    assert trying._process is not None
    assert begun == [(trying.deadline, trying._process.pid)]


def test_a_text_is_read_again_where_two_threads_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 may raise a SystemError if two threads build syntax trees at once: callbacks read prints."""
    parse, tries = ast.literal_eval, iter([SystemError, SystemError])

    def meeting(text: str) -> Any:
        for error in tries:
            raise error("AST constructor recursion depth mismatch (before=33, after=31)")
        return parse(text)

    monkeypatch.setattr(ast, "literal_eval", meeting)
    assert literal("[('batch', {'batch_dims': (0, None)})]") == [("batch", {"batch_dims": (0, None)})]
    monkeypatch.setattr(ast, "literal_eval", lambda text: (_ for _ in ()).throw(SystemError(text)))
    with pytest.raises(SystemError):
        literal("1")


def test_a_worker_of_an_hour_does_not_keep_all_its_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JAX's caches keep a program: some thousands of them took all memory."""
    cleared: list[int] = []
    tried: list[Program] = []
    # It would end this process after ten minutes.
    quiet = types.SimpleNamespace(enable=lambda: None, dump_traceback_later=lambda *_, **__: None)
    monkeypatch.setattr(worker, "faulthandler", quiet)
    monkeypatch.setattr(worker, "try_program", lambda program, *_: tried.append(program) or Tried())
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(len(tried)))
    line = json.dumps(to_json(CORPUS["while_condition"])) + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(line * (2 * worker.KEPT_BY_JAX + 1)))
    worker.main("hostcb", "cpu", "60")
    assert len(tried) == 2 * worker.KEPT_BY_JAX + 1
    assert cleared == [worker.KEPT_BY_JAX, 2 * worker.KEPT_BY_JAX]
    assert capsys.readouterr().out.count('"anomalies": []') == len(tried)


def standalone(folder: Path, program: Program, change: tuple[str, str] = ("", "")) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(standalone_text(program, expect(program), "hostcb", "a program").replace(*change))
    return subprocess.run([sys.executable, str(path)], cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "name",
    [
        "shard_map_loops",
        "vmap_in_vmap",
        "jvp_while_rules",
        "jvp_of_grad",
        "shard_map_collectives",
        "prints_in_loops",
        "buffers_in_scan",
    ],
)
def test_a_standalone_program_needs_nothing_of_the_suite(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    ended = standalone(tmp_path, CORPUS[name])
    assert (ended.returncode, ended.stdout) == (0, "all is as expected\n"), ended.stderr
    assert "conformance" not in (tmp_path / "program.py").read_text()


def test_a_standalone_program_fails_if_a_callback_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    ended = standalone(
        tmp_path, CORPUS["grad_checkpoint_call"], ("    events.append(", "    label == 2 or events.append(")
    )
    assert "AssertionError: device 0 ran" in ended.stderr


def test_every_program_of_the_corpus_is_a_fault_of_the_matrix() -> None:
    names = {fault.kind for fault in FAULTS}
    assert [name for name in CORPUS if f"fuzz_{name}" not in names] == []
    assert len(CORPUS) > 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--implementation", "jax", "--only", "call"], "ERROR: JAX has no call: choose among"),
        (["--implementation", "no.such.module", "--seconds", "1"], "ERROR: no worker starts"),
    ],
)
def test_what_cannot_be_tried_is_one_sentence(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fuzz", *options, "--results", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_without_hypothesis_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["fuzz", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "ERROR: fuzz draws programs with hypothesis: pip install 'hostcb[fuzz]'\n"


def test_the_command_finds_a_defect_and_writes_it_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--implementation", "conformance.mutants:dropped", "--only", "id_tap", "--layout", "jit"]
    assert main(["fuzz", *options, "--programs", "6", "--results", str(tmp_path)]) == 1
    assert "FOUND lost: device 0 did not run callback" in capsys.readouterr().out
    (written,) = tmp_path.glob("*.py")
    compile(written.read_text(), str(written), "exec")
