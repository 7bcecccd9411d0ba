"""The command that makes a table: what it runs, what it keeps of an interrupted run, what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from release_table_fakes import CELLS, ENTRY, LOST, PASS, RELEASES

from conformance.cli import release_options
from conformance.cli import releases as command
from conformance.cli.commands import main
from conformance.expectations.entries import load_expectations
from conformance.oracle.verdicts import Outcome, Verdict
from conformance.releases import making, running, tabulating
from conformance.releases.environments import Environment, Environments
from conformance.releases.index import Index, Offer
from conformance.releases.probes import Probe
from conformance.releases.pythons import Interpreter
from conformance.releases.records import Record, Records
from conformance.releases.release import Release, ReleaseError, Skipped

pytestmark = pytest.mark.contract("C8")

ROOT = Path(__file__).parents[2]

# Running --------------------------------------------------------------------------------------------


class Installed(Environments):
    """Environments that need no installation."""

    def get(self, release: Release) -> Environment:
        if release == RELEASES[1]:
            raise ReleaseError(f"JAX {release.label} cannot be installed: planted")
        return Environment(release, Path(sys.executable))

    def has(self, release: Release) -> bool:
        return release in RELEASES


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """The probes that were made. They are interrupted where `interrupt` of this list is."""
    made: list[tuple[str, str]] = []

    def probe(environment: Environment, cells: Sequence[str], **options: Any) -> Iterator[Probe]:
        for cell in cells:
            made.append((environment.release.jax, cell))
            if (tmp_path / "interrupt").exists() and len(made) == 3:
                raise KeyboardInterrupt
            failed = environment.release < RELEASES[2] and "scan" in cell
            outcome = (
                Outcome(Verdict.HARNESS_ERROR, None, "Traceback\nplanted") if (tmp_path / "break").exists() else PASS
            )
            yield Probe(cell, LOST if failed else outcome)

    monkeypatch.setattr(tabulating, "probe", probe)
    monkeypatch.setattr(release_options, "Environments", lambda folder, python: Installed(tmp_path / "none", python))
    monkeypatch.chdir(tmp_path)
    return made


def options(*arguments: str) -> Any:
    import argparse

    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["releases", *arguments])


def chosen() -> list[str]:
    return [argument for cell in CELLS for argument in ("--cell", cell)]


def test_a_table_is_made(runs: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["releases", "0.8.3", "0.5.0", *chosen(), "--html", "page.html"]) == 0
    assert [release for release, _ in runs] == ["0.5.0"] * 3 + ["0.8.3"] * 3
    assert "3 cells with 2 releases of JAX: 2 changed, 1 never changed (1 pass)." in capsys.readouterr().out
    assert "fail (lost, callback)" in (tmp_path / "page.html").read_text()


def test_an_interrupted_table_goes_on(
    runs: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "interrupt").touch()
    assert main(["releases", "0.8.3", "0.5.0", *chosen()]) == 1
    interrupted = capsys.readouterr()
    assert "ERROR: the run was interrupted; --resume goes on" in interrupted.err
    assert "3 cells with 1 release" in interrupted.out
    (tmp_path / "interrupt").unlink()
    # The process was killed in the middle of a line.
    journal = tmp_path / "results" / "releases.jsonl"
    assert len(journal.read_text().splitlines()) == 2
    with journal.open("a") as file:
        file.write('{"release": {"jax": "0.5.0", "ja')
    runs.clear()
    assert main(["releases", "0.8.3", "0.5.0", *chosen(), "--resume"]) == 0
    assert runs == [("0.5.0", CELLS[2]), *(("0.8.3", cell) for cell in CELLS)]
    runs.clear()
    assert main(["releases", "0.8.3", "0.5.0", *chosen(), "--resume"]) == 0
    assert runs == []
    assert "3 cells with 2 releases of JAX: 2 changed" in capsys.readouterr().out


def test_a_new_table_keeps_the_journals_of_the_last_ones(runs: list[tuple[str, str]], tmp_path: Path) -> None:
    for version in ("0.6.2", "0.8.3", "0.5.0"):
        assert main(["releases", version, *chosen()]) == 0
    assert len(runs) == 9
    for name, version in (("releases.1.jsonl", "0.6.2"), ("releases.2.jsonl", "0.8.3"), ("releases.jsonl", "0.5.0")):
        lines = [json.loads(line) for line in (tmp_path / "results" / name).read_text().splitlines()]
        assert [(line["release"]["jax"], line["cell"]) for line in lines] == [(version, cell) for cell in CELLS]


def test_repeats_are_counted_when_it_goes_on(runs: list[tuple[str, str]]) -> None:
    main(["releases", "0.8.3", *chosen()])
    runs.clear()
    assert main(["releases", "0.8.3", *chosen(), "--resume", "--repeat", "3"]) == 0
    assert len(runs) == 6


@pytest.mark.parametrize("changed", [("--deadline", "61"), ("--stress",), ("--python", "3.12")])
def test_runs_of_other_options_are_not_mixed(
    changed: tuple[str, ...], runs: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A short deadline makes hangs that a longer one does not."""
    (tmp_path / "break").touch()
    main(["releases", "0.5.0", "0.8.3", *chosen()])
    (tmp_path / "break").unlink()
    capsys.readouterr()
    arguments = ["releases", "0.5.0", "0.8.3", *chosen(), "--resume"]
    runs.clear()
    assert main([*arguments, *changed]) == 0
    assert len(runs) == 6
    assert "harness_error" not in capsys.readouterr().out
    # What an error of the suite has left open is tried again; the others are known.
    runs.clear()
    assert main(arguments) == 0
    assert runs == [("0.5.0", CELLS[0]), *(("0.8.3", cell) for cell in CELLS)]


