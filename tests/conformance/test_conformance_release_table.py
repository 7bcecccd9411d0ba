"""The table of cells by release: what changed when, and what is judged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from release_table_fakes import CELLS, CRASH, ENTRY, LACKS, LOST, PASS, RELEASES, recorded, table

from conformance.expectations.entries import Expectations, read_entries
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.releases.judging import problems_of
from conformance.releases.records import Record
from conformance.releases.release import Skipped
from conformance.releases.table import table_of, tried
from conformance.reports.table import NOT_RUN, said
from conformance.reports.table_pages import html, markdown

pytestmark = pytest.mark.contract("C8")

# The table ------------------------------------------------------------------------------------------


def test_what_changed_is_grouped_by_its_pattern() -> None:
    found = table([LOST, LOST, PASS, PASS], [PASS] * 4, [LOST, LOST, PASS, PASS])
    (group,) = found.groups
    assert [row.cell for row in group.rows] == [CELLS[0], CELLS[2]]
    assert list(found.periods(group.words)) == [("0.5.0 to 0.6.1", "fail (lost, callback)"), ("0.6.2 to 0.8.3", "pass")]
    assert found.summary() == "3 cells with 4 releases of JAX: 2 changed, 1 never changed (1 pass)."


def test_good_bad_good_is_drawn_as_such() -> None:
    found = table([PASS, CRASH, PASS, LACKS])
    page = markdown(found)
    assert "## 1 cell: pass, crash(SIGABRT) (dispatch) from 0.6.1, pass from 0.6.2, unsupported" in page
    assert page.count("| pass |") == 2


def test_seconds_and_witnesses_are_no_change() -> None:
    assert said(Outcome(Verdict.PASS, seconds=2.0, anomaly="x")) == "pass"
    assert table([LOST, Outcome(Verdict.FAIL, Stage.CALLBACK, "other", anomaly="lost"), LOST, LOST]).groups == ()
    later = Outcome(Verdict.FAIL, Stage.RESULT, "", anomaly="lost")
    assert len(table([LOST, later, LOST, LOST]).groups) == 1


def test_a_cell_that_did_not_run_has_not_changed() -> None:
    found = table([PASS, None, PASS, PASS], [None, PASS, PASS, PASS])
    assert found.groups == ()
    assert found.rows[0].words[1] == NOT_RUN
    assert found.summary() == "2 cells with 4 releases of JAX: 0 changed, 2 never changed (2 pass)."


def test_a_cell_that_ran_with_one_release_alone_is_counted_apart() -> None:
    found = table([PASS, None, PASS, PASS], [None, None, None, LOST], [None] * 4)
    assert found.summary() == (
        "3 cells with 3 releases of JAX: 0 changed, 1 never changed (1 pass),"
        " 2 ran with one release at most (1 fail (lost, callback), 1 not run)."
    )


def test_a_release_that_did_not_run_has_no_column() -> None:
    found = table([PASS, None, PASS, PASS])
    assert [column.label for column in found.columns] == ["0.5.0", "0.6.2", "0.8.3"]


def test_chance_is_shown_with_numbers() -> None:
    records = [Record(RELEASES[0], CELLS[0], outcome) for outcome in (PASS, LOST, PASS)]
    found = table_of([*records, Record(RELEASES[1], CELLS[0], PASS)], RELEASES[:2], CELLS[:1])
    (group,) = found.groups
    assert group.words == ("fail (lost, callback) or pass", "pass")
    assert "(0.5.0: 2 x pass, 1 x fail \\(lost, callback\\))".replace("\\(", "(").replace("\\)", ")") in markdown(found)


def test_pages_show_what_came_as_text() -> None:
    found = table([LOST, PASS, PASS, PASS], skipped=[Skipped("0.6.3", "<i>yanked</i>")], problems=["a_b <p>"])
    page, text = html(found), markdown(found)
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;#1" in page
    assert 'href="#w0"' in page
    assert '<div id="w0">' in page
    assert "<th>transforms</th>" in page
    assert "&lt;b&gt;#1&lt;/b&gt; \\| \\`x\\`" in text
    assert "- 0.6.3: &lt;i&gt;yanked" in text
    assert "- a\\_b &lt;p&gt;" in text
    # A page that loads nothing.
    assert "default-src 'none'" in page


# Judging --------------------------------------------------------------------------------------------


def expected(cells: str = CELLS[0], jax: str = "<0.6.2") -> Expectations:
    return Expectations(read_entries(ENTRY.format(cells=cells, jax=jax), "test"))


def problems(entries: Expectations, *rows: Sequence[Outcome | None]) -> tuple[str, ...]:
    records = recorded(*rows)
    return problems_of(records, tried(records, RELEASES), CELLS[: len(rows)], entries)


def test_what_is_as_written_down_is_no_problem() -> None:
    assert problems(expected(), [LOST, LOST, PASS, PASS]) == ()


@pytest.mark.parametrize(
    ("row", "entries", "words"),
    [
        ([LOST, PASS, PASS, PASS], expected(), "with 0.6.1: pass, expected to fail: fail at callback"),
        ([LOST, LOST, LOST, PASS], expected(), "with 0.6.2: fail (lost, callback), not expected to fail: lost: <b>"),
        (
            [LOST, CRASH, PASS, PASS],
            expected(),
            "with 0.6.1: crash(SIGABRT) (dispatch), expected to fail in another way",
        ),
        (
            [LOST, LACKS, PASS, PASS],
            expected(),
            "with 0.6.1: unsupported (not applicable), expected to fail in another",
        ),
        ([PASS, PASS, PASS, LACKS], expected("x", ">=9"), "with 0.8.3: unsupported (not applicable), not expected to"),
        ([LOST, None, PASS, PASS], expected(), "with 0.6.1: not run"),
        ([PASS, PASS, PASS, PASS], expected("none"), "the expectation 'none' matches no cell of the table"),
        ([PASS, PASS, PASS, PASS], expected(jax=">=0.9"), "is for JAX >=0.9, and the table has no such release"),
    ],
)
def test_a_surprise_is_a_problem(row: Sequence[Outcome | None], entries: Expectations, words: str) -> None:
    # The other cell has run with each release.
    found = problems(entries, row, [PASS] * 4)
    assert any(words in problem for problem in found), found
