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


def _abort_with_child() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    (FOLDER / "child").write_text(str(child))
    os.abort()


def _raise_in_first() -> None:
    if jax.process_index() == 0:
        raise ValueError("planted")
    signal.pause()


_programs: list[None] = []


def _lose_every_third() -> bool:
    _programs.append(None)
    return len(_programs) % 3 != 0


DIES_IN_CALL = in_call(os.abort)
DIES_AND_LEAVES_A_CHILD = in_call(_abort_with_child)
SLEEPS_IN_CALL = in_call(lambda: time.sleep(600))
KILLS_PYTEST = in_call(lambda: _kill(_pytest_process()), once=True)
# The Dask worker has started the process of the shard, which is pytest's.
KILLS_DASK = in_call(lambda: _kill(_parent_of(_pytest_process())), once=True)
BLOCKS = in_call(_block)
BLOCKS_FIRST_TIME = in_call(_block, once=True)
FAILS_FIRST_TIME = in_call(lambda: False, once=True)
DIES_IN_SECOND_PROCESS = in_call(lambda: os.abort() if jax.process_index() == 1 else None)
RAISES_IN_FIRST_PROCESS = in_call(_raise_in_first)
FAILS_EVERY_THIRD_TIME = in_call(_lose_every_third)
