"""What a Dask worker does for a run: it keeps one worker process of the suite, and runs batches of cells in it.

A Dask worker imports this module, and neither JAX nor pytest. Its threads take turns, so that its cells run one by one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..expectations.entries import Expectations
from ..spec.sources import versions
from ..spec.topology import WrongPlatformError
from ..worker.processes import WorkerStartError
from .cell_runner import CellRunner, Learnt, StoppedError
from .conclusions import run_once, run_repeatedly, run_with_second_chance
from .dask_order import Order
from .tasks import Task

STOP_SECONDS = 10.0
"""A cell that is stopped ends in this time, unless its worker process is about to start: that ends a little later."""

Tell: TypeAlias = Callable[[str, str, str | None], None]
"""Tells the client of the begin or the end of a cell, with what the cell has shown."""


@dataclass(frozen=True)
class RunOrder(Order):
    """What the batches of a run have in common."""

    expectations: Expectations
    histories: bool
    repeat: int
    reruns: int
    """The number of unexpected cells that one Dask worker runs again."""


class Site:
    """One Dask worker's part in a run."""

    def __init__(self, order: RunOrder) -> None:
        self._order = order
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True)
        self._runner = CellRunner(Path(self._folder.name) / "worker.log", None, order.histories)
        self._reruns_left = order.reruns
        # A worker process ends with the thread that has started it, so that one thread starts all of them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="conformance")
        self._batches: list[Future[list[str]]] = []

    def run(self, tasks: Sequence[Task], tell: Tell) -> list[str]:
        batch = self._thread.submit(self._run, tasks, tell)
        self._batches = [*(one for one in self._batches if not one.done()), batch]
        return batch.result()

    def _run(self, tasks: Sequence[Task], tell: Tell) -> list[str]:
        messages = []
        for task in tasks:
            tell("begin", task.id, None)
            message: dict[str, Any] = {"cell": task.id}
            try:
                message["conclusion"] = self._conclusion(task)
            except WrongPlatformError as error:
                message["refusal"] = str(error)
            except WorkerStartError as error:
                message["no_start"] = str(error)
            except StoppedError:
                # In the thread that has started the processes.
                self._runner.abandon()
                raise
            # As text: a witness may quote characters that cannot be encoded.
            messages.append(json.dumps({**message, "learnt": dataclasses.asdict(self._runner.learnt())}))
            tell("end", task.id, messages[-1])
        return messages

    def _conclusion(self, task: Task) -> dict[str, Any]:
        order = self._order
        if order.repeat > 1:
            return run_repeatedly(task, self._runner, order.expectations, order.repeat).as_json()
        if not self._reruns_left:
            return run_once(task, self._runner).as_json()
        found = run_with_second_chance(task, self._runner, order.expectations)
        self._reruns_left -= found.attempts > 1
        return found.as_json()

    def close(self, stopped: bool) -> Learnt:
        """Let the worker process end; kill it if the run was `stopped`, or its client is gone."""
        if stopped:
            # The thread may be in a cell for minutes.
            self._runner.stop()
            wait(self._batches, STOP_SECONDS)
        self._thread.submit(self._runner.abandon if stopped else self._runner.finish)
        self._thread.shutdown(wait=not stopped)
        self._folder.cleanup()
        return self._runner.learnt()


_sites: dict[str, Site] = {}
_closed: set[str] = set()
"""The runs that have ended: the cluster may still hand over a batch that it was told to cancel."""
_lock = threading.Lock()


def run_batch(order: RunOrder, tasks: Sequence[Task]) -> list[str]:
    """Run cells in the Dask worker that calls this; the messages are those of a pytest process."""
    # Only a Dask worker calls this.
    from distributed import get_worker

    worker = get_worker()
    order.check(worker.address, versions(order.implementations))

    def tell(event: str, cell_id: str, message: str | None) -> None:
        # If this worker is lost, its client knows which cell was in flight, and what others have shown.
        worker.log_event(order.run, {"event": event, "cell": cell_id, "message": message})

    return _site(order).run(tasks, tell)


def _site(order: RunOrder) -> Site:
    with _lock:
        if order.run in _closed:
            raise StoppedError("the run has ended")
        for run in [run for run in _sites if run != order.run]:
            # A client that was killed has left it.
            _sites.pop(run).close(stopped=True)
        if order.run not in _sites:
            _sites[order.run] = Site(order)
        return _sites[order.run]


async def close_site(run: str, stopped: bool) -> Learnt | None:
    """End what the run has in this Dask worker."""
    with _lock:
        _closed.add(run)
        site = _sites.pop(run, None)
    # In another thread: the one of this call is the worker's only one for messages.
    return await asyncio.to_thread(site.close, stopped) if site else None
