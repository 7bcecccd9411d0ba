"""The command `releases`: what it runs, what it keeps, its table, and what is judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from release_wheels import make_wheels

from conformance.cli import releases as command
from conformance.cli.commands import main
from conformance.engine import cell_runner
from conformance.expectations.entries import EXPECTATIONS, load_expectations
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.plan_file import read_plan
from conformance.releases import environments, trying
from conformance.releases.environments import Environment, Installer, Release, ReleaseError

pytestmark = pytest.mark.contract("C8")

ROOT = Path(__file__).parents[2]
CELLS = ("jax/pure_callback/jit/cpu-1dev", "jax/pure_callback/scan/cpu-1dev")
PASS = Outcome(Verdict.PASS)
LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: <b>#1</b> | `x` at 0x7ff2e8b3f770", anomaly="lost")


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
    assert "## 1 cell: fail at callback (lost), pass from 0.6.2" in printed
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
        (CELLS[0], "<0.6.1", "with 0.6.1: unexpected, fail at callback (lost): lost"),
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
        (["0.6.0", "--expectations", "nowhere.toml"], "there is no nowhere.toml"),
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


def test_the_list_of_old_cells_has_all_that_is_expected_of_them() -> None:
    cells = [cell.id for cell in read_plan(ROOT / "ci" / "old_releases.txt")]
    assert load_expectations(EXPECTATIONS / "cpu-old.toml").unmatched(cells) == ()
