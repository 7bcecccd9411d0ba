"""Cells in several processes: how the processes end, in runs of this machine and in jobs of a cluster."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.cli.commands import main
from conformance.engine.machines.job_hosts import ClusterError, detected
from conformance.oracle.checkers import Anomaly
from conformance.oracle.observations import Observation
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.spec.topology import Topology
from conformance.worker import process_group
from conformance.worker.transport import Start

pytestmark = pytest.mark.contract("C35")

PROJECT = Path(__file__).parents[2]
TWO = Topology("cpu", 2, processes=2)


class FakeTransport:
    """A process of a group that answers as its script says."""

    pid: int | None = None

    def __init__(self, answers: Mapping[str, Any], status: int | None = None, words: str = "") -> None:
        self._out, self._in = os.pipe()
        self._answers = answers
        self._status = status
        self._words = words
        self.killed = self.asked = False
        self._lines: list[dict[str, Any]] = [{"event": "ready", "run_info": {"device_count": 2}}]
        self._wake()

    def _wake(self) -> None:
        os.write(self._in, b".")

    def fileno(self) -> int:
        return self._out

    def send(self, command: Mapping[str, Any]) -> None:
        answer = self._answers.get(command["do"])
        if answer is not None:
            self._lines.append({"event": "end", "cell": command["cell"], **answer})
            self._wake()
        elif self._status is not None:
            self._wake()

    def reports(self) -> list[dict[str, Any]] | None:
        os.read(self._out, 100)
        lines, self._lines = self._lines, []
        return lines or None

    def mark(self) -> None: ...

    def show_stacks(self) -> None:
        self.asked = True

    def finish(self) -> None: ...

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float) -> int | None:
        return -9 if self.killed and self._status is None else self._status

    def written(self) -> str:
        return self._words

    def close(self) -> None:
        os.close(self._in)
        os.close(self._out)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRACE", "STACK_DUMP_SECONDS", "ONE_SIDED", "LATEST_SECONDS"):
        monkeypatch.setattr(process_group, name, 0.01)


def outcome_with(transports: list[FakeTransport], deadline: float = 5.0) -> tuple[Outcome, process_group.ProcessGroup]:
    def started(starts: Sequence[Start]) -> list[FakeTransport]:
        assert [start.arguments[-4:] for start in starts] == [
            ["--process", str(rank), "--coordinator", "here:1"] for rank in range(2)
        ]
        return transports

    one = process_group.ProcessGroup(TWO, "hostcb", Path("log"), start_workers=started, coordinator_address="here:1")
    return one.run("hostcb/id_tap/jit/cpu-2x1", deadline), one


SEEN: dict[str, Any] = {"observation": Observation(0).as_json(), "seconds": 0.1}
PASSES = {"outcome": Outcome(Verdict.PASS).as_json(), "lost": False}


@pytest.mark.usefixtures("quick")
def test_the_first_process_judges_what_all_have_seen() -> None:
    outcome, running = outcome_with([FakeTransport({"run": SEEN, "judge": PASSES}), FakeTransport({"run": SEEN})])
    assert outcome.verdict is Verdict.PASS
    assert not running.buried
    running.kill()


@pytest.mark.usefixtures("quick")
def test_the_end_of_one_process_ends_all_with_the_words_of_each() -> None:
    transports = [
        FakeTransport({"run": SEEN}, words="I waited"),
        FakeTransport({}, status=-signal.SIGSEGV, words="Fatal Python error: it fell"),
    ]
    outcome, running = outcome_with(transports)
    assert outcome.label == "crash(SIGSEGV)"
    assert "process 1 ended with SIGSEGV" in outcome.reason
    assert "process 0: I waited" in outcome.reason
    assert "it fell" in outcome.reason
    assert transports[0].asked
    assert transports[0].killed
    assert running.buried


@pytest.mark.usefixtures("quick")
def test_a_stopped_process_is_blamed_and_not_the_one_that_gave_up_waiting() -> None:
    """JAX ends the processes that wait for a stopped one, which alone writes no stacks."""
    transports = [
        FakeTransport({}, status=-signal.SIGABRT, words="the service detected fatal errors"),
        FakeTransport({}),
    ]
    outcome, _ = outcome_with(transports)
    assert outcome.label == "hang"
    assert outcome.reason.startswith("process 1 is stopped")
    assert "process 0 ended with SIGABRT" in outcome.reason


@pytest.mark.usefixtures("quick")
def test_a_process_without_an_answer_is_a_hang_of_the_cell() -> None:
    failed = Observation(0, verdict=Verdict.FAIL, anomalies=(Anomaly("error", Stage.DISPATCH, "ValueError: no"),))
    transports = [
        FakeTransport({"run": {"observation": failed.as_json(), "seconds": 0.1}}),
        FakeTransport({}, words="in psum"),
    ]
    outcome, running = outcome_with(transports, 60.0)
    assert outcome.verdict is Verdict.HANG
    assert "no answer of process 1" in outcome.reason
    assert "process 0 said ValueError: no" in outcome.reason
    assert "process 1: in psum" in outcome.reason
    assert running.buried


def run_in(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(str, (PROJECT, Path(__file__).parent)))
    environment = {**os.environ, "PYTHONPATH": paths, "ENGINE_FAKES": str(folder), **variables}
    command = [sys.executable, "-m", "conformance", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.contract("H23")
def test_a_local_program_calls_back_in_every_process(tmp_path: Path) -> None:
    """In every process but the first these failed: devices were looked up by their place in their process."""
    names = ("id_tap_device/jit", "call_device/shard_map", "io_callback_ordered/pmap", "debug_callback_ordered/jit")
    ended = run_in(
        tmp_path, "run", "-n", "1", *(word for name in names for word in ("--cell", f"hostcb/{name}/cpu-2x1"))
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads((tmp_path / "results" / "selection" / "conformance-cpu.json").read_text())
    assert [cell["verdict"] for cell in results["cells"]] == ["pass"] * 4


def test_a_crash_in_one_process_costs_one_cell(tmp_path: Path) -> None:
    fake = "engine_fakes:DIES_IN_SECOND_PROCESS"
    cells = [f"{fake}/{name}/eager/cpu-2x1" for name in ("id_tap", "call", "id_print")]
    known = tmp_path / "known.toml"
    # A known failure runs once.
    known.write_text(
        f'[[expect]]\ncells = "{cells[1]}"\nverdict = "crash(SIGABRT)"\nreason = "planted"\nlink = "-"\nsince = "-"\n'
    )
    named = [word for cell in cells for word in ("--cell", cell)]
    ended = run_in(tmp_path, "run", "-n", "1", "--expectations", str(known), *named)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads((tmp_path / "results" / "selection" / "conformance-cpu.json").read_text())
    found = {cell["id"].split("/")[1]: cell for cell in results["cells"]}
    verdicts = {name: cell["verdict"] for name, cell in found.items()}
    assert verdicts == {"id_tap": "pass", "call": "crash(SIGABRT)", "id_print": "pass"}
    assert "process 1 ended with SIGABRT" in found["call"]["witness"]
    assert "process 0:" in found["call"]["witness"]


def test_no_process_outlives_a_killed_run(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "conformance",
        "run",
        "-n",
        "1",
        "--cell",
        "engine_fakes:BLOCKS/call/eager/cpu-2x1",
    ]
    paths = os.pathsep.join(map(str, (PROJECT, Path(__file__).parent)))
    environment = {**os.environ, "PYTHONPATH": paths, "ENGINE_FAKES": str(tmp_path)}
    run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "blocked").exists():
            assert time.monotonic() < until
            assert run.poll() is None
            time.sleep(0.05)
        # Where they are forks, the server comes between.
        children = _descendants_of(run.pid)
        assert len(children) >= 2
    finally:
        run.kill()
        run.wait()
    until = time.monotonic() + 30
    while any(_lives(child) for child in children):
        assert time.monotonic() < until
        time.sleep(0.05)


def _descendants_of(process: int) -> list[int]:
    children = _children_of(process)
    return children + [each for child in children for each in _descendants_of(child)]


def _children_of(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


FAKE_SRUN = """\
#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
export SLURM_JOB_ID={job} SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_LOCALID=0
SLURM_PROCID=1 "$@" > second.txt 2>&1 &
SLURM_PROCID=0 "$@"; first=$?
wait $!; echo "the second process ended with $?"
exit $first
"""


def test_the_tasks_of_a_slurm_job_run_cells_together(tmp_path: Path) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(FAKE_SRUN.format(job=os.getpid()))
    srun.chmod(srun.stat().st_mode | stat.S_IEXEC)
    environment = {
        **os.environ,
        "PATH": f"{srun.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(PROJECT),
    }
    cells = ("--cell", "hostcb/id_tap_device/shard_map/cpu-2x1", "--cell", "hostcb/call/pjit/cpu-2x1")
    command = ["bash", str(PROJECT / "ci" / "launchers" / "slurm.sh"), *cells]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 of 2 cells passed" in ended.stdout
    assert "the second process ended with 0" in ended.stdout
    assert (tmp_path / "second.txt").read_text() == ""


@pytest.mark.parametrize("script", sorted((PROJECT / "ci" / "launchers").glob("*.sh")), ids=lambda path: path.stem)
def test_a_launcher_is_a_valid_script(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=20)
    assert "conformance run --spread hosts" in script.read_text()
    assert os.access(script, os.X_OK)


def test_open_mpi_and_no_job_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(ClusterError, match="ci/launchers"):
        detected()
    for name, value in {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "3",
        "OMPI_COMM_WORLD_RANK": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    }.items():
        monkeypatch.setenv(name, value)
    found = detected()
    assert (found.processes, found.process, found.coordinator_address.partition(":")[0]) == (3, 2, "10.96.0.1")
    assert found.address == ("10.96.0.1", int(found.coordinator_address.partition(":")[2]) - 4096)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--devices", "cpu-2x2", "--smoke"], "--smoke"),
        (["--devices", "cpu-2x2", "--cell", "hostcb/id_tap/jit/cpu-2x2"], "--devices has no meaning"),
        (["--devices", "cpu-2x2,tpu-2x2"], "one run is on one platform"),
        (["--spread", "hosts", "-n", "2"], "--spread hosts"),
        (["--spread", "hosts"], "ci/launchers"),
    ],
)
def test_options_that_exclude_each_other(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ERROR: ")
    assert words in error


def test_repro_prints_a_program_that_starts_the_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "hostcb/id_tap/pjit/cpu-2x1"]) == 0
    text = capsys.readouterr().out
    compile(text, "cell.py", "exec")
    assert "in 2 processes, which this program starts" in text
    assert main(["repro", "--standalone", "hostcb/id_tap/pjit/cpu-2x1"]) == 2
    assert "runs in 2 processes" in capsys.readouterr().err
