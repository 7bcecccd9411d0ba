"""The command `releases`: what it runs, what it keeps, its table, and what is judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from release_wheels import VERSIONS, make_wheels

from conformance.cli import releases as command
from conformance.cli.commands import main
from conformance.engine import cell_runner
from conformance.expectations.entries import load_expectations
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.plan_file import read_plan
from conformance.releases import installing, trying
from conformance.releases.installing import Environment, Installer, environment_of
from conformance.releases.release import Release, ReleaseError

pytestmark = pytest.mark.contract("C8")

ROOT = Path(__file__).parents[2]
CELLS = ("jax/pure_callback/jit/cpu-1dev", "jax/pure_callback/scan/cpu-1dev")
LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: <b>#1</b> | `x`", anomaly="lost")
ENTRY = """\
[[expect]]
cells = "{cells}"
verdict = "fail"
stage = "callback"
jax = "{jax}"
reason = "Planted."
link = "none"
since = "2026-11-23"
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheels(tmp_path_factory.mktemp("wheels") / "all")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What ran: a cell loses its callback up to 0.6.1."""
    found: list[tuple[str, str]] = []

    def run(environment: Environment, cells: Mapping[str, int], **_: Any) -> Iterator[tuple[str, Outcome]]:
        for cell, number in cells.items():
            for _run in range(number):
                found.append((environment.jax, cell))
                yield cell, LOST if environment.jax <= "0.6.1" and cell == CELLS[0] else Outcome(Verdict.PASS)

    monkeypatch.setattr(command, "run_cells", run)
    return found


def table(wheels: Path, folder: Path, *arguments: str) -> int:
    cells = [word for cell in CELLS for word in ("--cell", cell)]
    places = ["--find-links", str(wheels), "--journal", str(folder / "journal.jsonl")]
    return main(["releases", *arguments, *cells, *places])


def test_a_table_says_what_changed_when_and_goes_on(
    ran: list[tuple[str, str]], wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(wheels, tmp_path, "0.6.0..0.6.2", "--html", str(tmp_path / "page.html")) == 0
    printed = capsys.readouterr().out
    assert "2 cells with 3 releases of JAX: 1 changed, 1 never changed (1 pass)." in printed
    assert "## 1 cell: fail (lost, callback), pass from 0.6.2" in printed
    assert "<b>#1" not in (tmp_path / "page.html").read_text()
    assert ran == [(version, cell) for version in ("0.6.0", "0.6.1", "0.6.2") for cell in CELLS]
    ran.clear()
    # A process that was killed may have left half a line.
    with (tmp_path / "journal.jsonl").open("a") as journal:
        journal.write('{"run": ["0.7')
    assert table(wheels, tmp_path, "--last", "2", "0.7.1", "--resume") == 1
    said = capsys.readouterr()
    assert ran == [("0.7.0", cell) for cell in CELLS]
    assert "ERROR: 0.7.1 was not tried to the end: JAX 0.7.1 cannot be installed: " in said.err
    assert "2 cells with 2 releases of JAX" in said.out
    assert [*tmp_path.glob("environments-*")] == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (ENTRY.format(cells=CELLS[0], jax="<0.6.2"), ""),
        (ENTRY.format(cells=CELLS[0], jax="<0.6.1"), "with 0.6.1: fail (lost, callback), not expected to fail: lost"),
        (ENTRY.format(cells="*", jax="<0.6.2"), f"{CELLS[1]} with 0.6.0: pass, expected to fail: fail at callback"),
        (ENTRY.format(cells="none", jax=""), "the expectation 'none' matches no cell of the table"),
        (ENTRY.format(cells=CELLS[1], jax=">9"), "is for JAX >9, and the table has no such release"),
    ],
)
def test_expectations_are_strict_both_ways(
    entry: str, words: str, ran: object, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "known.toml"
    file.write_text(entry)
    assert table(wheels, tmp_path, "0.6.0", "0.6.1", "--expectations", str(file)) == bool(words)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name releases, like 0.6.2 0.7.0 or 0.6.0..0.8.3, or use --last 8"),
        (["0.4.30"], "JAX 0.4.30 cannot be tried: the suite runs on JAX 0.4.31 and newer"),
        (["0.7.0..0.6.0"], "is no range of releases: 0.6.0 is older than 0.7.0"),
        (["0.x"], "'0.x' is no version like 0.6.2"),
        (["0.6.0", "--markdown", "nowhere/page.md"], "nowhere/page.md cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], words: str, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(wheels, tmp_path, *arguments) == 2
    assert words in capsys.readouterr().err


def test_pip_takes_the_place_of_uv(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "_uv", lambda: None)
    installer = Installer(tmp_path, find_links=wheels)
    assert [*installer.published("0.6.0", "0.6.2")] == ["0.6.2", "0.6.1", "0.6.0"]
    made = installer.environment(Release("0.6.1", "0.6.1"))
    assert (made.jax, made.jaxlib) == ("0.6.1", "0.6.1")
    with pytest.raises(ReleaseError, match=r"JAX 9\.9 cannot be installed: .*9\.9"):
        installer.environment(Release("9.9"))
    assert VERSIONS[0] not in [*installer.published("0.6.0")]


def test_what_a_release_lacks_is_unsupported_and_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker is started for what it could not do in any case; the next run after a failure has a new one."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    here = environment_of(Path(installing.sys.executable), tmp_path / "packages")
    started: list[object] = []
    worker = cell_runner.WorkerProcess
    monkeypatch.setattr(cell_runner, "WorkerProcess", lambda *a, **k: started.append(a) or worker(*a, **k))

    def run(environment: Environment, cells: Mapping[str, int]) -> list[tuple[str, str]]:
        ran = trying.run_cells(environment, cells, deadline=20.0, log=tmp_path / "log")
        return [(outcome.label, outcome.reason) for _, outcome in ran]

    old = Environment(here.python, "0.6.2", "0.6.2", here.packages)
    assert run(old, {"hostcb/id_tap/jit/cpu-1dev": 1}) == [("unsupported", "hostcb needs JAX 0.10.2 or newer")]
    assert started == []
    fakes = {f"implementation_fakes:FAILS_AFTER_ANOTHER/{name}/eager/cpu-1dev": 2 for name in ("id_tap", "call")}
    assert [label for label, _ in run(here, fakes)] == ["pass", "pass", "fail", "pass"]
    assert len(started) == 2


def test_expectations_of_old_releases_are_about_cells_of_their_list() -> None:
    cells = [cell.id for cell in read_plan(ROOT / "ci" / "old_releases.txt")]
    assert 20 <= len(cells) <= 40
    assert load_expectations(ROOT / "ci" / "expectations" / "cpu-old.toml").unmatched(cells) == ()
