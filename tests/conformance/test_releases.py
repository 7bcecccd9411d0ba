"""Older releases of JAX: what the suite does not ask of them, and the command `releases` with its table."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.interpreters import mlir
from suite_runs import ROOT, Capture, Patch

from conformance.cases.harness.catalogue import RUNTIME_TARGETS
from conformance.cases.harness.registry import COLLECTIVE_TIMEOUT_FLAGS
from conformance.cli import commands
from conformance.cli import releases as command
from conformance.engine import cell_runner
from conformance.engine.options import RunOptions
from conformance.engine.preparation import prepare
from conformance.expectations.entries import EXPECTATIONS, Expectations, load_expectations, read_entries
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import UnknownCellError, make_whole_plan, parse_cell
from conformance.planning.plan_file import read_plan
from conformance.releases import environments, trying
from conformance.releases.environments import Environment, Installer, Release, ReleaseError
from conformance.releases.table import table_of
from conformance.spec.topology import Topology
from conformance.spec.xla_flags import QUICK_COMPILATION, known, why_unknown
from conformance.worker.processes import worker_environment

pytestmark = pytest.mark.contract("C8")

ONE = Topology("cpu", 1)
LEVEL, EMITTERS, ONE_MODULE, UNTILED = QUICK_COMPILATION
installed = importlib.metadata.version


@pytest.fixture
def release(monkeypatch: Patch) -> Any:
    """Makes the installed JAX and jaxlib look like another release."""

    def pretend(version: str) -> None:
        versions = {"jax": version, "jaxlib": version}
        monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or installed(name))

    return pretend


def test_flags_by_version(release: Any) -> None:
    """An unknown flag of the user's is not swallowed."""
    for jaxlib, quick, collective in (
        ("0.4.31", (LEVEL,), False),
        ("0.5.0", (LEVEL, ONE_MODULE), False),
        ("0.7.2", (LEVEL, EMITTERS, ONE_MODULE), False),
        ("0.11.0", (LEVEL, EMITTERS, ONE_MODULE), True),
        ("0.13.0.dev20261122", (LEVEL, ONE_MODULE, UNTILED), True),
    ):
        assert known(QUICK_COMPILATION, jaxlib) == quick
        assert known(COLLECTIVE_TIMEOUT_FLAGS, jaxlib) == (COLLECTIVE_TIMEOUT_FLAGS if collective else ())
        assert bool(why_unknown(COLLECTIVE_TIMEOUT_FLAGS, jaxlib)) is not collective
        release(jaxlib)
        flags = worker_environment(ONE, (), {})["XLA_FLAGS"].split()
        assert flags == ["--xla_force_host_platform_device_count=1", *quick]
        assert EMITTERS in worker_environment(ONE, (), {"XLA_FLAGS": EMITTERS})["XLA_FLAGS"].split()


def reasons(part: str) -> set[str]:
    """Why cells with this in their id are not planned; none of them may be."""
    plan = make_whole_plan(["jax"], [Topology("cpu", 8)]).on_this_release()
    assert not [cell.id for cell in plan.cells if part in cell.id]
    return {cell.reason for cell in plan.ineligible if part in cell.id}


def test_what_a_release_lacks_is_not_applicable(release: Any, monkeypatch: Patch) -> None:
    """A flag of XLA, a function of JAX, and the ways to lower to a target of the runtime."""
    with monkeypatch.context() as older:
        older.delattr(jax, "no_tracing")
        assert reasons("/case.without_tracing.") == {f"JAX {jax.__version__} has no jax.no_tracing"}
        older.delattr(jax.ffi, "build_ffi_lowering_function")
        for target in RUNTIME_TARGETS:
            (reason,) = reasons(f"/{target}/")
            assert "build_ffi_lowering_function" in reason
    # As up to JAX 0.5.
    monkeypatch.setattr(mlir, "register_lowering", lambda prim, rule, platform=None: None)
    with pytest.raises(UnknownCellError, match="register_lowering"):
        parse_cell(f"jax/{next(iter(RUNTIME_TARGETS))}/case.short_result.jit/cpu-8dev")
    release("0.7.0")
    with pytest.raises(UnknownCellError, match=r"means nothing: the XLA of jaxlib 0\.7\.0 has no --xla_cpu_collective"):
        parse_cell("jax/io_callback/case.raises_before_collective.shard_map/cpu-8dev")


ENTRY = '[[expect]]\nverdict = "fail"\nstage = "callback"\nreason = "Planted."\nlink = "none"\nsince = "2026-11-23"\n'


