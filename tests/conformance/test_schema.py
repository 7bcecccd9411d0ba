"""The versions of what a run leaves behind: each is described, stored, and read by later versions of the suite.

`schemas/` has files of each version as it was written. Nobody renews them: they are what users have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bundle_fakes as fakes
import pytest

from conformance.bundles.archive import MANIFEST, VERSION, unpack
from conformance.bundles.judging import judged
from conformance.cli import commands
from conformance.oracle.verdicts import ExpectationStatus, Stage, Verdict
from conformance.reports import results
from conformance.reports.results import SCHEMA_VERSION, UnreadableResultsError, load_results

pytestmark = pytest.mark.contract("C47")

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).parent / "schemas"
SCHEMAS = Path(results.__file__).parent / "schema"
FILE = "conformance-cpu.json"


def validate(schema: str, data: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the dependency group `test` has it")
    description = json.loads((SCHEMAS / schema).read_text())
    validator = jsonschema.Draft202012Validator
    validator.check_schema(description)
    wrong = [f"{error.json_path}: {error.message}" for error in validator(description).iter_errors(data)]
    assert wrong == []


def stored() -> list[str]:
    return sorted(folder.name for folder in STORED.iterdir() if folder.is_dir())


def test_each_version_is_described_and_stored() -> None:
    versions = [str(version) for version in range(1, SCHEMA_VERSION + 1)]
    assert sorted(file.name for file in SCHEMAS.glob("results-*")) == [f"results-{one}.json" for one in versions]
    assert {name.partition("-")[0] for name in stored()} == {*versions}
    bundles = [str(version) for version in range(1, VERSION + 1)]
    assert sorted(file.name for file in SCHEMAS.glob("manifest-*")) == [f"manifest-{one}.json" for one in bundles]
    assert sorted(file.name for file in STORED.glob("*.zip")) == [f"bundle-{one}.zip" for one in bundles]


@pytest.mark.parametrize("name", stored())
def test_stored_results_are_as_described(name: str) -> None:
    data = json.loads((STORED / name / FILE).read_text())
    validate(f"results-{data['schema']}.json", data)
    assert name.partition("-")[0] == str(data["schema"])


@pytest.mark.parametrize("name", stored())
def test_stored_results_are_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = load_results(STORED / name)
    assert run.platform == "cpu"
    assert run.seconds == 1.5
    assert run.cells[0].passed
    known = run.cells[-1]
    assert (known.id, known.verdict, known.stage) == (fakes.OF_JAX, "fail", "callback")
    assert known.standing is ExpectationStatus.KNOWN_FAILURE
    assert known.witness == "order: cpu:0 ran #2 before #1"
    assert [event.sequence for event in known.history] == [0, 1]
    assert run.left_out == {"hostcb/id_tap/pmap.pmap/cpu-8dev": "JAX refuses"}
    assert commands.main(["report", str(STORED / name)]) == 0
    assert commands.main(["diff", str(STORED / name), f"again={STORED / name}"]) == 0
    assert fakes.OF_JAX in capsys.readouterr().out


def test_what_came_later_to_version_1_is_read() -> None:
    (run,) = load_results(STORED / "1")
    assert run.stress
    assert run.process_starts == 1
    known = run.cells[-1]
    assert known.known
    assert known.known.link == "https://example.org/1"
    assert known.evidence == ((0, 2), (1, 1))
    assert known.history[1].handed_over
    assert run.cells[0].repetition
    assert run.cells[0].repetition.runs == 3


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_stored_bundle_is_verified(version: int, capsys: pytest.CaptureFixture[str]) -> None:
    file = STORED / f"bundle-{version}.zip"
    (run,) = judged(unpack(file.read_bytes()))
    assert run.cells[fakes.OF_JAX].standing is ExpectationStatus.KNOWN_FAILURE
    # When it was stored, cases were called faults.
    assert run.cells[fakes.CASE.replace("case.", "fault.")].outcome.label == "crash(SIGABRT)"
    assert commands.main(["verify", str(file)]) == 0
    assert "multi-process  hostcb          run    earned: 1 of 1 cells pass" in capsys.readouterr().out


def test_a_manifest_is_as_described() -> None:
    import zipfile

    with zipfile.ZipFile(STORED / f"bundle-{VERSION}.zip") as archive:
        validate(f"manifest-{VERSION}.json", json.loads(archive.read(MANIFEST)))


@pytest.mark.parametrize("command", ["report", "diff", "bundle"])
def test_a_newer_version_is_refused_in_words(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = SCHEMA_VERSION + 1
    folder = fakes.write(tmp_path / "newer", schema=newer)
    assert commands.main([command, str(folder), *([f"again={folder}"] if command == "diff" else [])]) == 2
    error = capsys.readouterr().err
    assert f"has schema {newer}, and this reader knows {SCHEMA_VERSION}: read it with the version of" in error


@pytest.mark.parametrize("version", ["1", 1.0, 0, -1, True, None, []])
def test_what_is_no_version_is_refused(version: object, tmp_path: Path) -> None:
    with pytest.raises(UnreadableResultsError, match="is no result of a run: TypeError: the schema is"):
        load_results(fakes.write(tmp_path / "r", schema=version))


def test_the_description_has_every_verdict_stage_and_standing() -> None:
    """A new one is a change of meaning for a reader that knows the old ones."""
    cell = json.loads((SCHEMAS / f"results-{SCHEMA_VERSION}.json").read_text())["$defs"]["cell"]["properties"]
    assert cell["stage"]["enum"] == [*(stage.value for stage in Stage), None]
    assert cell["standing"]["enum"] == [standing.value for standing in ExpectationStatus]
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
    assert commands.main(["verify", str(tmp_path / "results" / "selection" / "bundle.zip")]) == 1
    assert "named one by one" in capsys.readouterr().out
