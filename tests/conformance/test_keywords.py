"""`-k` means what it means to pytest; globs besides."""

from __future__ import annotations

import pytest

from conformance.planning.keywords import KeywordError, any_of, matcher

CELL = "hostcb/id_tap/vmap.scan+int8-matrix-dict/cpu-8dev+sync"


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("id_tap", True),
        ("ID_TAP", True),
        ("call", False),
        ("id_tap/vmap", True),
        ("hostcb/*/vmap*", True),
        ("id_tap/*", False),
        ("id_tap and vmap", True),
        ("id_tap and pmap", False),
        ("pmap or scan", True),
        ("not call", True),
        ("not not call", False),
        ("not call or id_tap", True),
        ("id_tap and not (vmap or pmap)", False),
        ("call or id_tap and scan", True),
        ("(call or id_tap) and pmap", False),
        ("scan+int8-matrix-dict and 8dev+sync", True),
        ("not(call)and(id_tap)", True),
    ],
)
def test_expressions(expression: str, chosen: bool) -> None:
    assert matcher(expression)(CELL) is chosen


def test_several_expressions_are_alternatives() -> None:
    assert any_of(["call", "vmap"])(CELL)
    assert not any_of(["call", "pmap"])(CELL)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "a word is missing"),
        ("id_tap and", "a word is missing"),
        ("and id_tap", "a word is expected before 'and'"),
        ("id_tap vmap", "'and', 'or' or the end is expected before 'vmap'"),
        ("(id_tap", "a parenthesis is not closed"),
        ("id_tap)", r"expected before '\)'"),
        ("id_tap & vmap", "'&' cannot be part of it"),
    ],
)
def test_what_means_nothing(expression: str, message: str) -> None:
    with pytest.raises(KeywordError, match=message):
        matcher(expression)
