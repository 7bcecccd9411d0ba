"""The whole command line, for commands that plan or run cells. A command's module is imported only for that command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..reports.visible import visible
from ..spec.package import COMMAND
from ..spec.topology import WrongPlatformError
from .errors import words_of
from .helping import add_version

DESCRIPTION = "Show, cell by cell, what host callbacks do on a platform."

UNUSABLE = 2

STOP = 128
"""With this exit code `bisect-run` ends `git bisect run`, which would take the usual one for a bad commit."""

MODULES: Mapping[str, str] = {
    "run": "run",
    "list": "listing",
    "mutants": "mutants",
    "fuzz": "fuzz",
    "repro": "repro",
    "minimise": "minimise",
    "expect": "expect",
    "bisect": "bisect",
    "bisect-run": "bisect_commits:run_main",
    "releases": "releases",
    "known-bugs": "known_bugs",
    "environments": "environments",
    "never-run": "never_run",
    "soak": "soak",
}
"""The module of each command, and its function if that is not `main`."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parsed([*(sys.argv[1:] if arguments is None else arguments)])
    if options.command not in MODULES:
        from . import report

        return report.read(options)
    function = MODULES[options.command].partition(":")[2] or "main"
    return reported(getattr(_module(options.command), function), options)


def reported(run: Callable[[Any], int], options: Any) -> int:
    """Run a command with its options. An error that is the user's costs one line."""
    try:
        return run(options)
    except WrongPlatformError as error:
        # Commands that are given the ids of cells have no such option.
        cells = f"the {options.platform} cells" if hasattr(options, "platform") else "the cells"
        # Cells that are named are never taken less far than they say.
        advice = "; `--depth lower` lowers them without that hardware" if hasattr(options, "depth") else ""
        print(f"ERROR: {cells} cannot run here, and nothing was tested: {error}{advice}", file=sys.stderr)
    except BrokenPipeError:
        # The reader, for example `head`, has closed the pipe; without this, Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        # Imported here: the classes are in the modules of all commands.
        from .reasons import REASONS

        if isinstance(error, REASONS):
            # It may quote a file of somebody else.
            print(f"ERROR: {visible(str(error))}", file=sys.stderr)
        elif isinstance(error, OSError):
            # Such as a full disk. The error of a write does not name its file.
            where = "" if error.filename else ", while a file of this command was written: is its disk full?"
            print(f"ERROR: {visible(words_of(error))}{where}", file=sys.stderr)
        else:
            raise
    return UNUSABLE


def _parsed(arguments: list[str]) -> argparse.Namespace:
    command = arguments[0] if arguments else ""
    of_pytest: list[str] = []
    if command == "run" and "--" in arguments:
        place = arguments.index("--")
        arguments, of_pytest = arguments[:place], arguments[place + 1 :]
    try:
        parsed = _parser([command] if command in MODULES else [*MODULES]).parse_args(arguments)
    except SystemExit as ending:
        if command == "bisect-run" and ending.code == UNUSABLE:
            raise SystemExit(STOP) from ending
        raise
    parsed.pytest_options = of_pytest
    return parsed


def _parser(commands: Sequence[str] = tuple(MODULES)) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=DESCRIPTION)
    add_version(parser)
    subparsers = parser.add_subparsers(dest="command", required=True)
    for module in dict.fromkeys(map(_module, commands)):
        module.add_parser(subparsers)
    if len(commands) == len(MODULES):
        from . import report

        report.add_parsers(subparsers)
    return parser


def _module(command: str) -> Any:
    return importlib.import_module(f".{MODULES[command].partition(':')[0]}", __package__)
