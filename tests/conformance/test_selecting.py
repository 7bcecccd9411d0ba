"""Keyword expressions, which mean what they mean to pytest, and covering arrays: of any form, and some by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.planning.covering import Constraint, Space, cover, pairs_of
from conformance.planning.keywords import KeywordError, any_of, matcher

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
"""The text of an expression, whether it matches `CELL`, and how strongly its last operator binds."""

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


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("ID_TAP", True),
        ("id_tap/vmap", True),
        ("hostcb/*/vmap*", True),
        ("id_tap/*", False),
        ("not not call", False),
        ("call or id_tap and scan", True),
        ("scan+int8-matrix-dict and 8dev+sync", True),
        ("not(call)and(id_tap)", True),
    ],
)
def test_expressions(expression: str, chosen: bool) -> None:
    assert matcher(expression)(CELL) is chosen


def test_several_expressions_are_alternatives() -> None:
    assert any_of(["call", "vmap"])(CELL)
    assert not any_of(["call", "pmap"])(CELL)


@pytest.mark.parametrize("expression", ["", "id_tap and", "and id_tap", "id_tap vmap", "(id_tap", "id_tap)", "a & b"])
def test_what_means_nothing(expression: str) -> None:
    with pytest.raises(KeywordError):
        matcher(expression)


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


VALUES = {"a": [*"012"], "b": [*"01"], "c": [*"012"], "d": [*"01234"]}
BEFORE = Constraint(("a", "b"), lambda a, b: "one, then zero" if (a, b) == ("1", "0") else None)
FOLLOWING = Constraint(("a", "b", "c"), lambda a, b, c: None if (a, b) != ("0", "0") or c == "2" else "two alone")


def test_excluded_pairs_have_reasons() -> None:
    blocked = Constraint(("c", "d"), lambda c, d: "d is never four" if d == "4" else None)
    covering = cover(Space(VALUES, (BEFORE, FOLLOWING, blocked)), [], 0)
    assert covering.excluded[0, "1", 1, "0"] == "one, then zero"
    assert covering.excluded[0, "0", 3, "4"].startswith("nothing goes with both: ")


def test_rows_are_few_and_differ_by_the_seed() -> None:
    space = Space({axis: [*"01234567"] for axis in "abcdef"})
    rows = cover(space, [], 0).rows
    assert len(rows) < 2 * 8 * 8, f"{len(rows)} rows, where 64 is the least there can be"
    assert cover(space, [], 1).rows != rows
    assert not cover(Space(VALUES, (BEFORE,)), [*itertools.product(*VALUES.values())], 0).rows, (
        "what is present need not be made"
    )
