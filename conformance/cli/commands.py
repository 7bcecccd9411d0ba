"""The whole command line. A command's module is imported only if the command is named.

So the commands that read results need no JAX. The others import what needs it in their `main`: `-h` needs none.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..reports.visible import in_a_line
from ..spec.errors import CommandError, words_of
from ..spec.package import COMMAND, install_here
from ..spec.platform_targets import TARGETS
from ..spec.topology import WrongPlatformError
from .helping import add_version

DESCRIPTION = "Show, cell by cell, what host callbacks do on a platform."

UNUSABLE = 2
INTERRUPTED = 130

COMMANDS: Mapping[str, str] = {
    "run": "run cells and judge them",
    "list": "list the cells there are",
    "report": "make a report of what a run has written",
    "diff": "what differs from one run to another, or among several",
    "merge": "join the results of shards",
    "expect": "print the entries of known failures that a run asks for",
    "bundle": "put a run's results, and all that it takes to judge them again, into one file",
    "verify": "check a bundle, judge its results again, and say which profiles they earn",
    "repro": "print a program that runs one cell alone",
    "minimise": "make a failing cell smaller, as long as it fails in the same way",
    "bisect": "find the release or the commit that changed a cell",
    "releases": "run cells with several releases of JAX, and show what changed when",
    "mutants": "break hostcb on purpose, and see that cells notice",
    "soak": "run programs with callbacks for a long time, and check each callback",
}

_OF_JAX = {"jax", "jaxlib", "numpy", "ml_dtypes"}
"""Modules that are there where JAX is installed."""


def script() -> int:
    """The entry point of `python -m` and of the console script."""
    # `python -m` finds modules in the current folder, so a console script finds implementations there as well.
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())
    return main(sys.argv[1:])


def main(arguments: Sequence[str]) -> int:
    try:
        options = parsed(arguments)
        return reported(module_of(options.command).main, options)
    except KeyboardInterrupt:
        # A command that has something to report catches it.
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name not in _OF_JAX:
            raise
        print(
            f"ERROR: this command needs {error.name}, which this Python does not have:"
            f" `{install_here('jax pytest pytest-xdist')}`",
            file=sys.stderr,
        )
        return UNUSABLE


def reported(run: Callable[[Any], int], options: Any) -> int:
    """Run a command with its options. An error that is the user's is one line."""
    try:
        return run(options)
    except WrongPlatformError as error:
        # Only for these does the suite know how programs must look. No CPU is absent.
        lowered = hasattr(options, "depth") and options.platform in {*TARGETS} - {"cpu"}
        advice = "; `--depth lower` lowers them without that hardware" * lowered
        print(f"ERROR: the cells cannot run here, and nothing was tested: {error}{advice}", file=sys.stderr)
    except CommandError as error:
        # It may quote a file of somebody else.
        print(f"ERROR: {in_a_line(str(error))}", file=sys.stderr)
    except BrokenPipeError:
        # The reader, for example `head`, has closed the pipe; without this, Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # Such as a full disk. The error of a write does not name its file.
        where = "" if error.filename else ", while a file of this command was written: is its disk full?"
        print(f"ERROR: {in_a_line(words_of(error))}{where}", file=sys.stderr)
    return UNUSABLE


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    name = next((word for word in arguments if word in COMMANDS), None)
    own, of_pytest = [*arguments], list[str]()
    if name == "run" and "--" in own:
        place = own.index("--")
        own, of_pytest = own[:place], own[place + 1 :]
    options = parser_for(name).parse_args(own)
    options.pytest_options = of_pytest
    return options


def parser_for(name: str | None) -> argparse.ArgumentParser:
    """The parser of all commands, in which the one with this name has its options."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=DESCRIPTION)
    add_version(parser)
    commands = parser.add_subparsers(dest="command", required=True)
    for each, summary in COMMANDS.items():
        if each == name:
            module_of(each).add_parser(commands)
        else:
            commands.add_parser(each, help=summary)
    return parser


def module_of(name: str) -> Any:
    return importlib.import_module(f".{name.replace('-', '_')}", __package__)
