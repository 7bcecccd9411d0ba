"""Implementations that trouble the processes of a run, each once or for as long as the test wants."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable as Function
from pathlib import Path

import jax
from implementation_fakes import InPlace

from conformance.spec.callbacks import Callback
from conformance.warm import process

FOLDER = Path(os.environ["ENGINE_FAKES"])


def in_call(trouble: Function[[], bool], once: bool = False) -> InPlace:
    """`trouble` runs in the place of one callback of a cell of `call`, and says whether the callback still runs."""

    def disturb(callback: Callback, site: str) -> bool:
        if callback.name != "call" or site != "unused":
            return True
        if once:
            try:
                (FOLDER / "asked").touch(exist_ok=False)
            except FileExistsError:
                # A process of this test has had it before.
                return True
        return trouble()

    return InPlace(disturb)


def _parent_of(number: int) -> int:
    # After the name in parentheses come the state and the parent.
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


def _pytest_process() -> int:
    """The process that has started this one, itself or by its server of forks."""
    parent = os.getppid()
    return _parent_of(parent) if process.is_fork() else parent


def _kill(number: int) -> bool:
    os.kill(number, signal.SIGKILL)
    signal.pause()
    return True


def _block() -> bool:
    # The test reads it, and so knows that the cell has begun.
    (FOLDER / "blocked").write_text(str(os.getpid()))
    signal.pause()
    return True


def _block_in_pipe() -> bool:
    # The test waits for the other end of the pipe, and for the end of all that hold it.
    with (FOLDER / "blocked").open("w") as pipe:
        print("blocked", file=pipe, flush=True)
        signal.pause()
    return True


def _die_in_second_process() -> bool:
    if jax.process_index() == 1:
        os.abort()
    return True


_programs: list[None] = []


def _lose_every_third() -> bool:
    _programs.append(None)
    return len(_programs) % 3 != 0


KILLS_PYTEST = in_call(lambda: _kill(_pytest_process()), once=True)
# The Dask worker has started the process of the shard, which is pytest's.
KILLS_DASK = in_call(lambda: _kill(_parent_of(_pytest_process())), once=True)
BLOCKS = in_call(_block)
BLOCKS_FIRST_TIME = in_call(_block, once=True)
BLOCKS_IN_PIPE = in_call(_block_in_pipe)
FAILS_FIRST_TIME = in_call(lambda: False, once=True)
DIES_IN_SECOND_PROCESS = in_call(_die_in_second_process)
FAILS_EVERY_THIRD_TIME = in_call(_lose_every_third)
