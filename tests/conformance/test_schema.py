"""What a run leaves behind is as its description says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from suite_runs import cells, journal_in, report_in, run

from conformance.bundles.earning import NAMED
from conformance.cli import commands
from conformance.oracle.rates import interval
from conformance.oracle.verdicts import ExpectationStatus, Stage, Verdict
from conformance.reports import results
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.results import SCHEMA_VERSION, load_results

pytestmark = pytest.mark.contract("C47")

SCHEMAS = Path(results.__file__).parent / "schema"


def validate(schema: str, data: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the dependency group `test` has it")
    description = json.loads((SCHEMAS / schema).read_text())
    validator = jsonschema.Draft202012Validator
    validator.check_schema(description)
    wrong = [f"{error.json_path}: {error.message}" for error in validator(description).iter_errors(data)]
    assert wrong == []


def test_the_description_has_every_verdict_stage_and_status() -> None:
    """A new one is a change of meaning for a reader that knows the old ones."""
    cell = json.loads((SCHEMAS / f"results-{SCHEMA_VERSION}.json").read_text())["$defs"]["cell"]["properties"]
    assert cell["stage"]["enum"] == [*(stage.value for stage in Stage), None]
    assert cell["status"]["enum"] == [status.value for status in ExpectationStatus]
    assert cell["verdict"]["pattern"].partition(")")[0] == "^(" + "|".join(verdict.value for verdict in Verdict)


def test_what_a_run_writes_is_as_described_and_can_be_bundled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cell has two programs in each of its runs, and its process loses a callback of every third program."""
    secrets = {"JAX_TOKEN": "a secret", "JAX_ENABLE_CHECKS": "0", "AWS_SECRET_ACCESS_KEY": "a secret"}
    cell = cells("engine_fakes:FAILS_EVERY_THIRD_TIME", "call")
    ended = run(tmp_path, *cell, "--repeat", "7", "-n", "1", **secrets)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    results = tmp_path / "results"
    assert "a secret" not in (results / "conformance-cpu.json").read_text()
    data = report_in(results)
    validate(f"results-{SCHEMA_VERSION}.json", data)
    assert "JAX_ENABLE_CHECKS=0" in data["run_info"]["cpu-1dev"]["variables"]
    assert data["run"]["command"].endswith(f"{cell[0]} --repeat 7 -n 1")
    assert {"jax", "jaxlib", "numpy", "pytest"} <= {*data["run"]["packages"]}
    assert data["run"]["begin"] <= data["run"]["end"]
    assert data["run"]["begin"].endswith("+00:00")
    (found,) = data["cells"]
    repeated = found["repeated"]
    assert (repeated["runs"], repeated["failures"], repeated["confidence"]) == (7, 4, 0.95)
    assert repeated["interval"] == pytest.approx(interval(4, 7))
    assert [(way["verdict"], way["count"]) for way in repeated["outcomes"]] == [("fail", 4), ("pass", 3)]
    assert (data["process_starts"], len(journal_in(results, "end"))) == (1, 7)
    runs = load_results(results)
    assert all("4 of 7" in text for text in (ended.stdout, markdown(runs), html(runs)))

    assert commands.main(["bundle", str(results)]) == 0
    assert commands.main(["verify", str(results / "bundle.zip")]) == 1
    assert NAMED in capsys.readouterr().out
