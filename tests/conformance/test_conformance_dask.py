"""Cells on a Dask cluster: a lost worker costs no cell, and a cell that kills its workers is a crash."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import needs
import pytest

from conformance.cli import commands
from conformance.engine import dask_client
from conformance.engine.conclusions import Conclusion
from conformance.engine.dask_client import MOST_LOST, check_versions
from conformance.engine.dask_cluster import _ClusterRun, batches
from conformance.engine.dask_order import described
from conformance.engine.tasks import Setup, Task
from conformance.engine.tools import DaskClusterError
from conformance.oracle.verdicts import Outcome, Verdict
from conformance.spec.sources import versions
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C44")

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PROGRAM = ROOT / "tests" / "programs" / "dask_run.py"
ONE = Topology("cpu", 1)


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


def test_workers_with_other_versions_are_refused() -> None:
    here = versions(["jax"])

    def check(found: Any, *ignored: str) -> None:
        kept = {name: version for name, version in here.items() if name not in ignored}
        check_versions(Client({"tcp://a": found}), kept, ("jax",), "the cells", ignored)

    check(here)
    check(here | {"jax": "0.4.31"}, "jax", "jaxlib")
    with pytest.raises(
        DaskClusterError, match=f"tcp://a has other versions: jax is 0.4.31 there and {here['jax']} here"
    ):
        check(here | {"jax": "0.4.31"})
    with pytest.raises(DaskClusterError, match="cannot run cells: ModuleNotFoundError"):
        check(ModuleNotFoundError("No module named 'conformance'"))
    assert "suite is None there" in described("tcp://a", here, {**here, "suite": None})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2"], "neither -n nor --stress goes with it"),
        (["--stress"], "neither -n nor --stress goes with it"),
        (["-p", "xdist"], "-p is for pytest processes, and a Dask cluster has none"),
    ],
)
def test_options_of_this_machine_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert commands.main(["run", "--scheduler", "tcp://nowhere:1", *arguments]) == 2
    assert words in capsys.readouterr().err


CELL = ("--cell", "jax/io_callback/eager/cpu-1dev")


def test_a_missing_package_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "distributed" else found(name, *rest)
    )
    assert commands.main(["run", *CELL, "--scheduler", "tcp://nowhere:1"]) == 2
    told = capsys.readouterr().err
    assert told == "ERROR: --scheduler needs Dask's package distributed: pip install 'hostcb[distributed]'\n"


@needs.DASK
def test_a_scheduler_that_does_not_answer_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What an earlier run has left stays as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dask_client, "CONNECT_SECONDS", 0.2)
    kept = tmp_path / "results" / "journal-cpu.jsonl"
    kept.parent.mkdir()
    kept.write_text("kept\n")
    assert commands.main(["run", *CELL, "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "ERROR: --scheduler: no Dask scheduler answers at tcp://127.0.0.1:1: " in capsys.readouterr().err
    assert kept.read_text() == "kept\n"


class Answers:
    """A controller that keeps what it is told."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def read(self, message: dict[str, Any]) -> None:
        self.found[message["cell"]] = message["conclusion"]

    def note_failure(self) -> None: ...


def test_a_cell_with_which_workers_are_lost_is_a_crash(tmp_path: Path) -> None:
    """And the others of its batch run again, each for itself, unless they have told what they show."""
    done, deadly, good = task(0), task(1), task(2)
    answers = Answers()
    setup = Setup((done, deadly, good), tmp_path, tmp_path / "journal")
    run = _ClusterRun(Client({}), "tcp://nowhere:1", setup, answers)  # type: ignore[arg-type]
    message = {"cell": done.id, "conclusion": Conclusion(Outcome(Verdict.PASS)).as_json(), "learnt": {}}
    run._note((0.0, {"event": "begin", "cell": done.id}))
    run._note((0.0, {"event": "end", "cell": done.id, "message": json.dumps(message)}))
    run._take(run._arrived.get(timeout=1))
    assert answers.found[done.id]["attempts"] == 1
    for lost in range(1, MOST_LOST + 1):
        run._note((0.0, {"event": "begin", "cell": deadly.id}))
        again = run._lost((done, deadly, good))
        assert again == ([[deadly], [good]] if lost < MOST_LOST else [[good]])
    assert answers.found[deadly.id]["attempts"] == MOST_LOST
    assert answers.found[deadly.id]["outcome"]["verdict"] == "crash"
    assert answers.found[deadly.id]["outcome"]["witness"] == "3 Dask workers were lost while they ran it"
    while again:
        again = run._lost((good,))
    assert answers.found[good.id]["outcome"]["verdict"] == "missing"
    run._journal.close()


@needs.DASK
def test_a_lost_worker_costs_no_cell(tmp_path: Path) -> None:
    """The first cell kills the Dask worker that runs it, once."""
    known = tmp_path / "none.toml"
    known.touch()
    once = "engine_fakes:KILLS_PYTEST/call/eager/cpu-1dev"
    cells = [once, *(f"conformance_fakes:GOOD/{name}/eager/cpu-1dev" for name in ("id_tap", "call", "call_no_result"))]
    where = ["--results", str(tmp_path / "results"), "--expectations", str(known)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "ENGINE_FAKES": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *where, *(f"--cell={cell}" for cell in cells)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.stdout.splitlines()[-1:] == ["0"], ended.stdout + ended.stderr
    report = json.loads((tmp_path / "results" / "conformance-cpu.json").read_text())
    found = {cell["id"]: (cell["verdict"], cell["attempts"]) for cell in report["cells"]}
    assert found == {**dict.fromkeys(cells, ("pass", 1)), once: ("pass", 2)}
    assert report["problems"] == []
    assert report["run_info"].keys() == {"cpu-1dev"}
