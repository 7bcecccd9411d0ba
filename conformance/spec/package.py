"""The name under which this package is imported: `conformance` in a checkout, `hostcb_conformance` in a wheel."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

PACKAGE = __name__.removesuffix(".spec.package")

COMMAND = "python -m conformance" if PACKAGE == "conformance" else "hostcb-conformance"
"""The command that a user types in this installation."""


def command_here(command: str) -> str:
    """A command that begins with `COMMAND`, so that it works when it is pasted into the shell that started this one.

    It names this interpreter if the shell would find another one, or none.
    """
    word, _, _ = COMMAND.partition(" ")
    program = Path(sys.executable) if word == "python" else Path(sys.executable).with_name(word)
    found = shutil.which(word)
    if not command.startswith(COMMAND) or not program.exists() or (found and Path(found).parent == program.parent):
        return command
    here = Path(os.getcwd())
    named = program.relative_to(here) if program.is_relative_to(here) else program
    return shlex.quote(str(named)) + command.removeprefix(word)


def install_here(packages: str) -> str:
    """A command that installs packages for this interpreter, which has no pip if uv has made its environment."""
    program = shlex.quote(sys.executable)
    pip = f"{program} -m pip install" if importlib.util.find_spec("pip") else f"uv pip install --python {program}"
    return f"{pip} {packages}"


def module(name: str) -> str:
    """The full name of a module of this package, by which another process imports it."""
    return f"{PACKAGE}.{name}"
