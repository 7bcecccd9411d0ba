"""What a worker process does with its cells, alone or as one of several; `process_group` commands it.

It reads commands from its standard input, as JSON lines. One of several reports after each program what it saw, and the
first process judges what all of them saw.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TextIO

import jax

from ..cases.harness.running import try_callback_of
from ..implementations import Implementation
from ..model.worlds import RefusalError
from ..oracle.history import Recorder
from ..oracle.observations import Observation, Wanted, judge_together, merged
from ..oracle.verdicts import Outcome, Verdict
from ..planning.cells import CaseCell, Cell, NotInReleaseError, ProgramCell, UnknownCellError, parse_cell
from ..spec.platforms import platform_named
from ..spec.topology import Topology
from .cells import run_cell
from .execution import Judgement, observed
from .processes import TRIAL

START_SECONDS = 100
HEARTBEAT_SECONDS = 10
"""After this time without a sign of life of one process, JAX ends the others."""
SHUTDOWN_SECONDS = 10


def join(topology: Topology, coordinator: str, process: int, first_device: int | None = None) -> None:
    """Make this process one of the topology's processes."""
    own: list[int] | None = None
    if "gpu" in platform_named(topology.platform).devices:
        # Each process of a machine has its own part of the machine's devices.
        first = process * topology.local_device_count if first_device is None else first_device
        own = [*range(first, first + topology.local_device_count)]
    jax.distributed.initialize(
        coordinator,
        num_processes=topology.processes,
        process_id=process,
        local_device_ids=own,
        initialization_timeout=START_SECONDS,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_SECONDS,
    )


def serve(reports: TextIO, devices: Sequence[jax.Device], implementation: Implementation) -> None:
    worker = Worker(devices, implementation)

    def report(**line: Any) -> None:
        reports.write(json.dumps(line) + "\n")

    for text in sys.stdin:
        command = json.loads(text)
        cell_id = command["cell"]
        try:
            if command["do"] in ("run", TRIAL):
                cell = parse_cell(cell_id)
                report(event="begin", cell=cell_id, ends=cell.case.ends if isinstance(cell, CaseCell) else ())
                answer = worker.run(cell, trial=command["do"] == TRIAL)
            elif command["do"] == "look again":
                answer = worker.look_again()
            else:
                seen = [Observation.from_json(one) for one in command["observations"]]
                answer = worker.judge(parse_cell(cell_id), seen)
        except NotInReleaseError as error:
            # The cell was planned for another release than this worker's.
            answer = _outcome(Outcome(Verdict.UNSUPPORTED, None, error.reason, anomaly="not applicable"))
        except Exception:
            answer = _outcome(Outcome(Verdict.HARNESS_ERROR, None, traceback.format_exc(limit=-4)))
        report(event="end", cell=cell_id, **answer)


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {"outcome": outcome.as_json()}


class Worker:
    """The last cell of this process."""

    def __init__(self, devices: Sequence[jax.Device], implementation: Implementation) -> None:
        self._devices = devices
        self._implementation = implementation
        self.recorder = Recorder({device.id: index for index, device in enumerate(devices)})
        self._seen = Observation(jax.process_index())

    def run(self, cell: Cell, trial: bool = False) -> dict[str, Any]:
        """A trial of a callback is in place of an isolated case."""
        here = self._implementation, self.recorder, self._devices
        if trial:
            assert isinstance(cell, CaseCell)
            return _outcome(try_callback_of(cell.case, self._implementation, self._devices))
        if isinstance(cell, CaseCell) or not cell.topology.in_several_processes:
            return _outcome(run_cell(cell, *here))
        if not isinstance(cell, ProgramCell):
            raise UnknownCellError(f"{cell.id} has no meaning in several processes")
        started = time.perf_counter()
        self._seen, _ = observed(cell, *here)
        return {"observation": self._seen.as_json(), "seconds": time.perf_counter() - started}

    def look_again(self) -> dict[str, Any]:
        """The observation of the last cell with callbacks that have run since."""
        self._seen = replace(self._seen, history=self.recorder.history())
        return {"observation": self._seen.as_json(), "seconds": 0.0}

    def judge(self, cell: Cell, observations: Sequence[Observation]) -> dict[str, Any]:
        """The outcome of a program, from what all processes saw of it."""
        assert isinstance(cell, ProgramCell)
        try:
            predictions = [cell.prediction_in(process) for process in range(cell.topology.processes)]
        except RefusalError:
            predictions = []
        wanted = [Wanted(prediction.events, prediction.results) for prediction in predictions]
        verdict, anomalies = judge_together(wanted, observations, cell.topology.platform, cell.callback.ordered)
        outcome = Judgement(verdict, anomalies, merged(observations)).outcome(0.0)
        return {**_outcome(outcome), "lost": any(anomaly.kind == "lost" for anomaly in anomalies)}
