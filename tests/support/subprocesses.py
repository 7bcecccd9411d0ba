"""Run a program in a process of its own, where a crash, a hang or an exit costs one test and not the run."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import hostcb
from conformance.warm import ending
from conformance.warm import process as warm
from conformance.warm.environment import fixed
from support import sessions

PROGRAMS = Path(__file__).parents[1] / "programs"
ROOT = Path(hostcb.__file__).parent.parent

PATH = (ROOT, PROGRAMS.parent, PROGRAMS.parent / "contract")
"""A program finds hostcb, what the tests share, and the tests of the contract."""

IMPORTED = (
    *(*warm.PRELOADED, "support.program_in_fork"),
    *("jax.experimental.buffer_callback", "jax.experimental.layout"),
    *("jax.extend", "jax.extend.mlir.dialects.stablehlo"),
)
"""What programs and hostcb import. hostcb itself is not among them, since it would know that it was forked."""

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
    fresh: bool = False,
) -> Ended:
    """Run a file of `tests/programs` (a name ending in .py) or a source text that starts after `prelude`.

    The program runs in a fork of a process that has imported JAX and NumPy. It runs in a fresh interpreter if its
    environment has a variable that Python or JAX reads before, and with `fresh`: for what depends on the imports, on
    Python's start, or on the order in which exit functions were registered.

    The environment is as a user's: what the library itself has set for this process is not passed on. XLA compiles as
    in this session. Nothing goes through a proxy, which gRPC would use for localhost, too.
    """
    left_out = ("PJRT_NPROC", "NPROC", "XLA_FLAGS")
    usual = {
        name: value
        for name, value in os.environ.items()
        if name not in left_out and not name.lower().endswith("_proxy")
    }
    usual |= {"JAX_PLATFORMS": "cpu", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    usual["PYTHONPATH"] = os.pathsep.join(filter(None, [*map(str, PATH), usual.get("PYTHONPATH")]))
    forced = [] if devices is None else [f"--xla_force_host_platform_device_count={devices}"]
    usual["XLA_FLAGS"] = " ".join([*forced, *sessions.XLA_FLAGS])
    variables = {**usual, **(env or {})}
    target = [str(PROGRAMS / program)] if program.endswith(".py") else ["-c", prelude + program]

    def start(output: IO[bytes], errors: IO[bytes]) -> ending.Process:
        streams = (subprocess.DEVNULL, output, errors)
        # A server for one program would take as long as a fresh interpreter.
        if not fresh and ":" not in warnings and fixed(variables) == fixed(usual):
            words = [warnings, *target, *arguments]
            if forked := warm.fork("support.program_in_fork", words, variables, IMPORTED, streams):
                return forked
        command = [sys.executable, "-W", warnings, *target, *arguments]
        return ending.Child(command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)

    ran = ending.run(start, timeout)
    return Ended(ran.status, ran.output, ran.errors)
