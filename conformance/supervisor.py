"""Runs cells in worker processes and survives whatever they do to those."""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from conformance.cells import Cell, FaultCell
from conformance.processes import WorkerProcess
from conformance.topology import Topology
from conformance.verdicts import Outcome, Stage, Verdict

COMPANY = 5
"""How many of its predecessors a cell is reported with: enough to try it in company again."""


@dataclass(frozen=True)
class Finished:
    cell: Cell
    outcome: Outcome
    company: tuple[str, ...] = ()
    """The last cells that ran before it in the same process."""


class Journal:
    """What was begun and what came of it, line by line, on disk before anything can go wrong."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("w", buffering=1)

    def write(self, **line: Any) -> None:
        with self._lock:
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.close()


_Kind: TypeAlias = tuple[str | None, Topology]
"""What a worker is made for: an implementation and a topology."""


def _kind(owner: Cell | WorkerProcess) -> _Kind:
    return owner.implementation, owner.topology


class _Backlog:
    """Cells waiting to be run; a worker gets those it can run as long as there are any."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[_Kind, deque[Cell]] = {}
        self._isolated: deque[Cell] = deque()
        for cell in cells:
            if cell.isolated:
                self._isolated.append(cell)
            else:
                self._waiting.setdefault(_kind(cell), deque()).append(cell)

    def take_isolated(self) -> Cell | None:
        with self._lock:
            return self._isolated.popleft() if self._isolated else None

    def take(self, kind: _Kind | None) -> Cell | None:
        with self._lock:
            if kind is not None and (own := self._waiting.get(kind)):
                return own.popleft()
            # The fullest queue: two workers so begin on different topologies.
            longest = max(self._waiting.values(), key=len, default=None)
            return longest.popleft() if longest else None


@dataclass
class Supervisor:
    """A pool of worker processes, one cell in flight in each."""

    logs: Path
    journal: Journal
    deadline: float
    workers: int
    run_info: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the workers said of themselves, by topology."""
    exit_problems: list[str] = field(default_factory=list)
    """Workers that ran all their cells and then could not end."""

    def run(self, cells: Sequence[Cell], alone: bool, report: Callable[[Finished], None]) -> None:
        """Run every cell once; `alone` gives each a process of its own.

        Raises what a worker raises when it cannot start: then nothing was learnt of any cell.
        """
        backlog = _Backlog(cells)
        finished: queue.Queue[Finished | BaseException | None] = queue.Queue()
        stop = threading.Event()

        def work(number: int) -> None:
            try:
                self._work(number, backlog, alone, stop, finished.put)
            except BaseException as error:
                finished.put(error)
            finally:
                finished.put(None)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(self.workers)]
        for thread in threads:
            thread.start()
        failure: BaseException | None = None
        running = len(threads)
        try:
            while running:
                item = finished.get()
                if item is None:
                    running -= 1
                elif isinstance(item, Finished):
                    report(item)
                else:
                    failure = failure or item
                    stop.set()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        if failure is not None:
            raise failure

    def _work(
        self,
        number: int,
        backlog: _Backlog,
        alone: bool,
        stop: threading.Event,
        report: Callable[[Finished], None],
    ) -> None:
        worker: WorkerProcess | None = None
        company: list[str] = []
        while not stop.is_set():
            cell = backlog.take(_kind(worker) if worker else None)
            if cell is None:
                break
            if worker and (not worker.alive or _kind(worker) != _kind(cell)):
                self._finish(worker)
                worker = None
            if worker is None:
                worker, company = self._start(cell, number), []
            outcome = self._observe(worker, cell)
            report(Finished(cell, outcome, tuple(company[-COMPANY:])))
            company.append(cell.id)
            if alone or not worker.alive:
                self._finish(worker)
                worker = None
        if worker:
            self._finish(worker)
        while not stop.is_set() and (isolated := backlog.take_isolated()):
            report(Finished(isolated, self._run_isolated(isolated, number)))

    def _start(self, cell: Cell, number: int) -> WorkerProcess:
        flags = cell.fault.xla_flags if isinstance(cell, FaultCell) else ()
        log = self.logs / f"worker-{number}.log"
        worker = WorkerProcess(cell.topology, cell.implementation, log, flags)
        self.run_info.setdefault(cell.topology.name, worker.run_info)
        return worker

    def _observe(self, worker: WorkerProcess, cell: Cell) -> Outcome:
        self.journal.write(event="begin", cell=cell.id)
        own = cell.fault.deadline if isinstance(cell, FaultCell) else None
        outcome = worker.run(cell.id, self.deadline if own is None else min(own, self.deadline))
        self.journal.write(event="end", cell=cell.id, outcome=outcome.as_json())
        return outcome

    def _finish(self, worker: WorkerProcess) -> None:
        if not worker.alive:
            return
        outcome = worker.finish()
        if outcome.verdict is not Verdict.PASS:
            self.exit_problems.append(f"{worker.topology.name}: {outcome.label}: {outcome.reason}")

    def _run_isolated(self, cell: Cell, number: int) -> Outcome:
        """A cell in its own process, whose end is part of the outcome."""
        worker = self._start(cell, number)
        outcome = self._observe(worker, cell)
        if not worker.alive:
            return outcome
        ending = worker.finish()
        if ending.verdict is Verdict.PASS or outcome.verdict is not Verdict.PASS:
            return outcome
        return Outcome(ending.verdict, Stage.EXIT, ending.reason, outcome.seconds, signal=ending.signal)
