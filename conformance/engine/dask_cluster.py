"""Runs cells on a Dask cluster. Dask chooses the worker of each batch, and runs it elsewhere if the worker is lost."""

from __future__ import annotations

import contextlib
import sys
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
from .dask_worker import Order, OtherVersionsError, close_site, described, run_batch
from .interrupts import terminated_like_interrupted
from .journal import Journal
from .tasks import Setup, Task, in_running_order
from .tools import DaskClusterError

CONNECT_SECONDS = 20
RERUNS = 20

MOST_IN_BATCH = 16
"""Cells of one kind that share a worker process, and at most so many run again if a Dask worker is lost."""

MOST_LOST = 3
"""A cell with which this many Dask workers were lost is a crash."""

MOST_AGAIN = 10
"""A cell that was handed over this often is left, whatever it is that ends the workers."""

BATCHES_FOR_EACH = 4
"""So many batches for each worker, so that none waits long for the others at the end."""


def execute_on(address: str, setup: Setup, concluded: Callable[[str, Conclusion], None]) -> Controller:
    """Run every task once on the cluster of this scheduler; like `execution.execute`."""
    import distributed

    setup = replace(setup, tasks=tuple(in_running_order(setup.tasks)))
    controller = Controller(setup, concluded)
    if not setup.tasks:
        return controller
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise DaskClusterError(f"--scheduler: no Dask scheduler answers at {address}: {error}") from error
    with client:
        _ClusterRun(client, setup, controller).run()
    return controller


class _ClusterRun:
    def __init__(self, client: Any, setup: Setup, controller: Controller) -> None:
        self._client = client
        self._setup = setup
        self._controller = controller
        implementations = tuple(dict.fromkeys(task.implementation for task in setup.tasks))
        self._order = Order(
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
        self._lock = threading.Lock()
        self._in_flight: Counter[str] = Counter()
        """How often each cell has begun and not ended: now, and whenever its worker was lost."""
        self._again: Counter[str] = Counter()
        """How often each cell was handed to the cluster again."""

    def run(self) -> None:
        import distributed

        try:
            self._check_versions()
        except DaskClusterError:
            self._journal.close()
            raise
        self._client.subscribe_topic(self._order.run, self._note)
        interrupted = True
        try:
            with terminated_like_interrupted():
                workers = max(1, len(self._client.nthreads()))
                futures = distributed.as_completed(
                    [self._submit(batch) for batch in batches(self._setup.tasks, workers)], loop=self._client.loop
                )
                for future in futures:
                    futures.update(self._submit(batch) for batch in self._ended(future))
                interrupted = False
        except KeyboardInterrupt:
            self._controller.interrupted = True
            self._controller.gaps.append("the run was interrupted")
        finally:
            self._close(interrupted)

    def _check_versions(self) -> None:
        found = self._client.run(versions, self._order.implementations, on_error="return")
        if not found:
            print("NOTE: the cluster has no worker yet; the cells wait for one", file=sys.stderr)
        for address, there in found.items():
            if isinstance(there, BaseException):
                raise DaskClusterError(f"the Dask worker {address} cannot run cells: {there!r}")
            if there != self._order.versions:
                raise DaskClusterError(described(address, self._order.versions, there))

    def _note(self, event: Any) -> None:
        _, said = event
        with self._lock:
            self._in_flight[said["cell"]] += 1 if said["event"] == "begin" else -1
            if said["event"] == "begin":
                # A run that goes on later counts these, too. A full disk must not end this one.
                with contextlib.suppress(OSError, ValueError):
                    self._journal.write(event="begin", cell=said["cell"])

    def _times_lost(self, cell: str) -> int:
        with self._lock:
            return max(0, self._in_flight[cell])

    def _submit(self, tasks: Sequence[Task]) -> Any:
        batch = f"cells-{self._order.run}-{len(self._batches)}"
        self._batches[batch] = tuple(tasks)
        return self._client.submit(run_batch, self._order, tuple(tasks), key=batch, pure=False)

    def _ended(self, future: Any) -> list[Sequence[Task]]:
        """Read what a batch has found out; the batches that are to be run in its place."""
        import distributed

        tasks = self._batches[future.key]
        error = future.exception()
        if error is None:
            for message in future.result():
                self._read(message)
            return []
        if isinstance(error, distributed.KilledWorker):
            return self._lost(tasks)
        reason = str(error) if isinstance(error, OtherVersionsError) else f"a batch of cells failed: {error!r}"
        if reason not in self._controller.gaps:
            self._controller.gaps.append(reason)
        return []

    def _read(self, message: dict[str, Any]) -> None:
        if conclusion := message.get("conclusion"):
            conclusion["attempts"] += self._times_lost(message["cell"])
        self._controller.read(message)

    def _lost(self, tasks: Sequence[Task]) -> list[Sequence[Task]]:
        """Blame the cells that were in flight when workers were lost, and run the others again.

        Dask gives a batch up if it has lost the workers that had it, also while another batch was in flight there.
        """
        again = []
        for task in tasks:
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
        self._controller.read({"cell": task.id, "conclusion": conclusion.as_json(), "learnt": learnt})

    def _close(self, interrupted: bool) -> None:
        if interrupted:
            self._client.cancel([*self._batches], force=True)
        # The results are here. A cluster that is gone by now must not cost them.
        with contextlib.suppress(Exception):
            found = self._client.run(close_site, self._order.run, interrupted, on_error="ignore")
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
