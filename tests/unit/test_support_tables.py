"""The table of supported programs: it is that of the suite's model, and a run of the matrix has each of its cells."""

from __future__ import annotations

import promises
import pytest
import support_tables

from conformance.model.transforms import TRANSFORMS
from conformance.planning.sampling import is_only_batched
from conformance.spec.external_callbacks import OWN_FUNCTIONS


def test_the_page_has_the_table_of_the_model() -> None:
    text = support_tables.PAGE.read_text(encoding="utf-8")
    assert support_tables.with_table(text) == text, f"run `{support_tables.COMMAND}`"


def test_each_mark_stands_for_planned_cells() -> None:
    planned = {f"hostcb/{cell}" for cell in promises.cells()}
    missing = [
        cell.id
        for callback in support_tables.CALLBACKS
        for program in support_tables.PROGRAMS
        for cell in support_tables.cells(callback, program)
        # Without vmap the methods are the callback itself, whose cells are planned.
        if cell.id not in planned and (program == "`vmap`" or not is_only_batched(cell.callback))
    ]
    assert not missing


def test_a_mark_differs_between_callbacks_and_between_transforms() -> None:
    """`call` refuses `vmap` without a method, and `grad` with one."""
    assert support_tables.mark("`call`", "`vmap`") == support_tables.REFUSED
    assert support_tables.mark("the two above with `vmap_method`", "`vmap`") == support_tables.RUNS
    assert support_tables.mark("the two above with `vmap_method`", "`jvp`, `grad`") == support_tables.REFUSED


def test_every_function_has_a_row() -> None:
    heads = " ".join(support_tables.CALLBACKS)
    assert [name for name in OWN_FUNCTIONS if name and f"`{name}`" not in heads] == []


def test_every_transform_has_a_column() -> None:
    shown = {name for programs in support_tables.PROGRAMS.values() for name in programs.split()}
    # Derivatives that do not reach the callback are not asked for.
    assert shown == {*TRANSFORMS} - {"detached"}


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="support: begin"):
        support_tables.with_table("# Page\n")
