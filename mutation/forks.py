"""Runs jobs in forks of this process, some at a time, and gives each result as it comes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from conformance.warm.ending import how
from conformance.worker.processes import end_with_parent

J = TypeVar("J")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that only this process removes: `TemporaryDirectory` also does at the exit of its forks."""
    folder = Path(tempfile.mkdtemp(prefix="hostcb-mutation-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class ForkEndedError(Exception):
    """A job whose process ended before its result."""


def in_forks(jobs: Iterable[J], workers: int, run: Callable[[J], Any]) -> Iterator[tuple[J, Any]]:
    """Each job with its result, which JSON can write. The next job is taken when it starts."""
    waiting = iter(jobs)
    running: dict[int, tuple[J, int]] = {}
    exhausted = False
    while True:
        while not exhausted and len(running) < workers:
            try:
                job = next(waiting)
            except StopIteration:
                exhausted = True
                break
            read, write = os.pipe()
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                _run(run, job, write)
            os.close(write)
            running[pid] = job, read
        if not running:
            return
        pid, status = os.wait()
        job, read = running.pop(pid)
        with os.fdopen(read, "rb") as pipe:
            reported = pipe.read()
        if status != 0 or not reported:
            end = how(os.waitstatus_to_exitcode(status))
            raise ForkEndedError(f"the process for {job} ended with {end}, without a result")
        yield job, json.loads(reported)


def _run(run: Callable[[J], Any], job: J, write: int) -> None:
    status = 1
    try:
        end_with_parent()
        reported = json.dumps(run(job)).encode()
        # Less than a pipe holds: the parent reads after the end of this process.
        os.write(write, reported)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)
