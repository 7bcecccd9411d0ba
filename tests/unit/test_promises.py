"""Tests and cells cite the promises of docs/contract.md: all of them, and no others."""

from __future__ import annotations

import promises
import pytest
from support import contract_markers

pytest_plugins = ["pytester"]

MARKED = """
import pytest

{module}

{decorator}
def test_something() -> None:
    pass
"""


@pytest.fixture(scope="module")
def cells() -> dict[str, tuple[str, ...]]:
    return promises.cells()


def test_every_promise_has_a_test_or_a_cell(cells: dict[str, tuple[str, ...]]) -> None:
    cited = {*promises.tests(), *(number for numbers in cells.values() for number in numbers)}
    numbered = promises.numbered()
    assert len(numbered) == len(set(numbered)) > 30, f"promises in docs/contract.md: {numbered}"
    nobody = [number for number in numbered if number not in cited]
    assert not nobody, f"no test and no cell cites {nobody}; mark a test with pytest.mark.contract({nobody[0]!r})"


def test_every_number_that_a_cell_cites_is_a_promise(cells: dict[str, tuple[str, ...]]) -> None:
    wrong = {cell: complaint for cell, numbers in cells.items() if (complaint := promises.complaint(numbers))}
    assert not wrong, f"{len(wrong)} cells, such as {next(iter(wrong.items()))}"


def test_every_number_that_a_test_cites_is_a_promise() -> None:
    assert promises.complaint(promises.tests()) is None


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ('contract("H5", "X3")', None),
        ('contract("H99")', "test_something: docs/contract.md has no promise H99"),
        ('contract("H5", "h6", 7)', "test_something: docs/contract.md has no promise h6, 7"),
        ("contract()", 'needs the number of a promise, such as contract("H5")'),
    ],
)
@pytest.mark.parametrize("place", ["decorator", "module"])
def test_markers_with_unknown_numbers_are_not_collected(
    marker: str, words: str | None, place: str, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]\nmarkers = contract\n")
    here = {"decorator": f"@pytest.mark.{marker}", "module": f"pytestmark = pytest.mark.{marker}"}
    pytester.makepyfile(MARKED.format(**{"decorator": "", "module": "", place: here[place]}))
    outcome = pytester.runpytest_inprocess("-p", "no:cacheprovider", plugins=[contract_markers])
    if words is None:
        outcome.assert_outcomes(passed=1)
    else:
        outcome.assert_outcomes(errors=1)
        assert words in outcome.stdout.str()


@pytest.mark.parametrize(
    ("promise", "begin"),
    [
        ("All runs. None is lost.", "All runs."),
        ("Each waits: none is lost", "Each waits."),
        ("`f. g` runs (or raises. Both are seen): once", "`f. g` runs (or raises. Both are seen)."),
        ("Nothing ends here", "Nothing ends here"),
    ],
)
def test_the_page_has_the_first_sentence_of_a_promise(promise: str, begin: str) -> None:
    assert promises.first_sentence(promise) == begin
