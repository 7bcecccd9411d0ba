"""The pool of a campaign: cells and tests.

The cells are all cases, the table, and programs of every callback, transform, platform and process.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from conformance.engine.run import task_of
from conformance.engine.tasks import Task
from conformance.expectations.entries import EXPECTATIONS, load_expectations
from conformance.planning.cells import Cell, ProgramCell, UnknownCellError, parse_cell
from conformance.planning.depths import at_depth
from conformance.planning.processes import USUAL, plan_over_processes
from conformance.planning.selection import plan_of, smoke, undrawn_plan_of
from conformance.spec.depths import Depth

from .overlay import PROJECT

LOWERED = ("cuda", "tpu", "rocm", "oneapi")
"""The platforms whose transports no program of a CPU has: programs are lowered for them, and judged."""

DRAWN = 240
"""Programs of a CPU beside those of the smoke run."""

LOWERED_OF_EACH = 40
OF_PROCESSES = 24
DEADLINE = 60.0

FOLDERS = ("tests/unit", "tests/contract")
OWN = "test_mutation"
"""What the files of this package's own tests begin with: they run campaigns."""


@dataclass(frozen=True)
class Test:
    """A test, as a campaign sees a cell."""

    id: str
    """As pytest writes it: `tests/unit/test_aliases.py::test_name[parameters]`."""
    kind = ("tests",)
    isolated = False
    in_several_processes = False


Check: TypeAlias = Task | Test
"""What may kill a mutant."""


def cells_of_pool(jax_version: str, seed: int = 0) -> list[Task]:
    """The same cells for the same seed, without those that the platform's known failures are about."""
    draw = random.Random(seed)
    plan = plan_of(["hostcb"], "cpu", (1, 2, 4, 8))
    cells: dict[str, Cell] = {cell.id: cell for cell in smoke(plan).cells}
    cells |= {cell.id: cell for cell in plan.cells if not isinstance(cell, ProgramCell)}
    programs = [cell for cell in plan.cells if isinstance(cell, ProgramCell) and cell.id not in cells]
    cells |= {cell.id: cell for cell in _drawn(programs, DRAWN, draw)}
    processes = plan_over_processes(["hostcb"], [USUAL]).on_this_release().cells
    cells |= {cell.id: cell for cell in _drawn(processes, OF_PROCESSES, draw)}
    for platform in LOWERED:
        lowered = at_depth(undrawn_plan_of(["hostcb"], platform, (1, 4)).on_this_release(), Depth.LOWER).cells
        cells |= {cell.id: cell for cell in _drawn(lowered, LOWERED_OF_EACH, draw)}
    known = load_expectations(EXPECTATIONS / "cpu.toml").applicable(jax_version)
    return [task_of(cell, DEADLINE) for cell in cells.values() if known.of(cell.id) is None]


def files_of_pool() -> list[str]:
    """The files whose tests are in the pool."""
    paths = [path for folder in FOLDERS for path in sorted((PROJECT / folder).glob("test_*.py"))]
    return [path.relative_to(PROJECT).as_posix() for path in paths if not path.name.startswith(OWN)]


def is_test(killer: str) -> bool:
    """Whether this is the id of a test: that of a cell begins with its implementation."""
    return killer.startswith("tests/")


def named(ids: Iterable[str]) -> dict[str, Check]:
    """The cells and tests with these ids; UnknownCellError for one that there is not."""
    found: dict[str, Check] = {}
    for each in ids:
        if is_test(each) and not exists(each):
            raise UnknownCellError(f"{each!r} is no test: expected an id like tests/unit/test_blocks.py::test_sizes")
        found[each] = Test(each) if is_test(each) else task_of(parse_cell(each), DEADLINE)
    return found


def exists(killer: str) -> bool:
    """Whether there is such a test, or the suite has this cell and this release of JAX can run it."""
    if is_test(killer):
        file, _, function = killer.partition("[")[0].rpartition("::")
        return function in _functions(file.partition("::")[0])
    try:
        parse_cell(killer)
    except UnknownCellError:
        return False
    return True


@functools.cache
def _functions(file: str) -> frozenset[str]:
    """The names of the functions that a file of tests defines; none if there is no such file."""
    path = PROJECT / file
    return frozenset(re.findall(r"^ *def (\w+)\(", path.read_text(), re.MULTILINE) if path.is_file() else ())


def _drawn(cells: Sequence[Cell], count: int, draw: random.Random) -> list[Cell]:
    """As many, of each callback about as many as of any other."""
    by_callback: dict[str, list[Cell]] = {}
    for cell in cells:
        by_callback.setdefault(cell.callback_name, []).append(cell)
    for each in by_callback.values():
        draw.shuffle(each)
    found: list[Cell] = []
    while len(found) < count and any(by_callback.values()):
        found += [each.pop() for each in by_callback.values() if each]
    return found[:count]
