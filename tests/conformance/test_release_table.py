"""The command `releases`: what it runs, what it keeps, its table, what is judged, and the page of known bugs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from release_wheels import make_wheels

from conformance.cli import releases as command
from conformance.cli.commands import main
from conformance.engine import cell_runner
from conformance.expectations.entries import load_expectations
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import parse_cell
from conformance.planning.plan_file import read_plan
from conformance.releases import environments, trying
from conformance.releases.environments import Environment, Installer, Release, ReleaseError
from conformance.releases.known_bugs import Bug, KnownBugs, in_words, load_known_bugs, page
from conformance.reports.markup import text

pytestmark = pytest.mark.contract("C8")

ROOT = Path(__file__).parents[2]
CELLS = ("jax/pure_callback/jit/cpu-1dev", "jax/pure_callback/scan/cpu-1dev")
PASS = Outcome(Verdict.PASS)
LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: <b>#1</b> | `x` at 0x7ff2e8b3f770", anomaly="lost")
LACKS = Outcome(Verdict.UNSUPPORTED, None, "JAX 0.5.0 has none", anomaly="not applicable")
ERROR = Outcome(Verdict.HARNESS_ERROR)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheels(tmp_path_factory.mktemp("wheels") / "all")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What ran: a cell loses its callback up to 0.6.1."""
    found: list[tuple[str, str]] = []

    def run(environment: Environment, cells: Mapping[str, int], *_: Any) -> Iterator[tuple[str, Outcome]]:
        for cell in cells:
            found.append((environment.jax, cell))
            yield cell, LOST if environment.jax <= "0.6.1" and cell == CELLS[0] else PASS

    monkeypatch.setattr(command, "run_cells", run)
    return found


def table(wheels: Path, folder: Path, *arguments: str) -> int:
    cells = [word for cell in CELLS for word in ("--cell", cell)]
    return main(["releases", *arguments, *cells, "--find-links", str(wheels), "--results", str(folder)])


