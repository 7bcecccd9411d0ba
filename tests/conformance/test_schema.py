"""What a run leaves behind is as its description says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import commands
from conformance.oracle.verdicts import ExpectationStatus, Stage, Verdict
from conformance.reports import results
from conformance.reports.results import SCHEMA_VERSION

pytestmark = pytest.mark.contract("C47")

ROOT = Path(__file__).parents[2]
SCHEMAS = Path(results.__file__).parent / "schema"
FILE = "conformance-cpu.json"


def validate(schema: str, data: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the dependency group `test` has it")
    description = json.loads((SCHEMAS / schema).read_text())
    validator = jsonschema.Draft202012Validator
    validator.check_schema(description)
    wrong = [f"{error.json_path}: {error.message}" for error in validator(description).iter_errors(data)]
    assert wrong == []


def test_the_description_has_every_verdict_stage_and_standing() -> None:
    """A new one is a change of meaning for a reader that knows the old ones."""
    cell = json.loads((SCHEMAS / f"results-{SCHEMA_VERSION}.json").read_text())["$defs"]["cell"]["properties"]
    assert cell["stage"]["enum"] == [*(stage.value for stage in Stage), None]
    assert cell["status"]["enum"] == [status.value for status in ExpectationStatus]
    assert cell["verdict"]["pattern"].partition(")")[0] == "^(" + "|".join(verdict.value for verdict in Verdict)


def test_what_a_run_writes_is_as_described_and_can_be_bundled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = str(Path(__file__).parent)
    cells = ["--cell", "engine_fakes:FAILS_EVERY_THIRD_TIME/call/eager/cpu-1dev"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{here}", "ENGINE_FAKES": str(tmp_path)}
    environment |= {"JAX_TOKEN": "a secret", "JAX_ENABLE_CHECKS": "0", "AWS_SECRET_ACCESS_KEY": "a secret"}
    ended = subprocess.run(
        [sys.executable, "-m", "conformance", "run", *cells, "--repeat", "4", "-n", "1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    text = (tmp_path / "results" / "selection" / FILE).read_text()
    assert "a secret" not in text
    data = json.loads(text)
    validate(f"results-{SCHEMA_VERSION}.json", data)
    assert "JAX_ENABLE_CHECKS=0" in data["run_info"]["cpu-1dev"]["variables"]
    assert data["run"]["command"] == f"python -m conformance run {' '.join(cells)} --repeat 4 -n 1"
    assert {"jax", "jaxlib", "numpy", "pytest"} <= {*data["run"]["packages"]}
    assert data["run"]["begin"] <= data["run"]["end"]
    assert data["run"]["begin"].endswith("+00:00")
    assert commands.main(["bundle", str(tmp_path / "results" / "selection")]) == 0
    file = tmp_path / "results" / "selection" / "bundle.zip"
    assert commands.main(["verify", str(file)]) == 1
    assert "named one by one" in capsys.readouterr().out
