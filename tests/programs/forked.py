"""Runs programs in forks of one process that has imported JAX, since that import takes longer than most of them.

Standard input has a JSON list of {"path", "deadline", "tries"}; a program runs again, at most `tries` times, while it
ends with 0. Standard output has a JSON list of pairs: the exit status, which is negative for a signal and null for a
program that was killed at its deadline, and what the program wrote. A program may set the environment of its devices,
which no fork has started yet, and its interpreter ends as any other.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import sys
import tempfile
from typing import IO, Any

Ended = tuple[int | None, str]


def start(path: str) -> tuple[int, int, IO[bytes]]:
    """The id of the process, a pipe that is readable once it has ended, and what it writes."""
    alive, held = os.pipe()
    written = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the process has ended
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.close(held)
        return process, alive, written
    os.dup2(written.fileno(), 1)
    os.dup2(written.fileno(), 2)
    raise Child(path)


class Child(BaseException):
    """Leaves everything that the first process was doing; the new one has a program of its own to run."""


def run(path: str, deadline: float) -> Ended:
    process, alive, written = start(path)
    ready, _, _ = select.select([alive], [], [], deadline)
    if not ready:
        os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(alive)
    with written:
        written.seek(0)
        text = written.read().decode(errors="replace")
    return (status if ready else None), text


def run_until(task: dict[str, Any]) -> Ended:
    ended: Ended = (None, "")
    for _ in range(task["tries"]):
        ended = run(task["path"], task["deadline"])
        if ended[0] != 0:
            break
    return ended


def main() -> None:
    tasks = json.load(sys.stdin)
    print(json.dumps([run_until(task) for task in tasks]))


if __name__ == "__main__":
    import jax.numpy  # noqa: F401

    program = None
    try:
        main()
    except Child as child:
        (program,) = child.args
    if program:
        runpy.run_path(program, run_name="__main__")
