"""Covering arrays: every pair that a row can hold is covered, and each other has a reason."""

from __future__ import annotations

import itertools

import pytest

from conformance.planning.covering import Constraint, Row, Space, cover, pairs_of

pytestmark = pytest.mark.contract("C1")


def no_zero_after_one(a: str, b: str) -> str | None:
    return "one, then zero" if (a, b) == ("1", "0") else None


def c_follows(a: str, b: str, c: str) -> str | None:
    return None if (a, b) != ("0", "0") or c == "2" else "two is all that follows zeros"


VALUES = {"a": [*"012"], "b": [*"01"], "c": [*"012"], "d": [*"01234"]}
CONSTRAINTS = (Constraint(("a", "b"), no_zero_after_one), Constraint(("a", "b", "c"), c_follows))
ALLOWED: list[Row] = [
    row for row in itertools.product(*VALUES.values()) if not no_zero_after_one(*row[:2]) and not c_follows(*row[:3])
]


@pytest.mark.parametrize("seed", range(20))
def test_every_pair_that_a_row_can_hold_is_covered_and_no_other(seed: int) -> None:
    covering = cover(Space(VALUES, CONSTRAINTS), [], seed)
    possible = {pair for row in ALLOWED for pair in pairs_of(row)}
    assert {pair for row in covering.rows for pair in pairs_of(row)} == covering.covered == possible
    assert set(covering.rows) <= set(ALLOWED)
    assert covering.excluded.keys() == set(Space(VALUES).pairs()) - possible
    assert not covering.missing
    assert cover(Space(VALUES, CONSTRAINTS), [], seed).rows == covering.rows


def test_excluded_pairs_have_reasons() -> None:
    blocked = Constraint(("c", "d"), lambda c, d: "d is never four" if d == "4" else None)
    covering = cover(Space(VALUES, (*CONSTRAINTS, blocked)), [], 0)
    assert covering.excluded[0, "1", 1, "0"] == "one, then zero"
    assert covering.excluded[0, "0", 3, "4"].startswith("nothing goes with both: ")


def test_rows_are_few_and_differ_by_the_seed() -> None:
    space = Space({axis: [*"01234567"] for axis in "abcdef"})
    rows = cover(space, [], 0).rows
    assert len(rows) < 2 * 8 * 8, f"{len(rows)} rows, where 64 is the least there can be"
    assert cover(space, [], 1).rows != rows
    assert not cover(Space(VALUES, CONSTRAINTS), ALLOWED, 0).rows, "what is present need not be made"