@pytest.mark.contract("C7")
def test_known_failures_are_those_of_supported_releases(release: Any, tmp_path: Path, capsys: Any) -> None:
    def entries(*named: str) -> int:
        cell = ["run", "--cell", "jax/pure_callback/jit/cpu-1dev", "--results", "none"]
        return len(prepare(RunOptions.of(commands.parsed([*cell, *named])))._report.expectations.entries)

    release("0.10.2")
    assert entries() > 0
    assert "NOTE" not in capsys.readouterr().err
    release("0.7.0")
    assert entries() == 0
    assert capsys.readouterr().err == "NOTE: known failures are listed for JAX >=0.10.2, none for 0.7.0\n"
    # A file that somebody names is about what they run.
    (tmp_path / "mine.toml").write_text(f'{ENTRY}cells = "jax/pure_callback/jit/cpu-1dev"\n')
    assert entries("--expectations", str(tmp_path / "mine.toml")) == 1
    # The list of old cells has all that is expected of them.
    cells = [cell.id for cell in read_plan(ROOT / "ci" / "old_releases.txt")]
    assert load_expectations(EXPECTATIONS / "cpu-old.toml").unmatched(cells) == ()


# The command `releases`.

CELLS = ("jax/pure_callback/jit/cpu-1dev", "jax/pure_callback/scan/cpu-1dev")
LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: <b>#1</b> | `x` at 0x7ff2e8b3f770", anomaly="lost")


@pytest.fixture
def ran(monkeypatch: Patch) -> list[tuple[str, str]]:
    """What ran: a cell loses its callback up to 0.6.1."""
    found: list[tuple[str, str]] = []

    def run(environment: Environment, cells: Mapping[str, int], *_: Any) -> Iterator[tuple[str, Outcome]]:
        for cell in cells:
            found.append((environment.jax, cell))
            yield cell, LOST if environment.jax <= "0.6.1" and cell == CELLS[0] else Outcome(Verdict.PASS)

    monkeypatch.setattr(command, "run_cells", run)
    return found


