"""Implementations that trouble the processes of a run, each once or for as long as the test wants."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import jax
from implementation_fakes import InPlace

from conformance.spec.callbacks import Callback
from conformance.warm import process

FOLDER = Path(os.environ["ENGINE_FAKES"])


def _is_meant(callback: Callback, site: str) -> bool:
    return callback.name == "call" and site == "unused"


def _first_time() -> bool:
    """Whether no process of this test has asked before."""
    try:
        (FOLDER / "asked").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kill_pytest(callback: Callback, site: str) -> bool:
    if _is_meant(callback, site) and _first_time():
        os.kill(_pytest_process(), signal.SIGKILL)
        signal.pause()
    return True


def _kill_dask(callback: Callback, site: str) -> bool:
    """Kill the Dask worker: it has started the process of the shard, which is pytest's."""
    if _is_meant(callback, site) and _first_time():
        os.kill(_parent_of(_pytest_process()), signal.SIGKILL)
        signal.pause()
    return True


def _pytest_process() -> int:
    """The process that has started this one, itself or by its server of forks."""
    parent = os.getppid()
    if not process.is_fork():
        return parent
    return _parent_of(parent)


def _parent_of(number: int) -> int:
    # After the name in parentheses come the state and the parent.
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


def _block(callback: Callback, site: str) -> bool:
    if _is_meant(callback, site):
        # The test reads it, and so knows that the cell has begun.
        (FOLDER / "blocked").write_text(str(os.getpid()))
        signal.pause()
    return True


def _block_first_time(callback: Callback, site: str) -> bool:
    if _is_meant(callback, site) and _first_time():
        (FOLDER / "blocked").write_text(str(os.getpid()))
        signal.pause()
    return True


def _fail_first_time(callback: Callback, site: str) -> bool:
    return not (_is_meant(callback, site) and _first_time())


KILLS_PYTEST = InPlace(_kill_pytest)
KILLS_DASK = InPlace(_kill_dask)
BLOCKS = InPlace(_block)
BLOCKS_FIRST_TIME = InPlace(_block_first_time)
FAILS_FIRST_TIME = InPlace(_fail_first_time)


def _die_in_second_process(callback: Callback, site: str) -> bool:
    if _is_meant(callback, site) and jax.process_index() == 1:
        os.abort()
    return True


DIES_IN_SECOND_PROCESS = InPlace(_die_in_second_process)


class _LosesEveryThird:
    """Loses the callback of every third program of its process."""

    def __init__(self) -> None:
        self._programs = 0

    def __call__(self, callback: Callback, site: str) -> bool:
        self._programs += site == "unused"
        return site != "unused" or self._programs % 3 != 0


FAILS_EVERY_THIRD_TIME = InPlace(_LosesEveryThird())


def _block_in_pipe(callback: Callback, site: str) -> bool:
    if _is_meant(callback, site):
        # The test waits for the other end of the pipe, and for the end of all that hold it.
        with (FOLDER / "blocked").open("w"):
            signal.pause()
    return True


BLOCKS_IN_PIPE = InPlace(_block_in_pipe)


def _block_in_each_process(callback: Callback, site: str) -> bool:
    if _is_meant(callback, site):
        with (FOLDER / "blocked").open("w") as pipe:
            print("blocked", file=pipe, flush=True)
            signal.pause()
    return True


BLOCKS_IN_EACH_PROCESS = InPlace(_block_in_each_process)
