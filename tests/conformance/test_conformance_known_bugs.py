"""The page about reported bugs: made from its list, with each difference explained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.cli.commands import main
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import parse_cell
from conformance.releases import tabulating
from conformance.releases.environments import Environment
from conformance.releases.known_bugs import Bug, KnownBugs, KnownBugsError, Range, load_known_bugs, outcomes_of
from conformance.releases.known_bugs_page import page
from conformance.releases.probes import Probe
from conformance.releases.records import Record, Records
from conformance.releases.release import Release
from conformance.releases.table import table_of
from conformance.releases.tabulating import How
from conformance.reports.markup import text
from conformance.spec.topology import WrongPlatformError

pytestmark = pytest.mark.contract("C8")

ROOT = Path(__file__).parents[2]
KNOWN = load_known_bugs(ROOT / "ci" / "known_bugs.toml")
PAGE = (ROOT / "docs" / "known-bugs.md").read_text()

RELEASES = tuple(Release(version, version) for version in ("0.5.0", "0.6.1", "0.6.2", "0.8.3"))
CELL = "jax/debug_callback/grad.scan/cpu-8dev"
PASS = Outcome(Verdict.PASS)
LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: #1 at 0x7ff2e8b3f770", anomaly="lost")
ORDER = Outcome(Verdict.FAIL, Stage.CALLBACK, "order", anomaly="order")
LACKS = Outcome(Verdict.UNSUPPORTED, None, "JAX 0.5.0 has none", anomaly="not applicable")

BUG = Bug("#1", "It is lost.", bad=(Range("..0.6.1"),), good=(Range("0.6.2.."),), cells=(CELL,))


def records(*outcomes: Outcome) -> list[Record]:
    return [Record(release, CELL, outcome) for release, outcome in zip(RELEASES, outcomes, strict=True)]


# What is committed ----------------------------------------------------------------------------------


def test_the_cells_of_the_list_exist() -> None:
    assert len(KNOWN.cells) > 20
    for cell in KNOWN.cells:
        assert cell.startswith("jax/")
        assert parse_cell(cell, any_release=True).id == cell


def test_the_committed_page_is_made_from_the_list() -> None:
    """Its entries, and the words of the list in them; the outcomes were found by running the cells."""
    sections = dict(re.findall(r"^## (.+)\n\n((?:(?!^## ).*\n?)*)", PAGE, re.MULTILINE))
    assert [*sections] == [text(bug.id) for bug in KNOWN.bugs]
    for bug in KNOWN.bugs:
        section = sections[text(bug.id)]
        assert section.startswith(text(bug.symptom))
        assert re.findall(r"^`(.+)`:$", section, re.MULTILINE) == [*bug.cells]
        for words in (bug.without_cells, bug.deviation):
            assert text(words) in section
        assert ("**Differs.**" in section) == bool(bug.deviation)
        line = next(line for line in PAGE.splitlines() if re.match(rf"\| \[?{re.escape(text(bug.id))}[\] ]", line))
        before = [cell.strip() for cell in line.split(" | ")][1:3]
        assert before == [", ".join(map(str, ranges)) or "-" for ranges in (bug.bad, bug.good)]
    assert "Not explained yet" not in PAGE
    assert ", ".join(KNOWN.releases) in " ".join(PAGE.split())


# What is found --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "inside", "outside", "said"),
    [
        ("..0.6.1", ["0.4.31", "0.6.1"], ["0.6.1.1", "0.6.2"], "0.6.1 and older"),
        ("0.6.2..", ["0.6.2", "0.12.0.1"], ["0.6.1"], "0.6.2 and newer"),
        ("0.4.9..0.4.31", ["0.4.9", "0.4.10"], ["0.4.8", "0.4.32"], "0.4.9 to 0.4.31"),
        ("0.7.0", ["0.7.0", "0.7"], ["0.7.1"], "0.7.0"),
    ],
)
def test_ranges(words: str, inside: list[str], outside: list[str], said: str) -> None:
    found = Range(words)
    assert str(found) == said
    assert all(version in found for version in inside)
    assert not any(version in found for version in outside)


def test_what_is_as_before_needs_no_words() -> None:
    outcomes = outcomes_of(records(LOST, LOST, PASS, PASS))
    known = KnownBugs(("0.5.0",), (BUG,))
    assert [*known.problems(RELEASES, outcomes)] == []
    assert BUG.found(RELEASES[0], outcomes) == "bad"


@pytest.mark.parametrize(
    ("outcomes", "difference"),
    [
        ((PASS, LOST, PASS, PASS), ("0.5.0", "bad", "good")),
        ((LOST, LOST, PASS, LOST), ("0.8.3", "good", "bad")),
        ((ORDER, LOST, PASS, PASS), ("0.5.0", "bad", "failing in another way")),
        ((LACKS, LOST, PASS, PASS), ("0.5.0", "bad", "unsupported")),
    ],
)
def test_a_difference_needs_an_explanation(outcomes: tuple[Outcome, ...], difference: tuple[str, str, str]) -> None:
    bug = Bug(**vars(BUG) | {"anomaly": "lost"})
    found = outcomes_of(records(*outcomes))
    assert [(release.jax, *rest) for release, *rest in bug.differences(RELEASES, found)] == [difference]
    (problem,) = KnownBugs((), (bug,)).problems(RELEASES, found)
    assert problem.startswith(f"#1: JAX {difference[0]} is {difference[2]}, not {difference[1]}")
    explained = Bug(**vars(bug) | {"deviation": "Why."})
    assert [*KnownBugs((), (explained,)).problems(RELEASES, found)] == []


@pytest.mark.parametrize("verdict", [Verdict.HARNESS_ERROR, Verdict.MISSING, Verdict.FLAKE])
@pytest.mark.parametrize("deviation", ["", "Why."])
def test_an_error_of_the_suite_is_no_bug(verdict: Verdict, deviation: str) -> None:
    """And no good release, either: it needs another run, and no explanation."""
    bug = Bug(**vars(BUG) | {"deviation": deviation})
    found = outcomes_of([*records(LOST, LOST, PASS, Outcome(verdict)), Record(RELEASES[3], CELL, PASS)])
    assert bug.found(RELEASES[3], found) == "not told"
    assert [*bug.differences(RELEASES, found)] == []
    (problem,) = KnownBugs(("0.5.0",), (bug,)).problems(RELEASES, found)
    assert problem == "#1: JAX 0.8.3 is not told: the suite failed there; run the cells again"


def test_an_explanation_needs_a_difference() -> None:
    explained = Bug(**vars(BUG) | {"deviation": "Why."})
    found = outcomes_of(records(LOST, LOST, PASS, PASS))
    (problem,) = KnownBugs(("0.5.0",), (explained,)).problems(RELEASES, found)
    assert "explains what does not differ" in problem
    # With a part of the releases nobody can say that.
    assert [*KnownBugs(("0.5.0", "0.7.0"), (explained,)).problems(RELEASES, found)] == []


def test_a_refusal_may_be_the_symptom() -> None:
    bug = Bug(**vars(BUG) | {"refused": True})
    assert bug.found(RELEASES[0], outcomes_of(records(LACKS, LOST, PASS, PASS))) == "bad"


def test_the_page(tmp_path: Path) -> None:
    found = records(LOST, PASS, PASS, PASS)
    bug = Bug(**vars(BUG) | {"link": "https://example.org/1", "deviation": "It is a *race*."})
    other = Bug("other", "It hangs.", bad=(Range("0.5.0"),), without_cells="It needs a GPU.")
    known = KnownBugs(("0.5.0",), (bug, other))
    made = page(known, table_of(found, RELEASES, known.cells), RELEASES, outcomes_of(found), "Words.")
    assert (
        "| [#1](https://example.org/1) | 0.6.1 and older | 0.6.2 and newer | 0.5.0 | 0.6.1 to 0.8.3 | 0.6.1 |" in made
    )
    assert "| other | 0.5.0 | - | no cell | - | - |" in made
    # What differs from run to run is not on the page.
    assert "- 0.5.0: fail (lost, callback): lost: #1 at ...\n- 0.6.1 to 0.8.3: pass\n" in made
    assert "**Differs.** 0.6.1: good, not bad. It is a \\*race\\*." in made
    assert "No cell shows it. It needs a GPU." in made


LIST = f"""\
releases = ["0.5.0", "0.6.1", "0.6.2", "0.8.3"]
[[bug]]
id = "#1"
symptom = "It is lost."
bad = ["..0.6.1"]
good = ["0.6.2.."]
cells = ["{CELL}"]
"""


def install(cache: Path) -> None:
    """Environments that need no installation."""
    for release in RELEASES:
        python = cache / f"jax-{release.jax}-jaxlib-{release.jaxlib}-py3.12" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()


def test_the_command_makes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a journal that has all, so nothing runs."""
    monkeypatch.chdir(tmp_path)
    Path("list.toml").write_text(LIST)
    install(tmp_path / "cache")
    conditions = How(Path("log")).conditions(None)
    kept = Records(Path("journal.jsonl"), resume=False, conditions=conditions)
    for record in records(LOST, LOST, PASS, LOST):
        kept.add(record)
    kept.close()
    arguments = ["known-bugs", "--list=list.toml", "--environments=cache", "--journal=journal.jsonl", "--resume"]
    assert main([*arguments, "--markdown=page.md"]) == 1
    assert "ERROR: #1: JAX 0.8.3 is bad, not good: explain that as its 'deviation'" in capsys.readouterr().err
    assert "one run with each of 4 releases from 0.5.0 to 0.8.3" in " ".join(Path("page.md").read_text().split())
    assert main([*arguments, "0.6.1", "0.6.2"]) == 0
    assert "| #1 | 0.6.1 and older | 0.6.2 and newer | 0.6.1 | 0.6.2 | - |" in capsys.readouterr().out


