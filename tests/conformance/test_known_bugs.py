"""The page about reported bugs: made from its list, with each difference explained."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import parse_cell
from conformance.releases.known_bugs import Bug, KnownBugs, Range, load_known_bugs
from conformance.releases.known_bugs_page import page
from conformance.releases.release import Release, ReleaseError
from conformance.reports.markup import text

pytestmark = pytest.mark.contract("C8")

ROOT = Path(__file__).parents[2]
LIST = ROOT / "ci" / "known_bugs.toml"
KNOWN = load_known_bugs(LIST)
PAGE = (ROOT / "docs" / "known-bugs.md").read_text()

VERSIONS = ("0.5.0", "0.6.1", "0.6.2", "0.8.3")
CELL = "jax/debug_callback/grad.scan/cpu-8dev"
PASS = Outcome(Verdict.PASS)
LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: #1 at 0x7ff2e8b3f770", anomaly="lost")
LACKS = Outcome(Verdict.UNSUPPORTED, None, "JAX 0.5.0 has none", anomaly="not applicable")
ERROR = Outcome(Verdict.HARNESS_ERROR)
BUG = Bug("#1", "It is lost.", bad=(Range("..0.6.1"),), good=(Range("0.6.2.."),), cells=(CELL,))


def outcomes(*found: Outcome) -> dict[tuple[Release, str], list[Outcome]]:
    return {(Release(version), CELL): [outcome] for version, outcome in zip(VERSIONS, found, strict=True)}


def test_the_committed_page_is_made_from_the_list() -> None:
    """Its entries, and the words of the list in them; the outcomes were found by running the cells."""
    sections = dict(re.findall(r"^## (.+)\n\n((?:(?!^## ).*\n?)*)", PAGE, re.MULTILINE))
    assert [*sections] == [text(bug.id) for bug in KNOWN.bugs]
    for bug in KNOWN.bugs:
        section = sections[text(bug.id)]
        assert section.startswith(text(bug.symptom))
        assert re.findall(r"^`(.+)`:$", section, re.MULTILINE) == [*bug.cells]
        assert all(parse_cell(cell, any_release=True).id == cell for cell in bug.cells)
        for words in (bug.without_cells, bug.deviation):
            assert text(words) in section
        assert ("**Differs.**" in section) == bool(bug.deviation)
        line = next(line for line in PAGE.splitlines() if re.match(rf"\| \[?{re.escape(text(bug.id))}[\] ]", line))
        before = [cell.strip() for cell in line.split(" | ")][1:3]
        assert before == [", ".join(map(str, ranges)) or "-" for ranges in (bug.bad, bug.good)]


@pytest.mark.parametrize(
    ("found", "deviation", "problem"),
    [
        ((LOST, LOST, PASS, PASS), "", None),
        ((LOST, PASS, PASS, PASS), "", "#1: JAX 0.6.1 is good, not bad: explain that as its 'deviation'"),
        ((LACKS, LOST, PASS, PASS), "", "#1: JAX 0.5.0 is unsupported, not bad"),
        ((LOST, PASS, PASS, PASS), "It was mended before.", None),
        ((LOST, LOST, PASS, PASS), "It was mended before.", "#1: its 'deviation' explains what does not differ"),
        ((LOST, LOST, ERROR, PASS), "", "#1: JAX 0.6.2 is not told: the suite failed there"),
    ],
)
def test_differences_need_explanations_and_explanations_differences(
    found: tuple[Outcome, ...], deviation: str, problem: str | None
) -> None:
    known = KnownBugs(VERSIONS, (replace(BUG, deviation=deviation),))
    problems = [*known.problems(outcomes(*found))]
    assert len(problems) == bool(problem)
    assert all(said.startswith(problem or "") for said in problems)


def test_the_page_has_ranges_witnesses_and_differences() -> None:
    made = page(KnownBugs(VERSIONS, (BUG,)), LIST, outcomes(LOST, PASS, PASS, PASS))
    assert "| \\#1 | 0.6.1 and older | 0.6.2 and newer | 0.5.0 | 0.6.1 to 0.8.3 | 0.6.1 |" in made.replace(
        "| #1", "| \\#1"
    )
    assert "- 0.5.0: fail (lost, callback): lost: \\#1 at ..." in made.replace(": #1", ": \\#1")
    assert "**Differs.** 0.6.1: good, not bad. (Not explained yet.)" in made


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("", r"has no \[\[bug\]\]"),
        ("[[bug]]\nid = 'a'", "'symptom' is missing"),
        ("[[bug]]\nid = 'a'\nsymptom = 'b'", "name its 'cells'"),
        ("[[bug]]\nid = 'a'\nsymptom = 'b'\ncells = ['c']\nbad = ['0.6..0.5']", "no range of releases"),
        ("[[bug]]\nid = 'a'\nsymptom = 'b'\ncells = 'c'", "'cells' is 'c'; write a list of strings"),
        ("[[bug]]\nidd = 'a'", "unknown key 'idd'"),
    ],
)
def test_invalid_lists(entry: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "bugs.toml"
    file.write_text(entry)
    with pytest.raises(ReleaseError, match=words):
        load_known_bugs(file)