def test_a_table_says_what_changed_when_and_goes_on(
    ran: list[tuple[str, str]], wheels: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Known failures are strict both ways."""

    def table(*arguments: str) -> int:
        cells = [word for cell in CELLS for word in ("--cell", cell)]
        folders = ("--find-links", str(wheels), "--results", str(tmp_path / "results"))
        return commands.main(["releases", *arguments, *cells, *folders])

    assert table("0.6.1..0.6.2") == 0
    printed = capsys.readouterr().out
    assert "2 cells with 2 releases of JAX: 1 changed, 1 never changed (1 pass)." in printed
    assert "## 1 cell: fail at callback (lost), pass from 0.6.2" in printed
    assert "<b>#1" not in printed
    assert ran == [(version, cell) for version in ("0.6.1", "0.6.2") for cell in CELLS]
    ran.clear()
    assert table("0.6.2..0.7.1", "--resume") == 1
    said = capsys.readouterr()
    # What ran before is not run again.
    assert ran == [("0.7.0", cell) for cell in CELLS]
    assert "ERROR: 0.7.1 was not tried to the end: JAX 0.7.1 cannot be installed: " in said.err
    assert "2 cells with 2 releases of JAX" in said.out
    assert [*tmp_path.rglob("environments-*")] == []
    file = tmp_path / "known.toml"
    for cells, jax_versions, words in (
        (CELLS[0], "<0.6.2", ""),
        (CELLS[0], "<0.6.1", "with 0.6.1: unexpected, fail at callback (lost): lost"),
        ("*", "<0.6.2", f"{CELLS[1]} with 0.6.1: unexpected pass, pass, not fail at callback"),
        ("none", "", "the expectation 'none' matches no cell of the table"),
        (CELLS[1], ">9", "is for JAX >9, and the table has no such release"),
    ):
        file.write_text(f'{ENTRY}cells = "{cells}"\njax = "{jax_versions}"\n')
        assert table("0.6.1", "--expectations", str(file), "--resume") == bool(words)
        assert words in capsys.readouterr().err


def test_what_a_known_failure_explains_by_chance_has_not_changed() -> None:
    """Only if one entry of chance, for all releases of the table, explains each outcome."""
    outcomes = {(Release("0.6.1"), CELLS[0]): LOST, (Release("0.6.2"), CELLS[0]): Outcome(Verdict.PASS)}
    for jax_versions, stage, chance in (("", "callback", True), ("<0.6.2", "callback", False), ("", "result", False)):
        text = ENTRY.replace("callback", stage) + f'cells = "jax/*"\njax = "{jax_versions}"\nintermittent = true\n'
        table = table_of(outcomes, CELLS[:1], Expectations(read_entries(text, "planted"))).markdown()
        assert ("0 changed, 1 by chance, 0 never changed." in table) is chance
        assert (
            "- `jax/pure_callback/jit/cpu-1dev`: fail at callback (lost) with 0.6.1, pass with 0.6.2" in table
        ) is chance
        assert ("1 changed, 0 never changed." in table) is not chance


def test_an_interrupted_table_says_how_much_has_run(
    wheels: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    def run(_: Environment, cells: Mapping[str, int], *__: Any) -> Iterator[tuple[str, Outcome]]:
        yield CELLS[0], LOST
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_cells", run)
    cells = [word for cell in CELLS for word in ("--cell", cell)]
    folders = ("--find-links", str(wheels), "--results", str(tmp_path))
    assert commands.main(["releases", "0.6.1", "0.6.2", *cells, *folders]) == 1
    assert "\n\nInterrupted: 1 of 4 runs. 2 cells with 1 release of JAX: " in capsys.readouterr().out


def test_each_known_failure_has_its_report_and_its_releases(
    ran: list[tuple[str, str]], wheels: Path, tmp_path: Path, capsys: Capture
) -> None:
    arguments = ("--known-failures", "--find-links", str(wheels), "--results", str(tmp_path))
    assert commands.main(["releases", "0.6.1..0.6.2", *arguments]) == 0
    entries, cells = load_expectations(EXPECTATIONS / "cpu.toml").entries, {cell for _, cell in ran}
    # One of each entry about JAX's own callbacks that the installed JAX's plan has.
    assert all(sum(entry.matches(cell) for cell in cells) <= 1 for entry in entries)
    rows = [line for line in capsys.readouterr().out.partition("## Known failures")[2].splitlines() if "jax/" in line]
    assert len(rows) == len(cells) > 30
    error = next(row for row in rows if "case.fails_in_a_while_loop" in row)
    assert error.startswith("| <https://github.com/jax-ml/jax/issues/34083> | `jax/pure_callback/")
    assert error.endswith("| pass with 0.6.1 to 0.6.2 |")
    assert "cpu-2x2" not in {cell.rpartition("/")[2] for cell in cells}
    assert commands.main(["releases", "0.6.2", "-k", "vmap", *arguments]) == 2
    assert "--known-failures chooses the cells: leave out --cell and -k" in capsys.readouterr().err


@pytest.mark.thorough
def test_virtualenv_and_pip_take_the_place_of_uv(wheels: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(environments, "_uv", lambda: None)
    installer = Installer(tmp_path, find_links=wheels)
    assert [*installer.published("0.6.0", "0.6.2")] == ["0.6.2", "0.6.1", "0.6.0"]
    made = installer.environment(Release.parse("0.6.1:0.6.1"))
    assert (made.jax, made.jaxlib) == ("0.6.1", "0.6.1")
    with pytest.raises(ReleaseError, match=r"JAX 9\.9 cannot be installed: .*9\.9"):
        installer.environment(Release("9.9"))


def test_what_a_release_lacks_is_unsupported_and_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    """No worker is started for what it could not do in any case; the next run after a failure has a new one."""
    here = Environment.of(Path(environments.sys.executable), tmp_path / "packages")
    started: list[object] = []
    worker = cell_runner.ProcessGroup
    monkeypatch.setattr(cell_runner, "ProcessGroup", lambda *a, **k: started.append(a) or worker(*a, **k))

    def run(environment: Environment, cells: Mapping[str, int]) -> list[tuple[str, str]]:
        ran = trying.run_cells(environment, cells, 20.0, tmp_path / "log")
        return [(outcome.label, outcome.reason) for _, outcome in ran]

    old = replace(here, jax="0.6.2", jaxlib="0.6.2")
    assert run(old, {"hostcb/id_tap/jit/cpu-1dev": 1}) == [("unsupported", "hostcb needs JAX 0.10.2 or newer")]
    assert started == []
    fakes = {f"implementation_fakes:FAILS_AFTER_ANOTHER/{name}/eager/cpu-1dev": 2 for name in ("id_tap", "call")}
    assert [label for label, _ in run(here, fakes)] == ["pass", "pass", "fail", "pass"]
    assert len(started) == 2
