"""Cells of several processes: what is expected in each, the one verdict, how they end, and jobs of a cluster."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import suite_runs
from results_fakes import ENTRY
from suite_runs import Patch

from conformance.engine.machines.job_hosts import ClusterError, detected
from conformance.model.worlds import Need
from conformance.oracle.checkers import Anomaly
from conformance.oracle.history import Event, History
from conformance.oracle.observations import Observation, Wanted, judge_together, merged
from conformance.oracle.verdicts import Stage, Verdict
from conformance.planning.cells import CaseCell, ProgramCell, UnknownCellError, parse_cell
from conformance.planning.processes import USUAL, plan_over_processes
from conformance.spec.topology import Topology
from conformance.worker import process_group

pytestmark = pytest.mark.contract("C35")


def test_what_is_planned() -> None:
    for implementation in ("hostcb", "jax"):
        plan = plan_over_processes([implementation], [USUAL])
        programs = {cell.program.name for cell in plan.cells if isinstance(cell, ProgramCell)}
        assert programs >= {"pjit", "shard_map", "pmap", "jit", "pjit.scan", "shard_map.while_body", "pjit.vmap"}
        assert any(isinstance(cell, CaseCell) for cell in plan.cells)
        assert all(one.reason for one in plan.ineligible)
    for name in ("jit/cpu-2x2+last", "pjit.pmap/cpu-2x2", "case.tap_raises.jit/cpu-2x2"):
        with pytest.raises(UnknownCellError, match=r"leaves out devices|its own process|in one process"):
            parse_cell(f"hostcb/id_tap/{name}")


# The verdict.


def seen_in(cell: Any) -> list[Observation]:
    """What the processes see when all is right; each callback takes a nanosecond."""

    def seen(process: int) -> Observation:
        prediction = cell.prediction_in(process)
        needed = [event for event in prediction.events if event.need is not Need.ANY_NUMBER]
        told = cell.callback.receives_device
        events = []
        for number, one in enumerate(needed):
            device, times = one.device if told else None, {"begin": 2 * number, "end": 2 * number + 1}
            event = Event(number, one.site, one.leaves, one.leaves, one.transforms, device, process=process, **times)
            events.append(event)
        results = [[np.float32(result)] * 2 for result in prediction.results]
        return Observation(process, History(tuple(events), LATEST), results)

    return [seen(process) for process in range(cell.topology.processes)]


def verdict_on(cell: Any, seen: Sequence[Observation]) -> tuple[Verdict, list[Anomaly]]:
    """As it is when the observations have travelled to the process that judges."""
    sent = [Observation.from_json(one.as_json()) for one in seen]
    predictions = [cell.prediction_in(process) for process in range(cell.topology.processes)]
    wanted = [Wanted(prediction.events, prediction.results) for prediction in predictions]
    return judge_together(wanted, sent, "cpu", cell.callback.ordered)


LATEST = 10**12
CELL: Any = parse_cell("hostcb/id_tap_device/shard_map/cpu-2x2")
FIRST, SECOND = seen_in(CELL)
(A, B, *REST), STRAY = SECOND.history.events, FIRST.history.events[0]


def having(*events: Event, barrier: int = LATEST) -> Observation:
    return replace(SECOND, history=History(events, barrier))


def with_result(part: int) -> Observation:
    """A result of the second process is another one."""
    parts = [list(parts) for parts in SECOND.results]
    parts[0][part] = np.float32(-1)
    return replace(SECOND, results=parts)


ERROR = Observation(1, verdict=Verdict.FAIL, anomalies=(Anomaly("error", Stage.DISPATCH, "it failed"),))


def test_each_process_has_the_callbacks_of_its_own_devices_and_right_observations_pass() -> None:
    for name, devices in {
        "id_tap/jit/cpu-2x2": [{0}, {2}],
        "id_tap/pjit/cpu-2x2": [{0}, set()],
        "id_tap_device_index/pjit/cpu-2x2": [set(), {3}],
        "debug_callback_partitioned/grad.pjit/cpu-2x2": [{0, 1}, {2, 3}],
        "call/pmap+int8-matrix-dict/cpu-2x2": [{0, 1}, {2, 3}],
        "id_tap_device/shard_map/cpu-2x2": [{0, 1}, {2, 3}],
    }.items():
        cell: Any = parse_cell(f"hostcb/{name}")
        found = [{event.device for event in cell.prediction_in(process).events} for process in range(2)]
        assert found == devices
        assert verdict_on(cell, seen_in(cell)) == (Verdict.PASS, [])
    assert verdict_on(CELL, [Observation(0, refused=True), Observation(1, refused=True)]) == (Verdict.PASS, [])

    def history(**begins: int) -> History:
        return History(tuple(Event(0, site, (), begin=begin) for site, begin in begins.items()))

    # A thread may be held up between its place in the history and its look at the clock.
    events = merged([Observation(0, history(a=5, b=4, c=9)), Observation(1, history(x=4, y=7))]).events
    assert [(one.site, one.sequence) for one in events] == [("x", 0), ("a", 1), ("b", 2), ("y", 3), ("c", 4)]


@pytest.mark.parametrize(
    ("second", "kind", "words"),
    [
        (having(B, *REST), "lost", "cpu:2 in process 1 never ran #1"),
        (having(A, B, *REST, A), "duplicate", "once too often in process 1"),
        (having(replace(A, device=0), B, *REST), "wrong device", "expected cpu:2 in process 1"),
        (having(B, A, *REST), "order", "cpu:2 in process 1 ran #2"),
        (having(replace(A, end=10 * LATEST), B, *REST), "overlap", "cpu:2 in process 1"),
        (having(A, B, *REST, STRAY), "wrong process", "process 1 ran first"),
        (having(A, B, *REST, barrier=0), "early barrier", "process 1: "),
        (with_result(0), "result", "run 0 in process 1 gave"),
        (with_result(1), "result", "the devices in process 1 have different results"),
        (ERROR, "error", "process 1: it failed"),
        (Observation(1, refused=True), "not refused", "ran in process 0, and must be refused"),
    ],
)
def test_what_is_wrong_in_one_process_is_found_there(second: Observation, kind: str, words: str) -> None:
    verdict, anomalies = verdict_on(CELL, [FIRST, second])
    assert (verdict, anomalies[0].kind) == (Verdict.FAIL, kind)
    assert words in anomalies[0].witness


# Their end.

ENDS: dict[str, tuple[str, str]] = {
    "DIES_IN_SECOND_PROCESS": ("crash(SIGABRT)", "process 1 ended with SIGABRT.*process 0:.*Fatal Python error"),
    "RAISES_IN_FIRST_PROCESS": ("hang", "no answer of process 1.*process 0 said ValueError: planted.*_raise_in_first"),
    "FIRST_PROCESS_STOPS": ("hang", "process 0 is stopped: .*process 1 ended with SIGABRT"),
}


def test_the_end_of_one_process_ends_all_and_costs_one_cell(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(process_group, "ONE_SIDED", 0.5)
    os.mkfifo(tmp_path / "stops")
    # A known failure runs once.
    known = {f"suite_fakes:{fake}/call/eager/cpu-2x1": end for fake, end in ENDS.items()}
    entries = (ENTRY.format(cell).replace('"fail"', f'"{label}"') for cell, (label, _) in known.items())
    (tmp_path / "known.toml").write_text("".join(entries).replace('stage = "callback"\n', ""))
    after = "suite_fakes:DIES_IN_SECOND_PROCESS/id_print/eager/cpu-2x1"
    named = ("--deadline=100", *(f"--cell={cell}" for cell in (*known, after)))
    assert suite_runs.run_here(tmp_path, monkeypatch, f"--expectations={tmp_path / 'known.toml'}", *named) == 0
    found = {cell["id"]: cell for cell in suite_runs.report_in(tmp_path / "results")["cells"]}
    assert found[after]["verdict"] == "pass"
    for cell, (label, words) in known.items():
        assert (found[cell]["verdict"], found[cell]["seconds"] < 60.0) == (label, True)
        assert re.search(words, found[cell]["witness"], re.DOTALL), found[cell]["witness"]


def test_what_a_process_has_started_ends_with_it(tmp_path: Path, monkeypatch: Patch) -> None:
    """That keeps the pipe of the reports open, which does not hide the end of the process."""
    monkeypatch.setenv("ENGINE_FAKES", str(tmp_path))
    implementation = "suite_fakes:DIES_AND_LEAVES_A_CHILD"
    group = process_group.start_group(Topology("cpu", 1), implementation, tmp_path / "worker.log")
    assert group.run(f"{implementation}/call/eager/cpu-1dev", 5.0).label == "crash(SIGABRT)"
    with contextlib.suppress(ProcessLookupError):
        assert suite_runs.ended(os.pidfd_open(int((tmp_path / "child").read_text())))


FAKE_SRUN = """\
#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
export SLURM_JOB_ID={job} SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_LOCALID=0
SLURM_PROCID=1 "$@" > second.txt 2>&1 &
SLURM_PROCID=0 "$@"; first=$?
wait $!; echo "the second process ended with $?"
exit $first
"""


def test_the_processes_of_open_mpi(monkeypatch: Patch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(ClusterError):
        detected()
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911")
    for name, value in {"SIZE": "3", "RANK": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    found = detected()
    host, _, port = found.coordinator_address.partition(":")
    assert (found.processes, found.process, host) == (3, 2, "10.96.0.1")
    assert found.address == (host, int(port) - 4096)


@pytest.mark.thorough
def test_the_tasks_of_a_slurm_job_run_cells_together(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text(FAKE_SRUN.format(job=os.getpid()))
    (tmp_path / "srun").chmod(0o755)
    own = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHON": sys.executable}
    cells = ("--cell=hostcb/id_tap_device/shard_map/cpu-2x1", "--cell=hostcb/call/pjit/cpu-2x1")
    launcher = suite_runs.ROOT / "ci" / "launchers" / "slurm.sh"
    ended = suite_runs.ran(tmp_path, launcher, "--expectations", os.devnull, *cells, **own)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 of 2 cells passed" in ended.stdout
    assert "the second process ended with 0" in ended.stdout
    assert (tmp_path / "second.txt").read_text() == ""
