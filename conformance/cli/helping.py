"""The help of a command: a description, examples, the defaults of its options, and its exit codes.

And the options that several commands have.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.options import positive
from ..spec.package import COMMAND
from ..spec.suite import version_text

EXAMPLES = "examples:"
CODES = "exit codes:"


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of examples and exit codes, and adds the default to an option's help."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        # A help that names the default says more than the value, and a switch is off.
        if not text or not action.option_strings or not action.default or "default" in text or action.nargs == 0:
            return text
        default = action.default
        shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
        return f"{text} (default: {shown})".replace("%", "%%")


class _Version(argparse.Action):
    """Prints versions, which it looks up only when it is asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(version_text())
        parser.exit()


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions of the suite and of JAX")


def add_command(
    commands: Any, name: str, description: str, examples: Sequence[str], codes: Mapping[int, str], more: str = ""
) -> argparse.ArgumentParser:
    """Add a command; `examples` are its arguments, `more` follows the exit codes."""
    width = max(len(str(code)) for code in codes)
    lines = [
        EXAMPLES,
        *(f"  {COMMAND} {name} {example}".rstrip() for example in examples),
        "",
        CODES,
        *(f"  {code:<{width}}  {meaning}" for code, meaning in codes.items()),
    ]
    return commands.add_parser(
        name, description=description, epilog="\n".join([*lines, *([more] if more else [])]), formatter_class=Formatter
    )


CELLS = "cells whose id matches this, as for pytest: 'id_tap and not (vmap or pmap)'"


def add_patterns(add: Any, what: str = CELLS) -> None:
    """Add `-k`, which selects cells, or what else has a name."""
    add("-k", dest="patterns", action="append", default=[], metavar="EXPR", help=f"only {what}; may be repeated")


def add_implementations(add: Any, what: str) -> None:
    add("--implementation", dest="implementations", action="append", default=[], metavar="NAME", help=what)


def add_results(add: Any) -> None:
    add("results", type=Path, metavar="DIR", help="what `run --results` was given")


def add_deadline(add: Any, seconds: float = 60.0, what: str = "for each cell") -> None:
    add("--deadline", type=positive(float), default=seconds, metavar="SECONDS", help=what)
