"""What is told of a run with kept programs, and what is not made of it: bundles, known failures (C68)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bundle_fakes
import pytest

from conformance.bundles.making import members_of
from conformance.cli.commands import main
from conformance.engine.cell_runner import CellRunner
from conformance.engine.conclusions import run_with_second_chance
from conformance.engine.tasks import Task
from conformance.expectations.entries import Expectations
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.reports.columns import sides
from conformance.reports.comparison import comparison
from conformance.reports.markdown import markdown
from conformance.reports.report import Report
from conformance.reports.results import UnreadableResultsError, load_results
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C68")


@pytest.fixture
def of_kept_programs(tmp_path: Path) -> Path:
    """A results folder of `run --compiled`."""
    folder = bundle_fakes.write(tmp_path / "results")
    members_of(folder)
    file = folder / "conformance-cpu.json"
    results = json.loads(file.read_text())
    results["run"]["options"]["compiled"] = True
    file.write_text(json.dumps(results))
    return folder


def test_no_bundle_is_made_of_them(of_kept_programs: Path) -> None:
    with pytest.raises(UnreadableResultsError, match="run the cells again without it, and bundle that"):
        members_of(of_kept_programs)


def test_they_make_no_known_failures(of_kept_programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["expect", str(of_kept_programs)]) == 2
    said = capsys.readouterr()
    assert "so run the cells again without it" in said.err
    assert said.out == ""


def test_the_reports_say_it(of_kept_programs: Path, tmp_path: Path) -> None:
    words = "with programs that an earlier run may have compiled (`--compiled`)"
    assert words in markdown(load_results(of_kept_programs))
    assert words not in markdown(load_results(bundle_fakes.write(tmp_path / "plain")))


def test_comparisons_say_it(of_kept_programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "programs that an earlier run may have compiled (`--compiled`)"
    plain = bundle_fakes.write(tmp_path / "plain")
    main(["diff", f"A={plain}", f"B={of_kept_programs}"])
    assert f"environment: B ran with {words}\n" in capsys.readouterr().out
    main(["diff", f"A={plain}", f"B={plain}"])
    assert words not in capsys.readouterr().out
    kept = load_results(of_kept_programs)
    tables = [
        comparison(sides(named)) for named in ({"plain": load_results(plain), "kept": kept}, {"A": kept, "B": kept})
    ]
    assert [table.summary().count(words) for table in tables] == [1, 2]
    assert f"kept: ran with {words}." in tables[0].summary()


@pytest.mark.parametrize("compiled", [True, False])
def test_the_summary_says_it(compiled: bool) -> None:
    report = Report("cpu", Expectations(), compiled=compiled)
    assert ("an earlier run may have compiled" in report.summary()) == compiled


@pytest.mark.parametrize("company", [(), ("jax/pure_callback/jit/cpu-1dev",)])
def test_a_cell_that_is_not_as_expected_runs_again_and_compiles(
    company: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run is in a process without the folder, so a kept program cannot fail a cell twice."""
    folders: list[Path | None] = []

    class Worker:
        alive, buried = True, False

        def __init__(self, topology: Topology, *_: Any, compiled: Path | None = None, **options: Any) -> None:
            self.topology = topology
            self.run_info: dict[str, Any] = {}
            self._compiled = compiled
            folders.append(compiled)

        def run(self, cell_id: str, deadline: float) -> Outcome:
            if self._compiled and cell_id not in company:
                return Outcome(Verdict.FAIL, Stage.RESULT, "result: 1.0, expected 2.0")
            return Outcome(Verdict.PASS)

        def finish(self) -> Outcome:
            self.buried = True
            return Outcome(Verdict.PASS)

    monkeypatch.setattr("conformance.engine.cell_runner.WorkerProcess", Worker)
    runner = CellRunner(tmp_path / "log", compiled=tmp_path / "kept")
    tasks = [Task(name, "jax", Topology("cpu", 1), 60.0) for name in (*company, "hostcb/id_tap/scan/cpu-8dev")]
    *before, last = [run_with_second_chance(task, runner, Expectations()) for task in tasks]
    assert last.outcome.verdict is Verdict.FLAKE
    assert "with --compiled, pass" in last.outcome.reason
    assert ("remove the folder, and run it again" in last.outcome.reason) == bool(company)
    assert [one.outcome.verdict for one in before] == [Verdict.PASS] * len(company)
    assert folders == [tmp_path / "kept", None, *[None] * len(company)]
