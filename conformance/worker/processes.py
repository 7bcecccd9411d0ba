"""The interpreter and the environment of worker processes, how long they may take, and their end with their parent.

This imports no JAX.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..spec.errors import CommandError
from ..spec.topology import Topology
from ..spec.xla_flags import QUICK_COMPILATION

TRIAL = "try"
"""The command that asks whether the platform has the callback of a case, and does not run the case."""

START_DEADLINE = 120.0
EXIT_DEADLINE = 20.0
STACK_DUMP_SECONDS = 1.0
LATEST_SECONDS = 0.5
"""A missing callback that still runs in this time after the barriers counts as late."""


@dataclass(frozen=True)
class OtherPython:
    """The interpreter of another environment, which has another JAX than this process."""

    executable: Path
    jaxlib: str
    """The version there: it decides which flags XLA knows."""
    path: tuple[Path, ...]
    """The folders in which it finds the suite and hostcb."""

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        # The interpreter of this process may have been started with these; they are wrong for another one.
        environment = {name: value for name, value in inherited.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
        # The user's own folders stay, because implementations outside the suite are found there.
        folders = [*map(str, self.path), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
        return environment


class WorkerStartError(CommandError):
    """A worker ended before its first report."""


def worker_environment(
    topology: Topology,
    extra_xla_flags: Sequence[str],
    inherited: Mapping[str, str],
    quick: Sequence[str] = QUICK_COMPILATION,
    jaxlib: str | None = None,
) -> dict[str, str]:
    environment = topology.environment(inherited, quick, jaxlib)
    flags = (environment.get("XLA_FLAGS", ""), *extra_xla_flags)
    environment["XLA_FLAGS"] = " ".join(flags).strip()
    # Several workers share a device: no worker may take all its memory at its start.
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return environment


def end_with_parent() -> None:
    """End this process with its parent, if the system can: what a killed run has started must not outlive it."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
