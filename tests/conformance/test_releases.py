"""Older releases of JAX: what the suite does not ask of them, and the command `releases` with its table."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from results_fakes import ENTRY
from suite_runs import ROOT, Capture, Patch

from conformance.cases.harness.registry import COLLECTIVE_TIMEOUT_FLAGS
from conformance.cli import commands
from conformance.cli import releases as command
from conformance.engine import cell_runner
from conformance.engine.options import RunOptions
from conformance.engine.preparation import prepare
from conformance.expectations.entries import EXPECTATIONS, Expectation, Expectations, load_expectations
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import UnknownCellError, make_whole_plan, parse_cell
from conformance.planning.plan_file import read_plan
from conformance.releases import environments, trying
from conformance.releases.environments import Environment
from conformance.releases.table import table_of
from conformance.spec.package import COMMAND
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


def test_what_a_release_lacks_is_not_applicable(release: Any, monkeypatch: Patch) -> None:
    """A function of JAX, and a flag of XLA."""
    with monkeypatch.context() as older:
        older.delattr(jax, "no_tracing")
        older.delattr(jax.stages.Compiled, "output_formats")
        plan = make_whole_plan(["jax"], [Topology("cpu", 8)]).on_this_release()
    assert not [cell.id for cell in plan.cells if "/case.without_tracing." in cell.id]
    reasons = {cell.reason for cell in plan.ineligible}
    assert {
        f"JAX {jax.__version__} has no jax.{name}" for name in ("no_tracing", "stages.Compiled.output_formats")
    } <= reasons
    release("0.7.0")
    with pytest.raises(UnknownCellError, match=r"means nothing: the XLA of jaxlib 0\.7\.0 has no --xla_cpu_collective"):
        parse_cell("jax/io_callback/case.raises_before_collective.shard_map/cpu-8dev")


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
    (tmp_path / "mine.toml").write_text(ENTRY.format("jax/pure_callback/jit/cpu-1dev"))
    assert entries("--expectations", str(tmp_path / "mine.toml")) == 1
    # The list of old cells has all that is expected of them.
    cells = [cell.id for cell in read_plan(ROOT / "ci" / "old_releases.txt")]
    assert load_expectations(EXPECTATIONS / "cpu-old.toml").unmatched(cells) == ()


# The command `releases`.

CELLS = tuple(f"jax/pure_callback/{program}/cpu-1dev" for program in ("jit", "scan", "vmap", "grad"))
TRACEBACK = "Traceback (most recent call last):\n  a\nValueError: no"
RAISES = Outcome(Verdict.FAIL, Stage.CALLBACK, TRACEBACK, anomaly="error")
LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: <b>#1</b> | `x` at 0x7ff2e8b3f770", anomaly="lost")


def test_a_table_says_what_changed_when_and_goes_on(
    monkeypatch: Patch, wheels: Path, tmp_path: Path, capsys: Capture
) -> None:
    """A cell loses its callback up to 0.6.1, and another one by another error; one always raises."""
    ran: list[tuple[str, str]] = []

    def run(environment: Environment, cells: Mapping[str, int], *_: Any) -> Iterator[tuple[str, Outcome]]:
        for cell in cells:
            ran.append((environment.jax, cell))
            old = (
                {CELLS[0]: LOST, CELLS[2]: replace(LOST, reason="lost: another")} if environment.jax <= "0.6.1" else {}
            )
            yield cell, RAISES if cell == CELLS[3] else old.get(cell, Outcome(Verdict.PASS))

    monkeypatch.setattr(command, "run_cells", run)

    def table(*arguments: str) -> int:
        cells = [word for cell in CELLS for word in ("--cell", cell)]
        folders = ("--find-links", str(wheels), "--results", str(tmp_path / "results"))
        return commands.main(["releases", *arguments, *cells, *folders])

    assert table("0.6.1..0.6.2") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "4 cells with 2 releases of JAX: 2 changed, 2 never changed (1 pass, 1 fail at callback (err"
    )
    changed, never = printed.split("\n\n")[1:]
    assert changed.splitlines()[:3] == [
        "2 cells: fail at callback (lost) in 0.6.1; pass in 0.6.2",
        *(f"  {CELLS[0]}", f"    in 0.6.1: {LOST.reason}"),
    ]
    raised = f"fail at callback (error) in 0.6.1 to 0.6.2\n  {CELLS[3]}\n    in 0.6.1: ValueError: no\n"
    assert never == f"1 cell never passed: {raised}"
    assert ran == [(version, cell) for version in ("0.6.1", "0.6.2") for cell in CELLS]
    ran.clear()
    assert table("0.6.2..0.7.1", "--resume") == 1
    said = capsys.readouterr()
    # What ran before is not run again.
    assert ran == [("0.7.0", cell) for cell in CELLS]
    assert "ERROR: 0.7.1 was not tried to the end: JAX 0.7.1 cannot be installed: " in said.err
    assert "JAX 0.7.0, 2 of 3 releases\n" in said.err
    # Where releases are named, those between them may show more; of an open range, this Python has no newer ones.
    assert table("0.6.0", "0.6.2", "--resume") == 0
    ends = f"{CELLS[0]} --good 0.6.0 --bad 0.6.2 --find-links {wheels}\n"
    assert capsys.readouterr().out.endswith(f"\nto search the releases between: {COMMAND} bisect {ends}")
    assert table("0.6.3..0.6.9", "--resume") == 2
    nearest = "no release of JAX can be installed for 'jax>=0.6.3,<=0.6.9': the nearest: 0.6.2 and 0.7.0\n"
    assert capsys.readouterr().err.endswith(nearest)
    assert table("0.7.0..", "--resume") == 0
    assert "from 0.7.0 to 0.7.0, which are " in capsys.readouterr().err
    assert table("..0.5.3", "--resume") == 0
    assert "from 0.5.3 to 0.5.3, which are " in capsys.readouterr().err
    with (tmp_path / "results" / "runs.jsonl").open("a") as journal:
        journal.write('{"run": ["0.7.0"]}\n')
    assert table("0.6.0", "--resume") == 2
    assert "runs.jsonl, line 21 is no finished run (KeyError('outcome')): delete it, or" in capsys.readouterr().err
    (tmp_path / "results" / "runs.jsonl").unlink()
    assert [*tmp_path.rglob("environments-*")] == []
    file = tmp_path / "known.toml"
    for cells, jax_versions, words in (
        ("*/[jv]*", "<0.6.2", ""),
        ("*/[jv]*", "<0.6.1", "with 0.6.1: unexpected, fail at callback (lost): lost"),
        ("*", "<0.6.2", f"{CELLS[1]} with 0.6.1: unexpected pass, pass, not fail at callback"),
        ("none", "", "the expectation 'none' matches no cell of the table"),
    ):
        file.write_text(f'{ENTRY.format(CELLS[3])}{ENTRY.format(cells)}jax = "{jax_versions}"\n')
        assert table("0.6.1", "--expectations", str(file), "--resume") == bool(words)
        said = capsys.readouterr()
        assert words in said.err and f"\n  {CELLS[3]} (known: https://example.org/1)\n" in said.out


def test_what_a_release_lacks_is_no_change_and_each_group_that_changed_has_a_bisection() -> None:
    lacks, passes = Outcome(Verdict.UNSUPPORTED, None, "none", anomaly="not applicable"), Outcome(Verdict.PASS)
    columns = map(environments.Release, ("0.6.0", "0.6.2", "0.7.0"))
    ran = zip(columns, (lacks, lacks, passes), (passes, LOST, LOST), (passes, passes, LOST), strict=True)
    outcomes = {(one, cell): outcome for one, *three in ran for cell, outcome in zip(CELLS, three, strict=False)}
    made = table_of(outcomes, CELLS[:3], Expectations())
    assert made.changes == [(CELLS[1], "0.6.0", "0.6.2"), (CELLS[2], "0.6.2", "0.7.0")]
    assert made.summary().endswith(": 2 changed, 1 unsupported in some releases, 0 never changed.")
    assert "\n\n1 cell: unsupported (not applicable) in 0.6.0 to 0.6.2; pass in 0.7.0\n" in str(made)
    # A failure that is known to come by chance is no change, with its report; another failure is one.
    for verdict, counts in (("fail", "1 changed, 1 by chance, "), ("hang", "2 changed, ")):
        entry = Expectation((CELLS[1],), verdict, "Planted.", "a page", "2026-11-29", intermittent=True)
        made = table_of(outcomes, CELLS[:3], Expectations((entry,)))
        assert counts in made.summary()
        assert (f"  {CELLS[1]} (known to fail by chance: a page): pass in 0.6.0; fail" in str(made)) == (
            verdict == "fail"
        )


def test_a_python_that_cannot_be_had_is_not_blamed_on_jax(tmp_path: Path) -> None:
    """And of what uv says in a chain of causes, the first ones are told, not only how the last one ended."""
    installer = environments.Installer(tmp_path, str(tmp_path / "python3.99"))
    with pytest.raises(environments.ReleaseError) as raised:
        installer.environment(environments.Release("0.10.2"))
    said = str(raised.value)
    # The advice stands before causes that may be cut.
    assert said.startswith(f"Python {tmp_path}/python3.99 cannot be had; give --python the path of an interpreter: ")
    assert "JAX" not in said

    causes = "error: Request failed\n  cause: Failed to download `a`\n  cause: client error\n  cause: no name\n"
    ended = subprocess.CompletedProcess([], 1, "", causes)
    assert environments._complaint(ended) == "Request failed: Failed to download `a`: no name"


def test_without_uv_virtualenv_and_pip_make_environments(
    wheels: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setattr(environments, "_uv", lambda: None)
    installer = environments.Installer(tmp_path, find_links=wheels)
    assert [release.jax for release in installer.between("0.6.1", "0.7.0")] == ["0.6.1", "0.6.2", "0.7.0"]
    environments.check_tools()
    made = installer.environment(environments.Release("0.6.1"))
    assert (made.jax, made.jaxlib) == ("0.6.1", "0.6.1")
    with pytest.raises(environments.ReleaseError, match=r"0\.7\.2 cannot be installed: .*Python.*3\.99"):
        installer.environment(environments.Release("0.7.2"))
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda name: None)
    # Before anything else, such as whether there is such a cell.
    assert commands.main(["releases", "0.6.1", "-k", "nothing"]) == commands.main(["bisect", "-k", "nothing"]) == 2
    assert capsys.readouterr().err.count("uv makes the environments of releases, and is missing: ") == 2


def test_the_version_of_the_running_python_is_that_python(tmp_path: Path) -> None:
    """uv may not find it, and download another one."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert environments.Installer(tmp_path, version).python == sys.executable


