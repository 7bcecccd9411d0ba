"""`run --maxfail` and `run -p`: a run that stops early or that a plugin disturbs is not a good one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.engine.user_plugins import PluginError, require_plugins

pytestmark = pytest.mark.contract("C46")

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
DEADLINE = 120.0

LOSES = """
from conformance_fakes import InPlace

IMPLEMENTATION = InPlace(lambda callback, site: site != "unused")
"""

WORKS = """
from conformance_fakes import InPlace

IMPLEMENTATION = InPlace()
"""

CALLBACKS = ("id_tap", "call", "io_callback", "debug_callback")

RECORDS = """
import os

def pytest_runtest_call(item):
    with open("recorded", "a") as file:
        file.write(f"{os.environ.get('PYTEST_XDIST_WORKER', 'alone')} {item.name}\\n")
"""


def run(
    folder: Path, implementation: str, *options: str, count: int = 4
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The run of as many cells, and its results."""
    (folder / "fake.py").write_text(implementation)
    cells = [word for callback in CALLBACKS[:count] for word in ("--cell", f"fake/{callback}/eager/cpu-1dev")]
    # The first two would put colours into what pytest says; the third is this session's, if it has several processes.
    ours = ("FORCE_COLOR", "PY_COLORS", "PYTEST_XDIST_WORKER")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    ended = subprocess.run(
        [sys.executable, "-m", "conformance", "run", *cells, "--expectations", os.devnull, *options],
        cwd=folder,
        env=inherited | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    file = folder / "results" / "selection" / "conformance-cpu.json"
    return ended, json.loads(file.read_text()) if file.exists() else {}


def verdicts(results: dict[str, Any]) -> list[str]:
    return [cell["verdict"] for cell in results["cells"]]


def test_a_run_stops_after_as_many_unexpected_results(tmp_path: Path) -> None:
    ended, results = run(tmp_path, LOSES, "-n", "1", "--maxfail", "1", count=3)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert verdicts(results) == ["fail", "missing", "missing"]
    why = "the run stopped after 1 unexpected results: --maxfail is 1"
    assert results["problems"] == [why]
    assert {cell["witness"] for cell in results["cells"][1:]} == {why}
    assert f"PROBLEM: {why}" in ended.stdout
    assert "3 unexpected results (2 of them never run)" in ended.stdout
    assert "shows them." in ended.stdout.splitlines()[-1]
    assert results["run"]["options"]["maxfail"] == 1


def test_several_processes_stop_as_well(tmp_path: Path) -> None:
    ended, results = run(tmp_path, LOSES, "-n", "2", "--maxfail", "1")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert {"fail", "missing"} >= {*verdicts(results)}
    assert results["problems"] == [
        f"the run stopped after {verdicts(results).count('fail')} unexpected results: --maxfail is 1"
    ]


def test_good_cells_do_not_stop_it_and_every_process_has_the_plugins(tmp_path: Path) -> None:
    (tmp_path / "records.py").write_text(RECORDS)
    for workers in (1, 2):
        ended, results = run(tmp_path, WORKS, "-n", str(workers), "--maxfail", "1", "-p", "records", count=2)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert verdicts(results) == ["pass"] * 2
        recorded = [line.split() for line in (tmp_path / "recorded").read_text().splitlines()]
        assert sorted(cell for _, cell in recorded) == sorted(cell["id"] for cell in results["cells"])
        assert {where[:2] for where, _ in recorded} == ({"al"} if workers == 1 else {"gw"})
        (tmp_path / "recorded").unlink()
    assert results["run"]["options"]["plugins"] == ["records"]


DISTURBANCES = {
    "skips": "import pytest\ndef pytest_runtest_setup(item):\n    if '/id_tap/' in item.name: pytest.skip('no')",
    "deselects": "def pytest_collection_modifyitems(items):\n    del items[1]",
    "takes": "def pytest_runtest_protocol(item):\n    return True if '/io_callback/' in item.name else None",
}
"""Plugins, each of which keeps one cell from running."""


def test_a_cell_that_a_plugin_keeps_from_running_is_missing(tmp_path: Path) -> None:
    for name, source in DISTURBANCES.items():
        (tmp_path / f"{name}.py").write_text(source)
    ended, results = run(tmp_path, WORKS, "-n", "1", *(word for name in DISTURBANCES for word in ("-p", name)))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert verdicts(results) == ["missing", "missing", "missing", "pass"]
    assert results["problems"] == ["a pytest plugin made the setup of fake/id_tap/eager/cpu-1dev skipped: Skipped: no"]


def test_a_failure_stays_one_whatever_a_plugin_makes_of_it(tmp_path: Path) -> None:
    (tmp_path / "hides.py").write_text(
        "import pytest\n\n\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_runtest_makereport(item, call):\n"
        "    report = yield\n"
        "    report.outcome = 'passed'\n"
        "    return report\n"
    )
    ended, results = run(tmp_path, LOSES, "-n", "1", "-p", "hides", count=1)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert verdicts(results) == ["fail"]


def test_a_plugin_that_cannot_be_imported_is_said_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises.py").write_text("raise RuntimeError('planted')")
    ended, results = run(tmp_path, WORKS, "-p", "raises")
    assert (ended.returncode, ended.stdout, results) == (2, "", {})
    assert ended.stderr.startswith("ERROR: -p raises: pytest cannot load this plugin: expected a module on PYTHONPATH")
    assert "planted" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError, match="No module named 'not_there'"):
        require_plugins(["not_there"])
    with pytest.raises(PluginError, match="-p no:terminal turns a plugin off"):
        require_plugins(["no:terminal"])


@pytest.mark.parametrize("count", ["0", "-1", "many", "1.5"])
def test_maxfail_is_a_number_greater_than_zero(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    from conformance.cli.commands import main

    with pytest.raises(SystemExit) as ending:
        main(["run", "--maxfail", count])
    assert ending.value.code == 2
    assert "argument --maxfail: " in capsys.readouterr().err
