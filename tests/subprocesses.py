"""Run a program in a process of its own, where a crash, a hang or an exit costs one test and not the run."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sessions

import hostcb

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(hostcb.__file__).parent.parent

IMPORTING_TESTS = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, PROGRAMS.parent, PROGRAMS.parent / "contract")))}
"""The environment of a program that uses functions of the tests of the contract, and what these share."""

PRELUDE = """\
import functools, gc, json, logging, os, sys, threading, time, traceback, weakref
import numpy as np
import hostcb as hcb
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
"""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a program ended."""

    returncode: int | None
    stdout: str
    stderr: str

    def __str__(self) -> str:
        how = "still running at its deadline" if self.returncode is None else f"exit status {self.returncode}"
        return f"{how}\n--- stdout\n{shortened(self.stdout)}\n--- stderr\n{shortened(self.stderr)}"

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    def json(self) -> Any:
        """What the last line of the program's standard output says."""
        self.check()
        return json.loads(self.lines[-1])

    def check(self) -> Ended:
        """Fail unless the program came to its end, and well."""
        __tracebackhide__ = True
        assert self.returncode == 0, f"the program should end by itself with exit status 0, but: {self}"
        return self


def shortened(text: str, lines: int = 60, width: int = 600) -> str:
    """The last lines, none of them very long, without the runtime's own stack frames."""
    kept = [line[:width] for line in text.splitlines() if not line.lstrip().startswith("@ ")]
    return "\n".join(kept[-lines:])


def run_program(
    program: str,
    *arguments: str,
    devices: int | None = 8,
    env: Mapping[str, str] | None = None,
    timeout: float = 240.0,
    warnings: str = "default",
    prelude: str = PRELUDE,
) -> Ended:
    """Run a file of `tests/programs` (a name ending in .py) or a source text that starts after `prelude`.

    The environment is as a user's: what the library itself has set for this process is not passed on. XLA compiles as
    in this session. Nothing goes through a proxy, which gRPC would use for localhost, too.
    """
    left_out = ("PJRT_NPROC", "NPROC", "XLA_FLAGS")
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in left_out and not name.lower().endswith("_proxy")
    }
    variables |= {"JAX_PLATFORMS": "cpu", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), variables.get("PYTHONPATH")]))
    forced = [] if devices is None else [f"--xla_force_host_platform_device_count={devices}"]
    variables["XLA_FLAGS"] = " ".join([*forced, *sessions.XLA_FLAGS])
    variables |= env or {}
    target = [str(PROGRAMS / program)] if program.endswith(".py") else ["-c", prelude + program]
    command = [sys.executable, "-W", warnings, *target, *arguments]
    process = subprocess.Popen(
        command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # The fault handler writes the stacks of all threads when it is aborted: what hangs, and where.
        process.send_signal(signal.SIGABRT)
        try:
            stdout, stderr = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
        return Ended(None, stdout, stderr)
    return Ended(process.returncode, stdout, stderr)
