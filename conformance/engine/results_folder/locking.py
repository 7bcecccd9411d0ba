"""One run at a time in a results folder. The system takes the lock back when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from pathlib import Path
from typing import IO, Self

from ...spec.errors import CommandError

NAME = "run.lock"


class FolderLock:
    """Holds a results folder from `acquire` to the end of the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        """Hold the folder at once if it is there: a run that is refused should not plan first."""
        if self._folder.is_dir():
            self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            # The file stays: another process may wait with it open, and would hold a file that nobody else finds.
            self._file.close()

    def acquire(self) -> None:
        """Make the folder if it is not there, and hold it; raises `CommandError`."""
        if self._file:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        # Not truncated before it is locked: it says who holds it.
        file = os.fdopen(os.open(self._folder / NAME, os.O_RDWR | os.O_CREAT, 0o666), "r+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read().strip() or "an unknown process"
            file.close()
            raise CommandError(
                f"another run writes into {self._folder}: {holder}. Wait for its end, or name another folder"
                " with --results"
            ) from None
        except OSError as error:
            print(
                f"NOTE: {self._folder} is on a file system without locks ({error.strerror}):"
                " nothing prevents two runs there at once",
                file=sys.stderr,
            )
        self._file = file
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
