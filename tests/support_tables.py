#!/usr/bin/env python3
"""The table of supported programs on docs/callbacks/index.md, which the suite's model predicts.

Each mark stands for planned cells of the CPU, so a run of the matrix checks it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))

from conformance.model.worlds import RefusalError  # noqa: E402
from conformance.planning.cells import ProgramCell, parse_cell  # noqa: E402

PAGE = PROJECT / "docs" / "callbacks" / "index.md"
COMMAND = "python tests/support_tables.py"
BEGIN, END = "<!-- support: begin -->", "<!-- support: end -->"

RUNS, REFUSED = "✓", "⊘"

CALLBACKS = {
    "`id_tap`, `id_print`": "id_tap id_tap_result id_tap_device id_tap_tree id_print",
    "`call`": "call call_no_result call_device",
    "`pure_callback`": "pure_callback",
    "the two above with `vmap_method`": "call_sequential call_expand_dims call_broadcast_all pure_callback_sequential",
    "`io_callback`": "io_callback",
    "`io_callback`, ordered": "io_callback_ordered",
    "`debug.callback`, `debug.print`": "debug_callback debug_callback_ordered debug_print debug_print_ordered",
    "`buffer_callback`, `dlpack_callback`": "buffer_callback dlpack_callback",
    "the two above with `has_side_effect` and `vmap_method`": "buffer_callback_side_effect dlpack_callback_side_effect",
}
"""The heads of the rows, and the suite's callbacks that each stands for."""

PROGRAMS = {
    "with and without `jit`": "jit eager",
    "`vmap`": "vmap",
    "`jvp`, `grad`": "jvp grad",
    "`checkpoint`, `custom_jvp`, `custom_vjp`": "remat custom_jvp custom_vjp",
    "loops, branches": "cond scan fori while_body while_cond",
    "`jit` over a mesh": "pjit",
    "`shard_map`, `pmap`": "shard_map pmap",
}
"""The heads of the columns, and the programs that each stands for."""


def cells(callback: str, program: str) -> list[ProgramCell]:
    """The cells that a mark stands for."""
    ids = [
        f"hostcb/{each}/{name}/cpu-8dev" for each in CALLBACKS[callback].split() for name in PROGRAMS[program].split()
    ]
    parsed = [parse_cell(each, any_release=True) for each in ids]
    assert all(isinstance(cell, ProgramCell) for cell in parsed)
    return parsed  # type: ignore[return-value]


def mark(callback: str, program: str) -> str:
    """What the contract has of all these cells: they run, or they are refused."""
    marks = {_mark(cell) for cell in cells(callback, program)}
    assert len(marks) == 1, f"{callback}, {program}: some of these cells run, and others are refused"
    return marks.pop()


def _mark(cell: ProgramCell) -> str:
    try:
        _ = cell.prediction
    except RefusalError:
        return REFUSED
    return RUNS


def table() -> Iterator[str]:
    yield f"| | {' | '.join(PROGRAMS)} |"
    yield f"| --- {'| :-: ' * len(PROGRAMS)}|"
    for callback in CALLBACKS:
        yield f"| {callback} | {' | '.join(mark(callback, program) for program in PROGRAMS)} |"


def with_table(text: str) -> str:
    """The text of the page, with another table between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE.name} has the marks {BEGIN} and {END}, between which the table stands")
    made = "\n".join(table())
    return f"{before}{BEGIN}\n<!-- Written by `{COMMAND}`: do not edit it. -->\n\n{made}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
