"""One cell alone: a command line, and a program."""

from __future__ import annotations

import argparse
import inspect
import json
import shlex
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from ..engine.options import add_platform
from ..spec.errors import CommandError
from ..spec.package import COMMAND, PACKAGE
from ..spec.platforms import FILES, platform_named
from ..worker.processes import worker_environment
from .helping import add_command

if TYPE_CHECKING:
    from ..planning.cells import Cell

_PROGRAM = Template('''\
# $command
"""The cell $cell_id: its history and its verdict.
$claim
It needs JAX and the package $package: start it in the folder of a checkout, or install the suite.
The command above runs the cell in a worker process, and compares it with what is known of it.
"""

import os
import sys

# Before JAX is imported: it makes its devices once, and for one platform.
os.environ.update($environment)
# As with the command above, modules are found in the current folder, too; what this starts finds what this finds.
sys.path.append(os.getcwd())
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))

from $package.worker.alone import run_alone

run_alone($quoted_id)
''')


def command_line(cell: Cell) -> str:
    return f"{COMMAND} run{platform_named(cell.topology.platform).option} --cell {shlex.quote(cell.id)}"


def program(cell: Cell) -> str:
    from ..planning.cells import CaseCell

    file = platform_named(cell.topology.platform).file
    environment = {FILES: str(file)} if file else {}
    if not cell.topology.in_several_processes:
        flags = cell.case.xla_flags if isinstance(cell, CaseCell) else ()
        # The environment of a worker on a machine without settings of its own.
        environment |= worker_environment(cell.topology, flags, {}, quick=())
    claim = (inspect.getdoc(cell.case.run) or "") if isinstance(cell, CaseCell) else ""
    return _PROGRAM.substitute(
        package=PACKAGE,
        command=command_line(cell),
        cell_id=cell.id,
        quoted_id=json.dumps(cell.id),
        claim=f"\n{claim}\n" if claim else "",
        environment=json.dumps(environment, indent=4),
    )


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "repro",
        "Print a program that runs one cell and judges it as a run does, or with --standalone one for a bug report.",
        ["hostcb/call/scan/cpu-1dev", "jax/io_callback_ordered/scan/cpu-1dev --standalone --program bug.py"],
        {0: "the program was printed or written", 2: "bad input, or no standalone program of this cell"},
    )
    parser.add_argument("cell_id", metavar="CELL", help="a cell's id")
    add_platform(parser.add_argument)
    parser.add_argument(
        "--standalone",
        action="store_true",
        help="a program without this project, for a bug report: JAX and NumPy alone",
    )
    parser.add_argument(
        "--program",
        type=Path,
        metavar="FILE",
        help="where to write the program; the command line alone is printed then",
    )


def main(options: argparse.Namespace) -> int:
    from ..engine.preparation import cell_named
    from ..standalone.programs import NotStandaloneError, standalone_program

    cell = cell_named(options)
    try:
        text = standalone_program(cell) if options.standalone else program(cell)
    except NotStandaloneError as error:
        raise CommandError(
            f"{cell.id} has no program without the suite: {error}; leave out --standalone for one that imports it"
        ) from error
    if options.program:
        options.program.write_text(text)
        print(command_line(cell))
    else:
        # Its first line, a comment, is the command line: what is printed is a program as it is.
        print(text, end="")
    return 0
