"""The list of reported bugs and its page: what is judged, and what the page has of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import known_bugs
import pytest
from known_bugs import Bug, KnownBugs, in_words, load_known_bugs, page

from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import parse_cell
from conformance.releases.environments import Release
from conformance.reports.markup import text

pytestmark = pytest.mark.contract("C8")

CELL = "jax/pure_callback/jit/cpu-1dev"
PASS = Outcome(Verdict.PASS)
LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: <b>#1</b> | `x` at 0x7ff2e8b3f770", anomaly="lost")
LACKS = Outcome(Verdict.UNSUPPORTED, None, "JAX 0.5.0 has none", anomaly="not applicable")
ERROR = Outcome(Verdict.HARNESS_ERROR)

VERSIONS = ("0.5.0", "0.6.1", "0.6.2", "0.8.3")
BUG = Bug("#1", "It is lost.", bad=("..0.6.1",), good=("0.6.2..",), cells=(CELL,))


def outcomes(*found: Outcome) -> dict[tuple[Release, str], Outcome]:
    return {(Release(version), CELL): outcome for version, outcome in zip(VERSIONS, found, strict=True)}


def test_the_page_and_the_list_fit_together() -> None:
    """The page has the entries of the list, and their words; the outcomes were found by running the cells."""
    made = known_bugs.PAGE.read_text()
    bugs = load_known_bugs().bugs
    sections = dict(re.findall(r"^## (.+)\n\n((?:(?!^## ).*\n?)*)", made, re.MULTILINE))
    assert [*sections] == [text(bug.id) for bug in bugs]
    for bug, section in zip(bugs, sections.values(), strict=True):
        assert section.startswith(text(bug.symptom))
        assert re.findall(r"^`(.+)`:$", section, re.MULTILINE) == [*bug.cells]
        assert all(parse_cell(cell, any_release=True).id == cell for cell in bug.cells)
        assert text(bug.without_cells) in section
        assert ("**Differs.**" in section) == bool(bug.deviation)
        assert text(bug.deviation) in section
        before = (", ".join(map(in_words, ranges)) or "-" for ranges in (bug.bad, bug.good))
        assert re.search(
            rf"^\| \[?{re.escape(text(bug.id))}\b.* \| {re.escape(' | '.join(before))} \| ", made, re.MULTILINE
        )


@pytest.mark.parametrize(
    ("found", "deviation", "problem"),
    [
        ((LOST, LOST, PASS, PASS), "", ""),
        ((LOST, PASS, PASS, PASS), "", "#1: JAX 0.6.1 is good, not bad: explain that as its 'deviation'"),
        ((LACKS, LOST, PASS, PASS), "", "#1: JAX 0.5.0 is unsupported, not bad: explain that as its 'deviation'"),
        ((LOST, PASS, PASS, PASS), "It was mended before.", ""),
        ((LOST, LOST, ERROR, PASS), "It was mended before.", "#1: its 'deviation' explains what does not differ"),
    ],
)
def test_differences_need_explanations_and_explanations_differences(
    found: tuple[Outcome, ...], deviation: str, problem: str
) -> None:
    known = KnownBugs(VERSIONS, (replace(BUG, deviation=deviation),))
    assert "".join(known.problems(outcomes(*found))) == problem


def test_the_page_has_ranges_witnesses_and_differences() -> None:
    made = page(KnownBugs(VERSIONS, (BUG,)), outcomes(LOST, PASS, PASS, PASS)).replace("\\", "")
    assert "| #1 | 0.6.1 and older | 0.6.2 and newer | 0.5.0 | 0.6.1 to 0.8.3 | 0.6.1 |" in made
    assert "- 0.5.0: fail at callback (lost): lost: " in made
    assert "`x` at ...\n" in made
    assert "**Differs.** 0.6.1: good, not bad. (Not explained yet.)" in made


@pytest.mark.parametrize("field", ["idd = 'a'", "bad = ['x..0.5']", "without_cells = 'none'"])
def test_invalid_entries(field: str, tmp_path: Path) -> None:
    (tmp_path / "bugs.toml").write_text(f"releases = []\n[[bug]]\nid = 'a'\nsymptom = 'b'\ncells = ['c']\n{field}\n")
    with pytest.raises((TypeError, ValueError), match=r"idd|'x' is no version|without_cells"):
        load_known_bugs(tmp_path / "bugs.toml")


def test_a_run_of_all_releases_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_bugs, "load_known_bugs", lambda: KnownBugs(VERSIONS[1:3], (BUG,)))
    monkeypatch.setattr(known_bugs, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(known_bugs, "RESULTS", tmp_path)
    lines = [
        {"run": [version, "", "deadline 60", CELL], "outcome": one.as_json()}
        for version, one in (("0.6.1", ERROR), ("0.6.1", LOST), ("0.6.2", PASS))
    ]
    (tmp_path / "runs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ran: list[list[str]] = []
    monkeypatch.setattr(known_bugs.commands, "main", lambda words: ran.append(words) or 1)
    assert known_bugs.main(["--resume"]) == 1
    assert not (tmp_path / "page.md").exists()
    monkeypatch.setattr(known_bugs.commands, "main", lambda words: 0)
    assert known_bugs.main([]) == 0
    assert ran == [["releases", "0.6.1", "0.6.2", "--cell", CELL, "--results", str(tmp_path), "--resume"]]
    assert "| #1 | 0.6.1 and older | 0.6.2 and newer | 0.6.1 | 0.6.2 | - |" in (tmp_path / "page.md").read_text()