def test_what_a_release_lacks_is_unsupported_and_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    """No worker is started for what it could not do in any case; the next run after a failure has a new one."""
    here = Environment.of(Path(environments.sys.executable), tmp_path / "packages")
    started: list[object] = []
    worker = cell_runner.start_group
    monkeypatch.setattr(cell_runner, "start_group", lambda *a, **k: started.append(a) or worker(*a, **k))

    def run(environment: Environment, cells: Mapping[str, int]) -> list[tuple[str, str]]:
        ran = trying.run_cells(environment, cells, 20.0, tmp_path / "log")
        return [(outcome.label, outcome.reason) for _, outcome in ran]

    old = replace(here, jax="0.6.2", jaxlib="0.6.2")
    assert run(old, {"hostcb/id_tap/jit/cpu-1dev": 1}) == [("unsupported", "hostcb needs JAX 0.10.2 or newer")]
    ((verdict, why),) = run(here, {"jax/pure_callback/pjit/cpu-2x2": 1})
    assert (verdict, why[:17]) == ("unsupported", "several processes")
    assert started == []
    fakes = {f"suite_fakes:FAILS_AFTER_ANOTHER/{name}/eager/cpu-1dev": 2 for name in ("id_tap", "call")}
    assert [label for label, _ in run(here, fakes)] == ["pass", "pass", "fail", "pass"]
    assert len(started) == 2
