"""Hands pieces of work to a Dask cluster. Dask chooses the worker of each, and another one if that is lost."""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from .cell_runner import StoppedError
from .dask_pieces import (
    JAX,
    Generator,
    Order,
    OtherVersionsError,
    PieceError,
    described,
    found_versions,
    run_piece,
    stop_pieces,
)
from .requirements import DaskClusterError

CONNECT_SECONDS = 20

MOST_LOST = 3
"""What this many Dask workers were lost with is not tried again."""

MOST_AGAIN = 10
"""What was handed over this often is left, whatever it is that ends the workers."""

STOPPED = "stopped"


class Work:
    """A cluster for the pieces of one command. With the end of the block, no piece of it goes on."""

    def __init__(self, address: str, implementations: Sequence[str], what: str, ignored: Sequence[str] = JAX) -> None:
        """`implementations` are those that the pieces use, `what` names the pieces in words.

        The packages in `ignored` may have other versions in the workers: by default JAX, which pieces bring themselves.
        """
        self._address = address
        self._what = what
        names = tuple(dict.fromkeys(implementations))
        here = found_versions(names, ignored)
        self._order = Order(f"conformance-{uuid.uuid4().hex}", here, names, tuple(ignored))
        self._inboxes: dict[str, queue.SimpleQueue[Any]] = {}
        self._futures: dict[str, Any] = {}
        """Of the pieces that have not ended."""
        self._stopped = False

    def __enter__(self) -> Self:
        import distributed

        try:
            self._client = distributed.Client(self._address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise DaskClusterError(f"--scheduler: no Dask scheduler answers at {self._address}: {error}") from error
        try:
            self._check_workers()
            self._client.subscribe_topic(self._order.run, self._note)
        except BaseException:
            self._client.close()
            raise
        return self

    def _check_workers(self) -> None:
        order = self._order
        found = self._client.run(found_versions, order.implementations, order.ignored, on_error="return")
        if not found:
            print(f"NOTE: the cluster has no worker yet; {self._what} wait for one", file=sys.stderr)
        for address, there in found.items():
            if isinstance(there, BaseException):
                raise DaskClusterError(f"the Dask worker {address} cannot run cells: {there!r}")
            if there != order.versions:
                raise DaskClusterError(described(address, order.versions, there))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._client.close()

    @property
    def workers(self) -> int:
        """How many workers the cluster has now, at least one."""
        return max(1, len(self._client.nthreads()))

    def stop(self) -> None:
        """End all pieces: those who wait for one get `StoppedError`."""
        if self._stopped:
            return
        self._stopped = True
        for inbox in [*self._inboxes.values()]:
            inbox.put(STOPPED)
        # A cluster that is gone by now must not cost what has come.
        with contextlib.suppress(Exception):
            self._client.cancel([*self._futures.values()], force=True)
            self._client.run(stop_pieces, self._order.run, on_error="ignore")
            self._client.unsubscribe_topic(self._order.run)

    def ask(self, function: Generator, *arguments: Any) -> Iterator[Any]:
        """What the function yields on a worker, as soon as it does. Several threads may ask at once.

        Raises `PieceError` if the piece fails, or if its workers are lost again and again.
        """
        import distributed

        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        begun = seen = 0
        for _ in range(MOST_AGAIN):
            future = self._submit(inbox, function, arguments)
            while not hasattr(arrived := inbox.get(), "key"):
                if arrived == STOPPED:
                    raise StoppedError("the command was stopped")
                begun += arrived["event"] == "begin"
                # After the loss of a worker, the piece begins again.
                if arrived["event"] == "line" and arrived["number"] == seen:
                    seen += 1
                    yield json.loads(arrived["line"])
            del self._futures[future.key]
            if future.cancelled():
                raise DaskClusterError(f"the Dask scheduler at {self._address} is gone")
            error = future.exception()
            if error is None:
                # The lines that came twice, or never.
                yield from map(json.loads, future.result()[seen:])
                return
            if isinstance(error, OtherVersionsError | PieceError):
                raise PieceError(str(error))
            if not isinstance(error, distributed.KilledWorker):
                raise PieceError(f"a piece of work failed on the Dask cluster: {error!r}")
            if begun >= MOST_LOST:
                raise PieceError(f"{begun} Dask workers were lost while they ran it")
        raise PieceError("too many Dask workers were lost before it could run")

    def _submit(self, inbox: queue.SimpleQueue[Any], function: Generator, arguments: tuple[Any, ...]) -> Any:
        piece = f"piece-{uuid.uuid4().hex}"
        self._inboxes[piece] = inbox
        if self._stopped:
            raise StoppedError("the command was stopped")
        future = self._client.submit(run_piece, self._order, piece, function, arguments, key=piece, pure=False)
        self._futures[piece] = future
        future.add_done_callback(inbox.put)
        return future

    def _note(self, event: Any) -> None:
        """Take what a worker reports. The thread of Dask's client calls this."""
        _, said = event
        if inbox := self._inboxes.get(said["piece"]):
            inbox.put(said)
