"""Files that name the cells of a run: one id a line, and comments that begin with #.

A file has all cells of its plan, also those that the release lacks on which it was written: so one file is right for
every release.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path

from ..spec.errors import CommandError
from ..spec.package import COMMAND
from .cells import Cell, Plan, UnknownCellError, parse_cell


def plan_text(plan: Plan, options: str) -> str:
    """The file of a plan that these options have selected."""
    # Options may hold ends of lines, which would end the comment.
    count = len(plan.cells)
    heading = (
        f"{count} cell{'s' * (count != 1)}, for `{COMMAND} run --cell @FILE`",
        f"{COMMAND} list --plan {' '.join(options.split())}",
        f"written with JAX {importlib.metadata.version('jax')}",
    )
    return "".join([*(f"# {line}\n" for line in heading), *(f"{cell.id}\n" for cell in plan.cells)])


def read_cells(words: Iterable[str], any_release: bool = False) -> tuple[Cell, ...]:
    """The cells that ids, and files after an @, name, in their order. The installed release may lack some of a file.

    With `any_release` it may also lack those that ids name.
    """
    cells: dict[str, Cell] = {}
    for word in words:
        of_file = word.startswith("@")
        found = read_plan(Path(word[1:])) if of_file else (parse_cell(word, any_release),)
        cells |= {cell.id: cell for cell in found}
    return tuple(cells.values())


def read_plan(path: Path) -> tuple[Cell, ...]:
    """The cells that a file names, in its order. The installed release may lack some of them."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is no plan: {error}") from error
    cells: dict[str, Cell] = {}
    for number, line in enumerate(lines, 1):
        if cell_id := line.partition("#")[0].strip():
            try:
                cells.setdefault(cell_id, parse_cell(cell_id, any_release=True))
            except UnknownCellError as error:
                raise CommandError(f"{path}, line {number}: {error}") from error
    if not cells:
        raise CommandError(f"{path} names no cell: `{COMMAND} list --plan` prints a plan")
    return tuple(cells.values())
