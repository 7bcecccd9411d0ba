"""Runs cells on a Dask cluster. Dask chooses the worker of each batch, and runs it elsewhere if the worker is lost."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..expectations.entries import Expectations
from ..oracle.verdicts import Outcome, Verdict
from ..spec.sources import versions
from .conclusions import Conclusion
from .controller import Controller
from .dask_client import MOST_AGAIN, MOST_LOST, check_versions, connected, gone
from .dask_order import OtherVersionsError
from .dask_worker import RunOrder, close_site, run_batch
from .interrupts import terminated_like_interrupted
from .journal import Journal
from .tasks import Setup, Task, in_running_order

RERUNS = 20

MOST_IN_BATCH = 16
"""Cells of one kind that share a worker process, and at most so many run again if a Dask worker is lost."""

BATCHES_FOR_EACH = 4
"""So many batches for each worker, so that none waits long for the others at the end."""


def execute_on(
    address: str, setup: Setup, concluded: Callable[[str, Conclusion], None], maxfail: int = 0
) -> Controller:
    """Run every task once on the cluster of this scheduler; like `execution.execute`."""
    setup = replace(setup, tasks=tuple(in_running_order(setup.tasks)))
    controller = Controller(setup, concluded)
    controller.maxfail = maxfail
    if not setup.tasks:
        return controller
    with connected(address) as client:
        _ClusterRun(client, address, setup, controller).run()
    return controller


class _ClusterRun:
    def __init__(self, client: Any, address: str, setup: Setup, controller: Controller) -> None:
        self._client = client
        self._address = address
        self._setup = setup
        self._controller = controller
        implementations = tuple(dict.fromkeys(task.implementation for task in setup.tasks))
        self._order = RunOrder(
            f"conformance-{uuid.uuid4().hex}",
            versions(implementations),
            implementations,
            setup.expectations or Expectations(),
            setup.histories,
            setup.repeat,
            RERUNS,
        )
        self._journal = Journal(setup.journal)
        self._batches: dict[str, tuple[Task, ...]] = {}
        self._waiting: dict[str, Any] = {}
        """The futures of the batches that have not ended."""
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """What cells have shown, as soon as they have, and futures of batches that have ended."""
        self._heard: set[str] = set()
        """The cells that have shown something. They run again if the worker is lost before their batch has ended."""
        self._lock = threading.Lock()
        self._in_flight: Counter[str] = Counter()
        """How often each cell has begun and not ended: now, and whenever its worker was lost."""
        self._again: Counter[str] = Counter()
        """How often each cell was handed to the cluster again."""

    def run(self) -> None:
        unfinished = True
        try:
            with terminated_like_interrupted():
                check_versions(self._client, self._order.versions, self._order.implementations, "the cells")
                self._client.subscribe_topic(self._order.run, self._note)
                for batch in batches(self._setup.tasks, max(1, len(self._client.nthreads()))):
                    self._submit(batch)
                while self._waiting and not self._controller.stopped:
                    self._take(self._arrived.get())
                unfinished = bool(self._waiting)
        except KeyboardInterrupt:
            self._controller.interrupted = True
            self._controller.gaps.append("the run was interrupted")
        finally:
            self._close(unfinished)

    def _take(self, arrived: Any) -> None:
        if isinstance(arrived, tuple):
            self._read(*arrived)
            return
        del self._waiting[arrived.key]
        for batch in self._ended(arrived):
            self._submit(batch)

    def _note(self, event: Any) -> None:
        """Take what a worker tells of a cell. The thread of Dask's client calls this."""
        _, said = event
        with self._lock:
            self._in_flight[said["cell"]] += 1 if said["event"] == "begin" else -1
            if said["event"] == "begin":
                # A run that goes on later counts these, too. A full disk must not end this one.
                with contextlib.suppress(OSError, ValueError):
                    self._journal.write(event="begin", cell=said["cell"])
        if message := said.get("message"):
            self._arrived.put((message, self._times_lost(said["cell"])))

    def _times_lost(self, cell: str) -> int:
        with self._lock:
            return max(0, self._in_flight[cell])

    def _submit(self, tasks: Sequence[Task]) -> None:
        batch = f"cells-{self._order.run}-{len(self._batches)}"
        self._batches[batch] = tuple(tasks)
        future = self._client.submit(run_batch, self._order, tuple(tasks), key=batch, pure=False)
        self._waiting[batch] = future
        future.add_done_callback(self._arrived.put)

    def _ended(self, future: Any) -> list[Sequence[Task]]:
        """Read what a batch has found out; the batches that are to be run in its place."""
        import distributed

        tasks = self._batches[future.key]
        if future.cancelled():
            self._add_gap(gone(self._address))
            return []
        error = future.exception()
        if error is None:
            for message, task in zip(future.result(), tasks, strict=True):
                self._read(message, self._times_lost(task.id))
            return []
        if isinstance(error, distributed.KilledWorker):
            return self._lost(tasks)
        self._add_gap(str(error) if isinstance(error, OtherVersionsError) else f"a batch of cells failed: {error!r}")
        return []

    def _add_gap(self, reason: str) -> None:
        if reason not in self._controller.gaps:
            self._controller.gaps.append(reason)

    def _read(self, text: str, times_lost: int = 0) -> None:
        message = json.loads(text)
        cell = message["cell"]
        if cell in self._heard:
            return
        self._heard.add(cell)
        if conclusion := message.get("conclusion"):
            conclusion["attempts"] += times_lost
        self._controller.read(message)
        outcome = Outcome.from_json(conclusion["outcome"]) if conclusion else None
        if not outcome or not self._order.expectations.standing(cell, outcome).acceptable:
            self._controller.note_failure()

    def _lost(self, tasks: Sequence[Task]) -> list[Sequence[Task]]:
        """Blame the cells that were in flight when workers were lost, and run the others again.

        Dask gives a batch up if it has lost the workers that had it, also while another batch was in flight there.
        """
        again = []
        for task in tasks:
            if task.id in self._heard:
                continue
            times = self._times_lost(task.id)
            self._again[task.id] += 1
            if times >= MOST_LOST:
                self._conclude(task, Verdict.CRASH, times, f"{times} Dask workers were lost while they ran it")
            elif self._again[task.id] >= MOST_AGAIN:
                self._conclude(task, Verdict.MISSING, times, "too many Dask workers were lost before it could run")
            else:
                again.append(task)
        return [[task] for task in again]

    def _conclude(self, task: Task, verdict: Verdict, attempts: int, reason: str) -> None:
        conclusion = Conclusion(Outcome(verdict, reason=reason), attempts)
        learnt = {"run_info": {}, "exit_problems": [], "process_starts": 0}
        self._read(json.dumps({"cell": task.id, "conclusion": conclusion.as_json(), "learnt": learnt}))

    def _close(self, unfinished: bool) -> None:
        # The results are here. A cluster that is gone by now must not cost them.
        with contextlib.suppress(Exception):
            if unfinished:
                self._client.cancel([*self._waiting.values()], force=True)
            found = self._client.run(close_site, self._order.run, unfinished, on_error="ignore")
            for learnt in filter(None, found.values()):
                self._controller.note(learnt)
        with contextlib.suppress(Exception):
            self._client.unsubscribe_topic(self._order.run)
        self._journal.close()


def batches(tasks: Iterable[Task], workers: int) -> list[list[Task]]:
    """Isolated cells alone, and other cells with some of their kind."""
    ordered = [*tasks]
    most = max(1, min(MOST_IN_BATCH, len(ordered) // (BATCHES_FOR_EACH * workers)))
    made: list[list[Task]] = []
    for task in ordered:
        last = made[-1] if made else []
        if last and not task.isolated and not last[0].isolated and last[0].kind == task.kind and len(last) < most:
            last.append(task)
        else:
            made.append([task])
    return made
