"""Cells in several processes: how the processes end, in runs of this machine and in jobs of a cluster."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import suite_runs

from conformance.engine.machines.job_hosts import ClusterError, detected
from conformance.oracle.checkers import Anomaly
from conformance.oracle.observations import Observation
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.spec.topology import Topology
from conformance.worker import process_group

pytestmark = pytest.mark.contract("C35")


class FakeTransport:
    """A process of a group that answers as its script says."""

    pid: int | None = None

    def __init__(self, answers: Mapping[str, Any], status: int | None = None, words: str = "") -> None:
        self._out, self._in = os.pipe()
        self._answers = answers
        self._status = status
        self._words = words
        self.killed = False
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

    def show_stacks(self) -> None: ...

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


SEEN: dict[str, Any] = {"observation": Observation(0).as_json(), "seconds": 0.1}
FAILED = Observation(0, verdict=Verdict.FAIL, anomalies=(Anomaly("error", Stage.DISPATCH, "ValueError: no"),))
HAS_FAILED: dict[str, Any] = {"observation": FAILED.as_json(), "seconds": 0.1}
PASSES = {"outcome": Outcome(Verdict.PASS).as_json(), "lost": False}


@pytest.mark.parametrize(
    ("first", "second", "label", "reasons"),
    [
        (({"run": SEEN, "judge": PASSES},), ({"run": SEEN},), "pass", ()),
        (
            *(({"run": SEEN}, None, "I waited"), ({}, -signal.SIGSEGV, "Fatal Python error: it fell")),
            *("crash(SIGSEGV)", ("process 1 ended with SIGSEGV", "process 0: I waited", "it fell")),
        ),
        # JAX ends the processes that wait for a stopped one, which alone writes no stacks.
        (
            *(({}, -signal.SIGABRT, "the service detected fatal errors"), ({},)),
            *("hang", ("process 1 is stopped", "process 0 ended with SIGABRT")),
        ),
        (
            *(({"run": HAS_FAILED},), ({}, None, "in psum")),
            *("hang", ("no answer of process 1", "process 0 said ValueError: no", "process 1: in psum")),
        ),
    ],
    ids=["pass", "crash", "stopped", "hang"],
)
def test_one_outcome_of_several_processes(
    first: Any, second: Any, label: str, reasons: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process judges what all have seen; the end of one ends all, with the words of each."""
    for name in ("GRACE", "STACK_DUMP_SECONDS", "ONE_SIDED", "LATEST_SECONDS"):
        monkeypatch.setattr(process_group, name, 0.01)
    transports = [FakeTransport(*first), FakeTransport(*second)]

    def started(starts: Any) -> Any:
        arguments = [start.arguments[-4:] for start in starts]
        assert arguments == [["--process", str(rank), "--coordinator", "here:1"] for rank in range(2)]
        return transports

    topology = Topology("cpu", 2, processes=2)
    group = process_group.ProcessGroup(
        topology, "hostcb", Path("log"), start_workers=started, coordinator_address="here:1"
    )
    outcome = group.run("hostcb/id_tap/jit/cpu-2x1", 60.0 if label == "hang" else 5.0)
    assert outcome.label == label
    assert all(words in outcome.reason for words in reasons), outcome.reason
    assert group.buried is any(transport.killed for transport in transports) is (label != "pass")
    if label == "pass":
        group.kill()


def test_a_crash_in_one_process_costs_one_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [f"engine_fakes:DIES_IN_SECOND_PROCESS/{name}/eager/cpu-2x1" for name in ("call", "id_print")]
    # A known failure runs once.
    entry = f'cells = "{cells[0]}"\nverdict = "crash(SIGABRT)"\nreason = "planted"\nlink = "-"\nsince = "-"\n'
    (tmp_path / "known.toml").write_text(f"[[expect]]\n{entry}")
    named = [f"--cell={cell}" for cell in cells]
    assert suite_runs.run_here(tmp_path, monkeypatch, "--expectations", str(tmp_path / "known.toml"), *named) == 0
    report = suite_runs.report_in(tmp_path / "results")
    assert suite_runs.verdicts(report) == dict(zip(cells, ("crash(SIGABRT)", "pass"), strict=True))
    (witness,) = (cell["witness"] for cell in report["cells"] if cell["id"] == cells[0])
    assert "process 1 ended with SIGABRT" in witness and "process 0:" in witness


def test_no_process_outlives_a_killed_run(tmp_path: Path) -> None:
    """The processes of the cell hold the other end of the pipe."""
    os.mkfifo(tmp_path / "blocked")
    pipe = os.open(tmp_path / "blocked", os.O_RDONLY | os.O_NONBLOCK)

    def received() -> bytes:
        assert select.select([pipe], [], [], suite_runs.DEADLINE)[0]
        return os.read(pipe, 100)

    run = suite_runs.start(tmp_path, "-n", "1", "--cell", "engine_fakes:BLOCKS_IN_PIPE/call/eager/cpu-2x1")
    try:
        written = received()
        while written.count(b"blocked") < 2:
            written += received()
    finally:
        run.kill()
        run.communicate()
    assert received() == b""
    os.close(pipe)


FAKE_SRUN = """\
#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
export SLURM_JOB_ID={job} SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_LOCALID=0
SLURM_PROCID=1 "$@" > second.txt 2>&1 &
SLURM_PROCID=0 "$@"; first=$?
wait $!; echo "the second process ended with $?"
exit $first
"""


@pytest.mark.thorough
def test_the_tasks_of_a_slurm_job_run_cells_together(tmp_path: Path) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(FAKE_SRUN.format(job=os.getpid()))
    srun.chmod(0o755)
    own = {"PATH": f"{srun.parent}{os.pathsep}{os.environ['PATH']}", "PYTHON": sys.executable}
    cells = ("--cell=hostcb/id_tap_device/shard_map/cpu-2x1", "--cell=hostcb/call/pjit/cpu-2x1")
    launcher = suite_runs.ROOT / "ci" / "launchers" / "slurm.sh"
    ended = subprocess.run(
        [launcher, "--expectations", os.devnull, *cells], cwd=tmp_path, env=suite_runs.environment(tmp_path, **own),
        capture_output=True, text=True, timeout=suite_runs.DEADLINE, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 of 2 cells passed" in ended.stdout
    assert "the second process ended with 0" in ended.stdout
    assert (tmp_path / "second.txt").read_text() == ""


def test_the_processes_of_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(ClusterError, match="ci/launchers"):
        detected()
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911")
    for name, value in {"SIZE": "3", "RANK": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    found = detected()
    assert (found.processes, found.process, found.coordinator_address.partition(":")[0]) == (3, 2, "10.96.0.1")
    assert found.address == ("10.96.0.1", int(found.coordinator_address.partition(":")[2]) - 4096)