def test_a_table_says_what_changed_when_and_goes_on(
    ran: list[tuple[str, str]], wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(wheels, tmp_path, "0.6.0..0.6.2") == 0
    printed = capsys.readouterr().out
    assert "2 cells with 3 releases of JAX: 1 changed, 1 never changed (1 pass)." in printed
    assert "## 1 cell: fail (lost, callback), pass from 0.6.2" in printed
    assert "With 0.6.0: lost: " in printed and "<b>#1" not in printed
    assert ran == [(version, cell) for version in ("0.6.0", "0.6.1", "0.6.2") for cell in CELLS]
    ran.clear()
    assert table(wheels, tmp_path, "0.6.2..0.7.1", "--resume") == 1
    said = capsys.readouterr()
    # What ran before is not run again.
    assert ran == [("0.7.0", cell) for cell in CELLS]
    assert "ERROR: 0.7.1 was not tried to the end: JAX 0.7.1 cannot be installed: " in said.err
    assert "2 cells with 2 releases of JAX" in said.out
    assert [*tmp_path.glob("environments-*")] == []


@pytest.mark.parametrize(
    ("cells", "jax", "words"),
    [
        (CELLS[0], "<0.6.2", ""),
        (CELLS[0], "<0.6.1", "with 0.6.1: unexpected, fail (lost, callback): lost"),
        ("*", "<0.6.2", f"{CELLS[1]} with 0.6.0: unexpected pass, pass, not fail at callback"),
        ("none", "", "the expectation 'none' matches no cell of the table"),
        (CELLS[1], ">9", "is for JAX >9, and the table has no such release"),
    ],
)
def test_expectations_are_strict_both_ways(
    cells: str, jax: str, words: str, ran: object, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "known.toml"
    entry = (
        '[[expect]]\nverdict = "fail"\nstage = "callback"\nreason = "Planted."\nlink = "none"\nsince = "2026-11-23"\n'
    )
    file.write_text(f'{entry}cells = "{cells}"\njax = "{jax}"\n')
    assert table(wheels, tmp_path, "0.6.0", "0.6.1", "--expectations", str(file)) == bool(words)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name releases, like 0.6.2 0.7.0 or 0.6.0..0.8.3"),
        (["0.4.30"], "JAX 0.4.30 cannot be tried: the suite runs on JAX 0.4.31 and newer"),
        (["0.x"], "'0.x' is no version like 0.6.2"),
        (["0.6.0", "--markdown", "nowhere/page.md"], "there is no nowhere"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], words: str, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(wheels, tmp_path, *arguments) == 2
    assert words in capsys.readouterr().err


def test_virtualenv_and_pip_take_the_place_of_uv(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_uv", lambda: None)
    installer = Installer(tmp_path, find_links=wheels)
    assert [*installer.published("0.6.0", "0.6.2")] == ["0.6.2", "0.6.1", "0.6.0"]
    made = installer.environment(Release.parse("0.6.1:0.6.1"))
    assert (made.jax, made.jaxlib) == ("0.6.1", "0.6.1")
    with pytest.raises(ReleaseError, match=r"JAX 9\.9 cannot be installed: .*9\.9"):
        installer.environment(Release("9.9"))


def test_what_a_release_lacks_is_unsupported_and_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker is started for what it could not do in any case; the next run after a failure has a new one."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    here = Environment.of(Path(environments.sys.executable), tmp_path / "packages")
    started: list[object] = []
    worker = cell_runner.WorkerProcess
    monkeypatch.setattr(cell_runner, "WorkerProcess", lambda *a, **k: started.append(a) or worker(*a, **k))

    def run(environment: Environment, cells: Mapping[str, int]) -> list[tuple[str, str]]:
        ran = trying.run_cells(environment, cells, 20.0, tmp_path / "log")
        return [(outcome.label, outcome.reason) for _, outcome in ran]

    old = replace(here, jax="0.6.2", jaxlib="0.6.2")
    assert run(old, {"hostcb/id_tap/jit/cpu-1dev": 1}) == [("unsupported", "hostcb needs JAX 0.10.2 or newer")]
    assert started == []
    fakes = {f"implementation_fakes:FAILS_AFTER_ANOTHER/{name}/eager/cpu-1dev": 2 for name in ("id_tap", "call")}
    assert [label for label, _ in run(here, fakes)] == ["pass", "pass", "fail", "pass"]
    assert len(started) == 2


# Known bugs -----------------------------------------------------------------------------------------

VERSIONS = ("0.5.0", "0.6.1", "0.6.2", "0.8.3")
BUG = Bug("#1", "It is lost.", bad=("..0.6.1",), good=("0.6.2..",), cells=(CELLS[0],))


def outcomes(*found: Outcome) -> dict[tuple[Release, str], Outcome]:
    return {(Release(version), CELLS[0]): outcome for version, outcome in zip(VERSIONS, found, strict=True)}


def test_committed_lists_fit_together() -> None:
    """The page has the entries of the list, and their words; the outcomes were found by running the cells."""
    cells = [cell.id for cell in read_plan(ROOT / "ci" / "old_releases.txt")]
    assert load_expectations(ROOT / "ci" / "expectations" / "cpu-old.toml").unmatched(cells) == ()
    made = (ROOT / "docs" / "known-bugs.md").read_text()
    bugs = load_known_bugs(ROOT / "ci" / "known_bugs.toml").bugs
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
    made = page(KnownBugs(VERSIONS, (BUG,)), Path("bugs.toml"), outcomes(LOST, PASS, PASS, PASS)).replace("\\", "")
    assert "| #1 | 0.6.1 and older | 0.6.2 and newer | 0.5.0 | 0.6.1 to 0.8.3 | 0.6.1 |" in made
    assert "- 0.5.0: fail (lost, callback): lost: " in made
    assert "`x` at ...\n" in made
    assert "**Differs.** 0.6.1: good, not bad. (Not explained yet.)" in made


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("", r"there is no \[\[bug\]\]"),
        ("[[bug]]\nidd = 'a'", "bug 1: .*'idd'"),
        ("[[bug]]\nid = 'a'\nsymptom = 'b'\ncells = ['c']\nbad = ['x..0.5']", "'x' is no version"),
    ],
)
def test_invalid_lists(entry: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "bugs.toml").write_text(entry)
    with pytest.raises(ReleaseError, match=words):
        load_known_bugs(tmp_path / "bugs.toml")