def test_a_release_that_cannot_be_installed_is_named(
    runs: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["releases", "0.6.1", "0.6.2", *chosen()]) == 1
    said = capsys.readouterr()
    assert said.err.endswith("ERROR: 0.6.1 was not tried to the end: JAX 0.6.1 cannot be installed: planted\n")
    assert "3 cells with 1 release of JAX: 0 changed" in said.out
    assert main(["releases", "0.6.1", *chosen()]) == 2
    assert capsys.readouterr().err.endswith("ERROR: JAX 0.6.1 cannot be installed: planted\n")


def test_errors_of_the_suite_are_told(
    runs: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "break").touch()
    assert main(["releases", "0.8.3", *chosen()]) == 1
    errors = capsys.readouterr().err.splitlines()[-3:]
    assert errors == [f"ERROR: {cell} with 0.8.3: the suite itself failed: planted" for cell in CELLS]


def test_expectations_decide(runs: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.toml").write_text(ENTRY.format(cells="*/scan/*", jax="<0.6.2"))
    arguments = ["releases", "0.5.0", "0.8.3", *chosen(), "--expectations", "old.toml"]
    assert main(arguments) == 0
    (tmp_path / "old.toml").write_text(ENTRY.format(cells="*/io_callback/scan/*", jax="<0.6.2"))
    assert main(arguments) == 1
    assert f"ERROR: {CELLS[1]} with 0.5.0: fail (lost, callback), not expected to fail" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name releases, like 0.6.2 0.7.0 or 0.6.0..0.8.3, or use --last 8"),
        (["0.7.9"], "JAX 0.7.9 cannot be installed: the index has no such release, which has 0.5.0 to 0.8.3"),
        (["0.8.3..0.5.0"], "0.8.3..0.5.0 is no range of releases: 0.5.0 is older than 0.8.3"),
        (["newest"], "'newest' is no version like 0.6.2"),
        (["0.8.3", "--cell", "jax/pure_callback/jti/cpu-1dev"], "unknown transform 'jti'"),
        (["0.8.3", "-k", "no_such_cell"], "no cell answers to that"),
        (["0.8.3", "-k", "jit", "--cell", CELLS[0]], "-k selects from the plan of this JAX"),
        (["0.8.3", "--plan", "none.txt"], "none.txt"),
        (["0.8.3", "--plan", "empty.txt", "--cell", CELLS[0]], "--cell and --plan cannot be used together"),
        (["0.8.3", "--plan", "empty.txt"], "empty.txt names no cell"),
        (["0.8.3", "--expectations", "none.toml"], "there is no none.toml"),
        (["0.8.3", "--html", "none/page.html"], "there is no folder none for page.html: make it, or name another file"),
        (["0.8.3", "--html", "."], ". is a folder: name a file in it"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    words: str,
    runs: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    versions = tuple(release.jax for release in RELEASES)
    offer = Offer(Interpreter(Path(sys.executable), sys.version_info[:2]), versions, versions)
    monkeypatch.setattr(release_options, "index", lambda python=None: Index((offer,)))
    (tmp_path / "empty.txt").write_text("# none\n")
    if not {"--cell", "-k", "--plan"} & {*arguments}:
        arguments = [*arguments, *chosen()]
    assert main(["releases", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ERROR: ")
    assert words in error
    assert error.count("\n") == 1
    assert runs == []


def test_ranges_and_the_newest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    versions = tuple(release.jax for release in RELEASES)
    offer = Offer(Interpreter(Path(sys.executable), (3, 11)), versions, versions, yanked=("0.6.0", "0.8.0"))
    monkeypatch.setattr(release_options, "index", lambda python=None: Index((offer,)))
    environments = Environments(tmp_path)
    found, left_out = release_options.releases_of(["0.5.0..0.6.2"], None, environments)
    assert found == [*RELEASES[:3]]
    assert left_out == [Skipped("0.6.0", "it was yanked, that is, withdrawn")]
    assert release_options.releases_of(["0.5.0:0.6.1"], 2, environments)[0] == [
        Release("0.5.0", "0.6.1"),
        *RELEASES[2:],
    ]


def test_fewer_releases_than_were_asked_for(
    runs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = tuple(release.jax for release in RELEASES[2:])
    offer = Offer(Interpreter(Path(sys.executable), (3, 11)), versions, versions)
    monkeypatch.setattr(release_options, "index", lambda python=None: Index((offer,)))
    assert main(["releases", "--last", "2", *chosen()]) == 0
    assert main(["releases", "--last", "3", *chosen()]) == 1
    assert "ERROR: only 2 of the 3 releases that --last asks for are there\n" in capsys.readouterr().err
    assert main(["releases", "0.6.2", *chosen()]) == 0


def test_a_cancelled_job_keeps_what_is_finished(tmp_path: Path) -> None:
    """The signal of a CI system that gives a job up."""
    program = (
        "import os, signal, sys\n"
        "from conformance.cli import releases\n"
        "with releases._sigterm_is_an_interrupt():\n"
        "    try: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except KeyboardInterrupt: sys.exit(7)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == 7
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] in "ZX"
    # The second where it ends between the opening and the reading.
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_an_interrupt_ends_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the processes that it has started. It would make the next environment for minutes."""
    interrupted: list[float] = []
    started = tmp_path / "started"
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {started}.new; mv {started}.new {started}; wait\n")
    uv.chmod(0o755)
    monkeypatch.setattr(making.shutil, "which", lambda name: str(uv))
    name = "jax-0.5.0-jaxlib-0.5.0-py{}.{}".format(*sys.version_info[:2])
    (tmp_path / "cache" / name / "bin").mkdir(parents=True)
    (tmp_path / "cache" / name / "bin" / "python").touch()

    def probe(*_: object, **options: Any) -> Iterator[Probe]:
        # Before it calls uv, the installation asks every interpreter of this machine.
        assert within(120, started.exists)
        interrupted.append(time.monotonic())
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(tabulating, "probe", probe)
    environments = Environments(tmp_path / "cache", sys.version_info[:2])
    records = Records(tmp_path / "journal", resume=False, conditions="")
    came = tabulating.tabulate(RELEASES, CELLS, environments, records, tabulating.How(tmp_path), lambda record: None)
    records.close()
    assert came == tabulating.Tried([], interrupted=True)
    assert time.monotonic() - interrupted[0] < 60
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [name]
    # The child of uv is no child of this process, so something else may still have to bury it.
    assert within(60, lambda: has_ended(int(started.read_text())))
    # Later installations are not refused.
    assert running.run(["true"], deadline=20).returncode == 0


def test_a_journal_of_something_else_is_not_read(tmp_path: Path) -> None:
    line = {"release": {"jax": "0.6.2", "jaxlib": "0.6.2"}, "cell": CELLS[0], "conditions": ""}
    outcome = PASS.as_json()
    changed = (
        {"release": 3},
        {"release": {"jax": "newest", "jaxlib": "0.6.2"}},
        {"release": {"jax": None, "jaxlib": "0.6.2"}},
        {"outcome": outcome | {"verdict": "splendid"}},
        {"outcome": outcome | {"stage": "splendid"}},
        {"outcome": "pass"},
        {},
    )
    lines = ['{"event": "begin"}', "[1]", "3", *(json.dumps(line | {"outcome": outcome} | one) for one in changed)]
    (tmp_path / "journal").write_text("\n".join(lines))
    records = Records(tmp_path / "journal", resume=True, conditions="")
    assert records.all == [Record(RELEASES[2], CELLS[0], Outcome.from_json(outcome))]
    records.close()


def test_a_journal_that_is_only_a_torn_line_goes_on(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text('{"release": {"jax": "0.5.0", "ja')
    for count in (0, 1):
        records = Records(tmp_path / "journal", resume=True, conditions="")
        assert len(records.all) == count
        records.add(Record(RELEASES[0], CELLS[0], PASS))
        records.close()


def test_expectations_of_old_releases_are_about_cells_of_their_list() -> None:
    cells = release_options.cells_of(options("--plan", str(ROOT / "ci" / "old_releases.txt")))
    assert 20 <= len(cells) <= 40
    entries = load_expectations(ROOT / "ci" / "expectations" / "cpu-old.toml")
    assert entries.unmatched(cells) == ()
