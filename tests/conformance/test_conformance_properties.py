"""Keyword expressions, covering arrays and expectation files of any form, beside what they are to mean."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conformance.expectations.editing import ExpectationFile
from conformance.oracle.verdicts import Stage
from conformance.planning.covering import Constraint, Space, cover, pairs_of
from conformance.planning.keywords import matcher

# Keyword expressions -------------------------------------------------------------------------------------------------

CELL = "hostcb/id_tap/vmap.scan+int8-matrix-dict/cpu-8dev+sync"
WORDS = {
    "id_tap": True,
    "VMAP": True,
    "scan+int8": True,
    "hostcb/*": True,
    "call": False,
    "pmap": False,
    "*/grad": False,
    "notes": False,
}

Meant = tuple[str, bool, int]
"""The text of an expression, whether `CELL` answers to it, and how strongly its last operator binds."""

ALTERNATIVES, CONJUNCTION, NEGATION = range(3)


def within(meant: Meant, strength: int) -> str:
    """The text where something as strong is needed."""
    return meant[0] if meant[2] >= strength else f"({meant[0]})"


def negated(meant: Meant) -> Meant:
    return f"not {within(meant, NEGATION)}", not meant[1], NEGATION


def joined(pair: tuple[Meant, Meant], operator: str, truth: Callable[[Any], bool], strength: int) -> Meant:
    left, right = pair
    text = f"{within(left, strength)} {operator} {within(right, strength)}"
    return text, truth((left[1], right[1])), strength


expressions: st.SearchStrategy[Meant] = st.recursive(
    st.sampled_from([(word, truth, NEGATION) for word, truth in WORDS.items()]),
    lambda inner: st.one_of(
        inner.map(negated),
        inner.map(lambda meant: (f"( {meant[0]})", meant[1], NEGATION)),
        st.tuples(inner, inner).map(lambda pair: joined(pair, "and", all, CONJUNCTION)),
        st.tuples(inner, inner).map(lambda pair: joined(pair, "or", any, ALTERNATIVES)),
    ),
    max_leaves=12,
)


@given(expressions)
def test_expressions_mean_what_they_are_made_of(meant: Meant) -> None:
    text, truth, _ = meant
    assert matcher(text)(CELL) is truth, text


# Covering arrays -----------------------------------------------------------------------------------------------------

AXES = "abcd"


@st.composite
def spaces(draw: st.DrawFn) -> tuple[dict[str, list[str]], list[Constraint], Callable[[tuple[str, ...]], bool]]:
    """Axes, constraints that forbid drawn combinations, and whether a row is allowed."""
    axes = {axis: [str(number) for number in range(draw(st.integers(1, 4)))] for axis in AXES}
    forbidden: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for chosen in draw(st.lists(st.sets(st.sampled_from(AXES), min_size=1, max_size=3), max_size=4)):
        names = tuple(sorted(chosen))
        combinations = [*itertools.product(*(axes[name] for name in names))]
        forbidden[names] = draw(st.sets(st.sampled_from(combinations), max_size=4))

    def reason(values: set[tuple[str, ...]]) -> Callable[..., str | None]:
        return lambda *row: f"{row} means nothing" if row in values else None

    def allowed(row: tuple[str, ...]) -> bool:
        of = dict(zip(AXES, row, strict=True))
        return not any(tuple(of[name] for name in names) in values for names, values in forbidden.items())

    return axes, [Constraint(names, reason(values)) for names, values in forbidden.items()], allowed


@pytest.mark.contract("C1")
@given(spaces(), st.integers(0, 2**32))
def test_every_pair_is_covered_that_any_row_can_hold_by_rows_that_mean_something(drawn: Any, seed: int) -> None:
    axes, constraints, allowed = drawn
    rows = [row for row in itertools.product(*axes.values()) if allowed(row)]
    possible = {pair for row in rows for pair in pairs_of(row)}
    covering = cover(Space(axes, constraints), [], seed)
    assert set(covering.rows) <= set(rows)
    assert {pair for row in covering.rows for pair in pairs_of(row)} == covering.covered == possible
    assert covering.excluded.keys() == set(Space(axes).pairs()) - possible
    assert all("means nothing" in reason for reason in covering.excluded.values())
    assert not covering.missing
    # Each row was made for a pair that those before it do not have.
    assert len(covering.rows) == len(set(covering.rows))


# Expectation files ---------------------------------------------------------------------------------------------------

# What has a meaning in TOML, or more than one byte.
words = st.text("a \"'#[]=\\\n\t\u2028ü😀", max_size=12)
globs = st.text("abc/*.-[]\"\\'", min_size=1, max_size=8)
comments = st.lists(words.map(lambda text: f"# {' '.join(text.split())}"), max_size=2)


@st.composite
def entries(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """The text of one entry, in one of the ways in which people write it, and what it says."""
    cells = draw(st.lists(globs, min_size=1, max_size=3))
    said: dict[str, Any] = {
        "cells": cells[0] if len(cells) == 1 and draw(st.booleans()) else cells,
        "verdict": draw(st.sampled_from(["fail", "crash(SIGABRT)", "hang"])),
        "reason": draw(words),
        "link": draw(words),
        "since": "2026-01-01",
    }
    if draw(st.booleans()):
        said["stage"] = draw(st.sampled_from([stage.value for stage in Stage]))
    if draw(st.booleans()):
        said["intermittent"] = draw(st.booleans())
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in said.items()]
    if isinstance(said["cells"], list) and draw(st.booleans()):
        listed = "".join(f"  {json.dumps(cell)},\n" for cell in cells)
        lines[0] = f"cells = [\n{listed}]"
    order = draw(st.permutations(lines))
    return "\n".join([*draw(comments), "[[expect]]", *order]) + "\n", said


files = st.lists(entries(), max_size=4)
gaps = st.integers(0, 2)


@pytest.mark.contract("C7")
@given(files, gaps)
def test_a_file_that_is_not_changed_stays_as_it_is(written: list[tuple[str, dict[str, Any]]], gap: int) -> None:
    text = ("\n" * gap).join(entry for entry, _ in written)
    file = ExpectationFile(text, "cpu.toml")
    assert file.text == text
    for entry, (_, said) in zip(file.entries, written, strict=True):
        cells = said["cells"] if isinstance(said["cells"], list) else [said["cells"]]
        assert (list(entry.cells), entry.reason, entry.verdict) == (cells, said["reason"], said["verdict"])


@pytest.mark.contract("C7")
@given(files, gaps, st.data())
def test_what_is_narrowed_and_added_is_read_back_and_the_rest_stays(
    written: Any, gap: int, data: st.DataObject
) -> None:
    assume(written)
    file = ExpectationFile(("\n" * gap).join(entry for entry, _ in written), "cpu.toml")
    number = data.draw(st.integers(0, len(written) - 1))
    cells = data.draw(st.lists(globs, max_size=3))
    file.narrow(number, cells)
    added = data.draw(st.lists(globs, min_size=1, max_size=3))
    file.add(added, "fail", "callback", "2026-02-02", ">=0.10.2", data.draw(words))
    expected = [said for _, said in written]
    expected[number : number + 1] = [{**expected[number], "cells": cells[0] if len(cells) == 1 else cells}] * bool(
        cells
    )
    *kept, last = tomllib.loads(file.text)["expect"]
    assert kept == expected
    assert last["cells"] == (added[0] if len(added) == 1 else added)
    for place, (entry, _) in enumerate(written):
        if place != number:
            assert entry.partition("[[expect]]")[2] in file.text
    # Once more, and nothing changes.
    assert ExpectationFile(file.text, "cpu.toml").text == file.text


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    "reason",
    ["\"'''\"", '\'"""\'', '"""\n[[expect]] \\"""\n"""', "'''\n[[expect]]\n'''", '"\u2028[[expect]]"', '"" # """'],
)
def test_quotes_and_headers_in_strings_are_no_entries(reason: str) -> None:
    """Each was taken for a string of several lines, or for a header, once, or could be."""
    entry = f'[[expect]]\ncells = "a"\nverdict = "fail"\nreason = {reason}\nlink = ""\nsince = "2026-01-01"\n'
    file = ExpectationFile(entry * 2, "cpu.toml")
    file.narrow(1, [])
    assert file.text == entry
