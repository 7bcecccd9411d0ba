"""Implementations without any machinery, for tests of the suite itself: what disturbs them, and the processes of a run.

They run callbacks in plain Python while an `eager` program is traced, and do to it what the test wants done.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

from conformance.model.transforms import Probe
from conformance.oracle.history import Recorder
from conformance.spec.callbacks import RETURNED_OFFSET, Callback
from conformance.spec.data import PLAIN, DataKind
from conformance.warm import process

FOLDER = Path(os.environ.get("ENGINE_FAKES", "."))

Disturbance: TypeAlias = Callable[[Callback, str], bool]
"""Does to a callback what the test wants done; says whether the callback runs at all."""


class InPlace:
    """Runs every callback at once, in the tracing thread."""

    name = "in_place"
    callback_exception: type[Exception] = RuntimeError
    tap = call = NotImplemented

    def __init__(self, disturb: Disturbance = lambda callback, site: True) -> None:
        self._disturb = disturb

    def probe(
        self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device], data: DataKind = PLAIN
    ) -> Probe:
        def probe(site: str, value: Any) -> Any:
            if self._disturb(callback, site):
                with recorder.callback(site, np.asarray(value)):
                    pass
            return value + np.float32(RETURNED_OFFSET) if callback.returns_new_value else value

        return probe

    def barrier(self) -> None: ...


_seen: set[str] = set()


def _fail_after_another(callback: Callback, site: str) -> bool:
    _seen.add(callback.name)
    return not (callback.name == "call" and len(_seen) > 1)


GOOD = InPlace()
LOSES_A_CALLBACK = InPlace(lambda callback, site: site != "unused")
FAILS_AFTER_ANOTHER = InPlace(_fail_after_another)


# What troubles the processes of a run, once or for as long as the test wants.


def in_call(trouble: Callable[[], object], once: bool = False) -> InPlace:
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


def _stop_or_die() -> None:
    # Each waits for the other one at the two ends of a pipe.
    with open(FOLDER / "stops", "rb" if jax.process_index() else "wb"):
        pass
    os.kill(os.getpid(), signal.SIGABRT if jax.process_index() else signal.SIGSTOP)


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
FIRST_PROCESS_STOPS = in_call(_stop_or_die)
FAILS_EVERY_THIRD_TIME = in_call(_lose_every_third)
