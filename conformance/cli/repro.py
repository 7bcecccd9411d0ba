"""One cell alone: a command line, and a program that you can read, change and attach to a report."""

from __future__ import annotations

import argparse
import inspect
import json
import shlex
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from ..engine.options import add_platform
from ..spec.depths import Depth
from ..spec.errors import CommandError
from ..spec.package import COMMAND, PACKAGE
from ..spec.platforms import FILES, platform_named
from ..worker.processes import worker_environment
from .helping import add_command

if TYPE_CHECKING:
    from ..planning.cells import Cell

DEADLINE = 60.0

_PROGRAM = Template('''\
# $command
"""The cell $cell_id $where: its history and its verdict.
$claim
It needs JAX and the package $package, which is $found.
The command above runs the cell as the suite does: in a worker process, and compared with what is known of it.
"""

import json
import os
import sys

$environment
# As with the command above, modules are found in the current folder, too; what this starts finds what this finds.
sys.path.append(os.getcwd())
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))

$imports
from $package.oracle.verdicts import Verdict

$run
for event in history:
    print(json.dumps(event))
print($quoted_id + f": {outcome.label}" + (f" at {outcome.stage.value}" if outcome.stage else ""))
if outcome.reason:
    print(outcome.reason)
sys.exit(outcome.verdict is not Verdict.PASS)
''')

_HERE = Template("""\
# A cell that crashes or hangs ends this process too, with the stacks of its threads in place of a verdict.
faulthandler.enable()
faulthandler.dump_traceback_later($deadline, exit=True)
# The stage of a failure is read off the stack, JAX's own frames included.
jax.config.update("jax_traceback_filtering", "off")

cell = parse_cell($quoted_id)
# Before the devices exist: an implementation may have settings for them.
implementation = load(cell.implementation)
devices = devices_of(cell.topology)

recorder = Recorder({device.id: index for index, device in enumerate(devices)})
outcome = $run
faulthandler.cancel_dump_traceback_later()
history = [event.as_json() for event in recorder.history().events]
""")

_IN_PROCESSES = Template("""\
topology, _ = parse_topology($topology)
log = Path.cwd() / "cell.log"
processes = start_group(topology, $implementation, log, $flags, quick=())
outcome = processes.run($quoted_id, $deadline)
if not processes.buried:
    processes.finish()
history = outcome.history
print(f"the standard error of each process: {log.stem}.process-*{log.suffix}")
""")


def command_line(cell: Cell) -> str:
    return f"{COMMAND} run{platform_named(cell.topology.platform).option} --cell {shlex.quote(cell.id)}"


def program(cell: Cell) -> str:
    from ..planning.cells import CaseCell

    # The environment of a worker on a machine without settings of its own.
    flags = cell.case.xla_flags if isinstance(cell, CaseCell) else ()
    deadline = cell.case.deadline if isinstance(cell, CaseCell) else None
    file = platform_named(cell.topology.platform).file
    described = {FILES: str(file)} if file else {}
    claim = (inspect.getdoc(cell.case.run) or "") if isinstance(cell, CaseCell) else ""
    values = {
        "quoted_id": json.dumps(cell.id),
        "claim": f"\n{claim}\n" if claim else "",
        "deadline": str(deadline or DEADLINE),
        "flags": repr(flags),
    }
    if cell.topology.processes > 1 and cell.topology.depth is Depth.RUN:
        where = f"in {cell.topology.processes} processes, which this program starts"
        environment = f"os.environ.update({json.dumps(described)})" if described else ""
        imports = [
            "from pathlib import Path\n",
            "spec.topology import parse_topology",
            "worker.process_group import start_group",
        ]
        topology, implementation = json.dumps(cell.topology.name), json.dumps(cell.implementation)
        run = _IN_PROCESSES.substitute(values, topology=topology, implementation=implementation)
    else:
        where, (run_import, call) = "in this process alone", _run(cell)
        variables = json.dumps(worker_environment(cell.topology, flags, {}, quick=()) | described, indent=4)
        environment = "# Before JAX is imported: it makes its devices once, and for one platform.\n"
        environment += f"os.environ.update({variables})"
        imports = [
            "import faulthandler\n",
            "import jax\n",
            "implementations import load",
            "oracle.history import Recorder",
        ]
        imports += ["planning.cells import parse_cell", "worker.devices import devices_of", run_import]
        run = _HERE.substitute(values, run=call)
    return _PROGRAM.substitute(
        values,
        package=PACKAGE,
        found="in the folder of a checkout: start it in that folder"
        if PACKAGE == "conformance"
        else "in the suite's wheel",
        command=command_line(cell),
        cell_id=cell.id,
        where=where,
        environment=environment,
        imports="\n".join(each if each.endswith("\n") else f"from {PACKAGE}.{each}" for each in imports),
        run=run,
    )


def _run(cell: Cell) -> tuple[str, str]:
    """The import of the function that runs this kind of cell, and its call."""
    from ..planning.cells import CaseCell, TableCell

    if isinstance(cell, CaseCell):
        # A case checks while it runs, and records no history to show.
        return "cases.harness.running import run_case", "run_case(cell.case, implementation, devices)"
    if cell.topology.depth is not Depth.RUN:
        return "worker.aot import take_cell", "take_cell(cell, implementation, recorder, devices)"
    name = "run_table_cell" if isinstance(cell, TableCell) else "run_cell"
    return f"worker.execution import {name}", f"{name}(cell, implementation, recorder, devices)"


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