@pytest.mark.parametrize("finished", [0, 2])
def test_an_interrupted_run_leaves_the_page(
    finished: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def probe(environment: Environment, cells: Sequence[str], **options: Any) -> Iterator[Probe]:
        if environment.release == RELEASES[finished]:
            raise KeyboardInterrupt
        yield Probe(cells[0], LOST)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tabulating, "probe", probe)
    Path("list.toml").write_text(LIST)
    Path("page.md").write_text("old")
    install(tmp_path / "cache")
    assert main(["known-bugs", "--list=list.toml", "--environments=cache", "--markdown=page.md"]) == 1
    error = capsys.readouterr().err
    assert "ERROR: the run was interrupted; --resume goes on\n" in error
    assert ("ERROR: page.md was not written, since not all cells ran with all releases\n" in error) == bool(finished)
    assert Path("page.md").read_text() == "old"


def test_a_platform_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command has no option for the platform."""

    def probe(*_: object, **options: Any) -> Iterator[Probe]:
        raise WrongPlatformError("planted")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tabulating, "probe", probe)
    Path("list.toml").write_text(LIST)
    install(tmp_path / "cache")
    assert main(["known-bugs", "--list=list.toml", "--environments=cache"]) == 2
    assert "ERROR: the cells cannot run here, and nothing was tested: planted\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[[bug]]", "[[bug", "is not TOML"),
        ("[[bug]]", "[other]", "has no [[bug]]"),
        ("symptom", "sympton", "bug 1: unknown key 'sympton'"),
        ('id = "#1"', "", "bug 1: 'id' is missing"),
        (f'cells = ["{CELL}"]', "", "bug 1: name its 'cells', or say in 'without_cells' why there are none"),
        ("..0.6.1", "0.7.0..0.6.1", "bug 1: '0.7.0..0.6.1' is no range of releases"),
        ("..0.6.1", "..new", "bug 1: 'new' is no version like 0.6.2"),
        ("grad.scan", "grad.scam", "scam"),
        ("[[bug]]", "[bug]", "'bug' is a table; write each bug as a table that begins with [[bug]]"),
        ("[[bug]]", "bug = 3\n[other]", "'bug' is a number, '3'; write each bug as"),
        ("[[bug]]", "bug = [3]\n[other]", "'bug' is a list; write each bug as"),
        ('["..0.6.1"]', "[3]", "bug 1: 'bad' holds a number, '3'; write a list of strings"),
        ('["..0.6.1"]', '"..0.6.1"', "bug 1: 'bad' is a string, '..0.6.1'; write a list of strings"),
        (f'["{CELL}"]', f'"{CELL}"', "bug 1: 'cells' is a string, "),
        ('id = "#1"', "id = 3", "bug 1: 'id' is a number, '3'; write a string"),
        ('id = "#1"', 'id = "#1"\nrefused = "no"', "bug 1: 'refused' is a string, 'no'; write true or false"),
        ('["0.5.0", "0.6.1", "0.6.2", "0.8.3"]', '"0.6.1"', "'releases' is a string, '0.6.1'; write a list of strings"),
    ],
)
def test_invalid_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str) -> None:
    file = tmp_path / "list.toml"
    file.write_text(LIST.replace(old, new, 1))
    assert main(["known-bugs", "--list", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ERROR: ")
    assert words in error


def test_a_page_that_cannot_be_written_is_refused_before_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.toml").write_text(LIST)
    assert main(["known-bugs", "--list=list.toml", "--markdown=none/page.md"]) == 2
    assert capsys.readouterr().err == "ERROR: there is no folder none for page.md: make it, or name another file\n"


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KnownBugsError, match="cannot be read: No such file"):
        load_known_bugs(tmp_path / "none.toml")
