"""What a run leaves behind is as its description says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite_runs import cells, journal_in, report_in, run_here

from conformance.bundles.earning import NAMED
from conformance.cli import commands
from conformance.oracle.rates import interval
from conformance.oracle.verdicts import ExpectationStatus, Stage, Verdict
from conformance.reports import results
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.results import SCHEMA_VERSION, load_results

pytestmark = pytest.mark.contract("C47")

SCHEMA = Path(results.__file__).parent / "schema" / f"results-{SCHEMA_VERSION}.json"


def test_the_description_has_every_verdict_stage_and_status() -> None:
    """A new one is a change of meaning for a reader that knows the old ones."""
    cell = json.loads(SCHEMA.read_text())["$defs"]["cell"]["properties"]
    assert cell["stage"]["enum"] == [*(stage.value for stage in Stage), None]
    assert cell["status"]["enum"] == [status.value for status in ExpectationStatus]
    assert cell["verdict"]["pattern"].partition(")")[0] == "^(" + "|".join(verdict.value for verdict in Verdict)


def test_what_a_run_writes_is_as_described_and_can_be_bundled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell has two programs in each of its runs, and its process loses a callback of every third program."""
    jsonschema = pytest.importorskip("jsonschema", reason="the dependency group `test` has it")
    secrets = {"JAX_TOKEN": "a secret", "JAX_ENABLE_CHECKS": "0", "AWS_SECRET_ACCESS_KEY": "a secret"}
    cell = cells("engine_fakes:FAILS_EVERY_THIRD_TIME", "call")
    assert run_here(tmp_path, monkeypatch, *cell, "--repeat", "7", **secrets) == 1
    printed = capsys.readouterr().out
    folder = tmp_path / "results"
    assert "a secret" not in (folder / "conformance-cpu.json").read_text()
    data = report_in(folder)
    validator = jsonschema.Draft202012Validator
    validator.check_schema(description := json.loads(SCHEMA.read_text()))
    assert [f"{error.json_path}: {error.message}" for error in validator(description).iter_errors(data)] == []
    assert "JAX_ENABLE_CHECKS=0" in data["run_info"]["cpu-1dev"]["variables"]
    assert data["run"]["command"].endswith(f"{cell[0]} --repeat 7")
    assert {"jax", "jaxlib", "numpy", "pytest"} <= {*data["run"]["packages"]}
    assert data["run"]["begin"] <= data["run"]["end"] and data["run"]["begin"].endswith("+00:00")
    (found,) = data["cells"]
    repeated = found["repeated"]
    assert (repeated["runs"], repeated["failures"], repeated["confidence"]) == (7, 4, 0.95)
    assert repeated["interval"] == pytest.approx(interval(4, 7))
    assert [(way["verdict"], way["count"]) for way in repeated["outcomes"]] == [("fail", 4), ("pass", 3)]
    assert (data["process_starts"], len(journal_in(folder, "end"))) == (1, 7)
    runs = load_results(folder)
    assert all("4 of 7" in text for text in (printed, markdown(runs), html(runs)))

    assert commands.main(["bundle", str(folder)]) == 0
    assert commands.main(["verify", str(folder / "bundle.zip")]) == 1
    assert NAMED in capsys.readouterr().out
