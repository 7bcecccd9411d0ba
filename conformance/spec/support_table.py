"""The guide's table of what each external callback supports, entry by entry.

This module holds only the list: every entry has an answer, and programs that show it. The suite judges
these programs as in any other cell. An entry also fails if it claims more than the promises.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableEntry:
    row: str
    column: str
    supported: bool
    callback: str
    programs: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"table.{self.column}"


RETURNS, GUARANTEED = "returns", "guaranteed"
"""The columns about the behaviour of a program; the other columns say only whether JAX accepts a program."""

_PROGRAMS = {
    RETURNS: ("jit",),
    "jit": ("jit",),
    "vmap": ("vmap", "jit.vmap"),
    "grad": ("grad", "jit.grad"),
    "scan_and_while": ("scan", "while_body", "while_cond", "jit.scan"),
    GUARANTEED: ("jit", "jit.cond"),
}

_SUPPORTED = {
    "pure_callback": (RETURNS, "jit", "vmap", "scan_and_while"),
    "io_callback": (RETURNS, "jit", "vmap", "scan_and_while", GUARANTEED),
    "debug_callback": ("jit", "vmap", "grad", "scan_and_while"),
}

_UNDER_VMAP = {"pure_callback": "pure_callback_sequential"}
"""The table's check mark for vmap holds only if the user passes a `vmap_method`."""

_FOOTNOTES = (
    TableEntry("pure_callback", "footnote_custom_jvp", True, "pure_callback", ("grad.custom_jvp", "jvp.custom_jvp")),
    TableEntry("io_callback", "footnote_ordered_vmap", False, "io_callback_ordered", ("vmap", "jit.vmap")),
    TableEntry("io_callback", "footnote_vmap_of_scan", True, "io_callback", ("vmap.scan", "vmap.fori")),
    TableEntry("io_callback", "footnote_vmap_of_while", False, "io_callback", ("vmap.while_body", "vmap.while_cond")),
)

TABLE = (
    *(
        TableEntry(row, column, column in supported, _UNDER_VMAP.get(row, row) if column == "vmap" else row, programs)
        for row, supported in _SUPPORTED.items()
        for column, programs in _PROGRAMS.items()
    ),
    *_FOOTNOTES,
)
