"""What a Dask worker does for a command: it runs pieces of work, each in a process, one after the other.

A Dask worker imports this module, and neither JAX nor pytest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..spec.sources import versions
from .cell_runner import StoppedError

STOP_SECONDS = 10.0
"""A piece that is asked to end may clean up for so long."""

TURN_SECONDS = 0.5
"""How often a piece that waits for its turn looks whether anybody still wants it."""

JAX = ("jax", "jaxlib")


class OtherVersionsError(Exception):
    """A Dask worker has another JAX, or another version of the suite, than the client."""


class PieceError(Exception):
    """A piece of work whose process failed."""


@dataclass(frozen=True)
class Order:
    """What the pieces of one command have in common."""

    run: str
    """A name that no other command has; also that of the topic of its events."""
    versions: Mapping[str, str]
    implementations: tuple[str, ...]
    ignored: tuple[str, ...]
    """The packages whose versions may differ."""


Generator = Callable[..., Iterable[Any]]
"""A function of a module, which can be pickled by name; it yields what JSON can hold."""

_turn = threading.Lock()
_stopped: set[str] = set()
_processes: dict[str, subprocess.Popen[bytes]] = {}
"""The process of each command in this Dask worker."""


def run_piece(order: Order, piece: str, function: Generator, arguments: tuple[Any, ...]) -> list[str]:
    """The lines of a piece of work, which are also reported one by one as they come."""
    # Only a Dask worker calls this.
    from distributed import get_worker

    worker = get_worker()
    found = found_versions(order.implementations, order.ignored)
    if found != order.versions:
        raise OtherVersionsError(described(worker.address, order.versions, found))

    def tell(event: str, **more: Any) -> None:
        worker.log_event(order.run, {"event": event, "piece": piece, **more})

    lines = []
    with _in_turn(order.run):
        tell("begin")
        for number, line in enumerate(_lines(order.run, worker.address, pickle.dumps((function, arguments)))):
            lines.append(line)
            tell("line", number=number, line=line)
    return lines


def found_versions(implementations: Iterable[str], ignored: Iterable[str]) -> dict[str, str]:
    return {name: version for name, version in versions(implementations).items() if name not in ignored}


def described(address: str, expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """How the versions of a Dask worker differ, in words."""
    names = [name for name in dict.fromkeys((*expected, *found)) if expected.get(name) != found.get(name)]
    words = ", ".join(f"{name} is {found.get(name)} there and {expected.get(name)} here" for name in names)
    return f"the Dask worker {address} has other versions: {words}"


@contextlib.contextmanager
def _in_turn(run: str) -> Iterator[None]:
    """Pieces take turns, so that no other one takes time from the deadlines of cells."""
    while not _turn.acquire(timeout=TURN_SECONDS):
        _go_on(run)
    try:
        _go_on(run)
        yield
    finally:
        _turn.release()


def _go_on(run: str) -> None:
    if run in _stopped:
        raise StoppedError("nobody waits for this any more")


def _lines(run: str, address: str, work: bytes) -> Iterator[str]:
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
        given.write(work)
        given.seek(0)
        # Where the Dask worker finds the suite, this process does, too.
        path = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.dask_piece"],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        _processes[run] = process
        try:
            # It may have been stopped just before.
            _go_on(run)
            assert process.stdout is not None
            for line in process.stdout:
                _go_on(run)
                yield line.decode("ascii")
            process.wait()
        finally:
            del _processes[run]
            end(process)
        _go_on(run)
        if process.returncode:
            errors.seek(0)
            last = (errors.read().decode(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1]
            raise PieceError(f"the Dask worker {address}: the process ended with {process.returncode}: {last}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process with what it has started, so that it can clean up."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def stop_pieces(run: str) -> None:
    """End what a command has in this Dask worker."""
    _stopped.add(run)
    if process := _processes.get(run):
        await asyncio.to_thread(end, process)
