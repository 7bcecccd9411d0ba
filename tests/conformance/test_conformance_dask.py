"""Cells on a Dask cluster: lost workers cost nothing, and a cell that kills its workers is a crash."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import commands
from conformance.engine.cluster import ClusterError, _ClusterRun, batches
from conformance.engine.cluster_worker import described
from conformance.engine.tasks import Setup, Task
from conformance.spec.sources import versions
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C44")

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
ONE = Topology("cpu", 1)

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="Dask's package distributed is not installed"
)


def task(number: int, topology: Topology = ONE, isolated: bool = False) -> Task:
    return Task(f"jax/io_callback/p{number}/{topology.name}", "jax", topology, 60.0, isolated)


def test_batches_have_cells_of_one_kind() -> None:
    tasks = [task(0, isolated=True), *(task(number) for number in range(1, 50)), task(50, Topology("cpu", 8))]
    made = batches(tasks, workers=2)
    assert [cell for batch in made for cell in batch] == tasks
    assert [len(batch) for batch in made] == [1, *[6] * 8, 1, 1]
    assert len(batches(tasks, workers=100)) == len(tasks)


class Client:
    """A cluster whose workers say what a test wants."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def run(self, *_: Any, **__: Any) -> dict[str, Any]:
        return self._found


def test_workers_with_other_versions_are_refused(tmp_path: Path) -> None:
    def check(found: Any) -> None:
        setup = Setup((task(1),), tmp_path, tmp_path / "journal")
        _ClusterRun(Client({"tcp://a": found}), setup, None)._check_versions()  # type: ignore[arg-type]

    here = versions(["jax"])
    check(here)
    with pytest.raises(ClusterError, match=f"tcp://a has other versions: jax is 0.4.31 there and {here['jax']} here"):
        check(here | {"jax": "0.4.31"})
    with pytest.raises(ClusterError, match="cannot run cells: ModuleNotFoundError"):
        check(ModuleNotFoundError("No module named 'conformance'"))
    assert "suite is None there" in described("tcp://a", here, {**here, "suite": None})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2"], "neither -n nor --stress goes with it"),
        (["--stress"], "neither -n nor --stress goes with it"),
    ],
)
def test_options_of_this_machine_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert commands.main(["run", "--scheduler", "tcp://nowhere:1", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_missing_package_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "distributed" else found(name, *rest)
    )
    assert commands.main(["run", "--scheduler", "tcp://nowhere:1"]) == 2
    assert "pip install 'hostcb[distributed]'" in capsys.readouterr().err


@needs_dask
def test_a_lost_worker_costs_no_cell_and_a_deadly_cell_is_a_crash(tmp_path: Path) -> None:
    """The first cell kills the Dask worker that runs it once, and the other one each time."""
    known = tmp_path / "none.toml"
    known.touch()
    once, always = (
        "engine_fakes:KILLS_PYTEST/call/eager/cpu-1dev",
        "engine_fakes:ALWAYS_KILLS_PARENT/call/eager/cpu-1dev",
    )
    good = [f"conformance_fakes:GOOD/{name}/eager/cpu-1dev" for name in ("id_tap", "call", "call_no_result")]
    results = tmp_path / "results"
    arguments = [
        "--results",
        str(results),
        "--expectations",
        str(known),
        *(f"--cell={c}" for c in (once, always, *good)),
    ]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
        "ENGINE_FAKES": str(tmp_path),
        # A cell that kills its worker is known after two of them.
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    }
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "programs" / "dask_run.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.stdout.splitlines()[-1:] == ["1"], ended.stdout + ended.stderr
    report = json.loads((results / "conformance-cpu.json").read_text())
    found = {cell["id"]: cell for cell in report["cells"]}
    assert {cell: record["verdict"] for cell, record in found.items()} == {
        once: "pass",
        always: "crash",
        **dict.fromkeys(good, "pass"),
    }
    assert found[once]["attempts"] == 2
    assert "Dask workers were lost while they ran it" in found[always]["witness"]
    assert report["problems"] == []
    assert report["run_info"]
