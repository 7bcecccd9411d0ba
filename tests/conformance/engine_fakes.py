"""Implementations that trouble the processes of a run, each once or for as long as the test wants."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable as Function
from pathlib import Path

import jax
from implementation_fakes import InPlace

from conformance.spec.callbacks import Callback
from conformance.warm import process

FOLDER = Path(os.environ.get("ENGINE_FAKES", "."))


def in_call(trouble: Function[[], object], once: bool = False) -> InPlace:
    """`trouble` runs in the place of one callback of a cell of `call`; the callback does not run if that is False."""

    def disturb(callback: Callback, site: str) -> bool:
        if callback.name != "call" or site != "unused":
            return True
        if once:
            try:
                (FOLDER / "asked").touch(exist_ok=False)
            except FileExistsError:
                # A process of this test has had it before.
                return True
        return trouble() is not False

    return InPlace(disturb)


def _parent_of(number: int) -> int:
    # After the name in parentheses come the state and the parent.
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


def _pytest_process() -> int:
    """The process that has started this one, itself or by its server of forks."""
    parent = os.getppid()
    return _parent_of(parent) if process.is_fork() else parent


def _kill(number: int) -> None:
    os.kill(number, signal.SIGKILL)
    signal.pause()


def _block() -> None:
    # The test reads it, and so knows that the cell has begun.
    (FOLDER / "blocked").write_text(str(os.getpid()))
    signal.pause()


def _block_in_pipe() -> None:
    # The test waits for the other end of the pipe, and for the end of all that hold it.
    with (FOLDER / "blocked").open("w") as pipe:
        print("blocked", file=pipe, flush=True)
        signal.pause()


def _stop_second() -> None:
    """The second process stops, and the first one ends as JAX ends the processes that wait for a stopped one."""
    stops = FOLDER / "stops"
    if jax.process_index():
        stops.with_suffix(".new").write_text(str(os.getpid()))
        stops.with_suffix(".new").rename(stops)
        os.kill(os.getpid(), signal.SIGSTOP)
    # JAX would end the second process as well if it were not stopped yet.
    while not (stops.exists() and _is_stopped(stops.read_text())):
        time.sleep(0.01)
    os.abort()


def _is_stopped(number: str) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        # It was the process of an earlier attempt.
        return False


def _raise_in_first() -> None:
    if jax.process_index() == 0:
        raise ValueError("planted")
    signal.pause()


_programs: list[None] = []


def _lose_every_third() -> bool:
    _programs.append(None)
    return len(_programs) % 3 != 0


DIES_IN_CALL = in_call(os.abort)
SLEEPS_IN_CALL = in_call(lambda: time.sleep(600))
KILLS_PYTEST = in_call(lambda: _kill(_pytest_process()), once=True)
# The Dask worker has started the process of the shard, which is pytest's.
KILLS_DASK = in_call(lambda: _kill(_parent_of(_pytest_process())), once=True)
BLOCKS = in_call(_block)
BLOCKS_FIRST_TIME = in_call(_block, once=True)
BLOCKS_IN_PIPE = in_call(_block_in_pipe)
FAILS_FIRST_TIME = in_call(lambda: False, once=True)
DIES_IN_SECOND_PROCESS = in_call(lambda: os.abort() if jax.process_index() == 1 else None)
STOPS_IN_SECOND_PROCESS = in_call(_stop_second)
RAISES_IN_FIRST_PROCESS = in_call(_raise_in_first)
FAILS_EVERY_THIRD_TIME = in_call(_lose_every_third)
