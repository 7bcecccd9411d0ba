"""The parts of a bisection: scripts, outcomes, the journal, the line of releases, wheels, what is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.bisecting import apart, findings, subjects
from conformance.bisecting.bisection import Answer, Change, Kind
from conformance.bisecting.candidates import line_of
from conformance.bisecting.evidence import Relation, Rule
from conformance.bisecting.findings import Place
from conformance.bisecting.probe_journal import ProbeJournal
from conformance.bisecting.samples import Sample, sample_of
from conformance.bisecting.scripts import run_script
from conformance.engine.tasks import Task
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.releases import environments, making
from conformance.releases import wheels as wheel_releases
from conformance.releases.environments import Environments
from conformance.releases.pythons import Interpreter
from conformance.releases.release import Release, ReleaseError, Skipped
from conformance.releases.wheels import WheelEnvironments, Wheels
from conformance.worker.processes import OtherPython

pytestmark = pytest.mark.contract("C9")


@pytest.mark.parametrize(
    ("source", "words", "passed"),
    [
        ("print(1); print(2)", "exit 0, prints 1 | 2", True),
        ("", "exit 0, prints nothing", True),
        ("raise SystemExit(7)", "exit 7, prints nothing", False),
        ("import os; print(3); os.abort()", "crash(SIGABRT), prints 3", False),
        ("while True: pass", "hang", False),
        ("1 / 0", "exit 1, prints nothing", False),
    ],
)
def test_the_outcome_of_a_script(source: str, words: str, passed: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    sample = run_script(script, Path(sys.executable), environment, 0.3 if words == "hang" else 30.0)
    assert (sample.words, sample.passed, sample.untestable) == (words, passed, False)
    alone = run_script(script, Path(sys.executable), environment, 0.3 if words == "hang" else 30.0, end_alone=True)
    assert alone.words == words.partition(",")[0]


def test_different_long_outputs_are_different(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    found = []
    for last in "ab":
        script.write_text(f"print('x' * 500 + {last!r})")
        found.append(run_script(script, Path(sys.executable), {}, 30.0))
    assert found[0].words != found[1].words
    assert max(len(sample.words) for sample in found) < 120


def test_a_script_ends_with_a_search_that_is_killed(tmp_path: Path) -> None:
    """Its end of the pipe closes when it ends."""
    script = tmp_path / "script.py"
    script.write_text("import os, time; os.write(2, b'.'); time.sleep(600)")
    program = (
        "import sys; from pathlib import Path; from conformance.bisecting import scripts\n"
        "scripts.subprocess.PIPE = None\n"
        f"scripts.run_script(Path({str(script)!r}), Path(sys.executable), {{}}, 600.0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    search = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE)
    assert search.stderr is not None
    with search.stderr as errors:
        assert errors.read(1) == b"."
        search.kill()
        assert errors.read() == b""
    search.wait()


def test_what_a_script_starts_ends_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import subprocess, sys; subprocess.Popen(['sleep', '600'], stdout=sys.stderr); print('done')")
    assert run_script(script, Path(sys.executable), {**os.environ}, 0.5).words == "hang"


def test_what_a_script_starts_in_another_session_does_not_hold_the_search(tmp_path: Path) -> None:
    """It lives on, with the script's own pipe."""
    script, alive = tmp_path / "script.py", tmp_path / "alive"
    script.write_text(
        "import subprocess\n"
        "other = subprocess.Popen(['sleep', '30'], start_new_session=True)\n"
        f"open({str(alive)!r}, 'w').write(str(other.pid))\n"
        "print('begun', flush=True)\n"
        "while True: pass\n"
    )
    begin = time.monotonic()
    try:
        sample = run_script(script, Path(sys.executable), {**os.environ}, 1.0)
    finally:
        os.kill(int(alive.read_text()), signal.SIGKILL)
    assert (sample.words, sample.detail) == ("hang", "begun")
    assert time.monotonic() - begin < 20


class SpoiltByFailures:
    """Runs no cell: `io_callback` always fails, and in its process every other cell does so from then on."""

    def __init__(self, log: Path, python: OtherPython) -> None:
        del log, python
        self.spoilt = False

    def run(self, task: Task) -> tuple[Outcome, tuple[Task, ...]]:
        assert not self.spoilt, "a cell runs in the process of a cell that has failed"
        self.spoilt = "io_callback" in task.id
        return Outcome(Verdict.FAIL, Stage.CALLBACK) if self.spoilt else Outcome(Verdict.PASS), ()

    def abandon(self) -> None:
        self.spoilt = False

    def finish(self) -> None:
        pass


def test_a_failed_run_leaves_nothing_for_the_next_run_of_any_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after many failures, and between the cells."""
    monkeypatch.setattr(subjects, "CellRunner", SpoiltByFailures)
    cells = ("jax/io_callback/jit/cpu-1dev", "jax/pure_callback/jit/cpu-1dev")
    site = subjects.Site(OtherPython(Path(sys.executable), "0.10.2", ()), "0.10.2")
    ran = [*subjects.Cells(cells, 20.0, tmp_path / "log").ask(site, cells, 8)]
    assert [sample.passed for _, sample in ran] == [False] * 8 + [True] * 8


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(Verdict.PASS), "pass"),
        (Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: #1", anomaly="lost"), "fail at callback (lost)"),
        (Outcome(Verdict.CRASH, Stage.DISPATCH, "", signal="SIGABRT"), "crash(SIGABRT) at dispatch"),
        (
            Outcome(Verdict.UNSUPPORTED, Stage.COMPILE, "", anomaly="unsupported"),
            "unsupported at compile (unsupported)",
        ),
    ],
)
def test_the_outcome_of_a_cell_has_verdict_stage_and_anomaly(outcome: Outcome, words: str) -> None:
    assert sample_of(outcome).words == words
    assert sample_of(outcome, verdict_alone=True).words == words.partition(" ")[0]


def test_what_shows_nothing_about_a_release_is_no_outcome() -> None:
    lacking = sample_of(Outcome(Verdict.UNSUPPORTED, None, "JAX 0.5.0 has no such thing", anomaly="not applicable"))
    broken = sample_of(Outcome(Verdict.HARNESS_ERROR, None, "Traceback\n  File\nKeyError: 1"))
    assert (lacking.untestable, lacking.words) == (True, "JAX 0.5.0 has no such thing")
    assert (broken.untestable, broken.words) == (True, "the suite failed: KeyError: 1")


def test_the_journal_is_written_before_the_next_probe(tmp_path: Path) -> None:
    journal = ProbeJournal(tmp_path, resume=False)
    journal.add(Sample("pass", True, "", 0.5), "0.6.0", "cell", "deadline 60")
    journal.add(Sample("it cannot be installed", untestable=True), "0.6.1", "cell", "deadline 60")
    # It is still open, as when the process is killed here.
    again = ProbeJournal(tmp_path, resume=True)
    again.close()
    assert again.known("0.6.0", "cell", "deadline 60") == [Sample("pass", True, "", 0.5)]
    assert again.known("0.6.0", "cell", "deadline 9") == []
    # It may be possible to install it now.
    assert again.known("0.6.1", "cell", "deadline 60") == []
    journal.close()


def test_one_end_alone_is_searched_from_to_the_newest() -> None:
    releases = [Release(version, version) for version in ("0.6.0", "0.6.1", "0.6.2")]
    names = [place.name for place in line_of(releases, (), "0.6.1", None).places]
    assert names == ["0.6.1", "0.6.2"]
    assert [place.name for place in line_of(releases, (), None, "0.6.2").places] == ["0.6.0", "0.6.1", "0.6.2"]
    with pytest.raises(ReleaseError, match=r"JAX 0\.6\.3 cannot be an end: it was yanked"):
        line_of(releases, [Skipped("0.6.3", "it was yanked")], "0.6.0", "0.6.3")


def test_the_newest_release_is_the_newest_that_can_be_installed() -> None:
    releases = [Release(version, version) for version in ("0.6.0", "0.6.1", "0.6.2")]
    skipped = [Skipped("0.6.3", "it needs Python >=3.99")]
    line = line_of(releases, skipped, None, "0.6.2")
    assert [place.name for place in line.places] == ["0.6.0", "0.6.1", "0.6.2"]
    assert line.named == (2,)
    line = line_of(releases, skipped, "0.6.1", None)
    assert [place.name for place in line.places] == ["0.6.1", "0.6.2", "0.6.3"]
    assert line.named == (0,)


def test_wheels_of_a_folder_are_releases(tmp_path: Path) -> None:
    for name in (
        "jax-0.13.0.dev20261101-py3-none-any.whl",
        "jax-0.13.0.dev20261102-py3-none-any.whl",
        "jaxlib-0.13.0.dev20261101-cp312-cp312-manylinux_2_27_x86_64.whl",
        "jaxlib-0.13.0.dev20261101-cp311-cp311-manylinux_2_27_x86_64.whl",
        "numpy-2.0-py3-none-any.whl",
        "jax-notes.txt",
    ):
        (tmp_path / name).touch()
    wheels = Wheels.within(tmp_path)
    older, newer = "0.13.0.dev20261101", "0.13.0.dev20261102"
    assert wheels.jaxlib[older] == {(3, 11), (3, 12)}
    released = Release("0.12.0.1", "0.12.0.1")
    assert wheels.beside([released]) == (released, Release(older, older), Release(newer, older))
    skipped = [Skipped(newer, "it needs Python >=3.99"), Skipped("0.12.5", "it was yanked")]
    line = line_of(wheels.beside([released]), skipped, None, None)
    assert [place.name for place in line.places] == ["0.12.0.1", "0.12.5", older, newer]


def test_wheels_of_a_folder_are_not_taken_for_the_release_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, here = Release("0.7.0", "0.7.0"), Interpreter(Path(sys.executable), sys.version_info[:2])
    made: list[tuple[str, ...]] = []

    def make(release: Release, python: Interpreter, folder: Path, first: tuple[str, ...] = ()) -> None:
        made.append(first)
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(python.path)

    for module in (environments, wheel_releases):
        monkeypatch.setattr(module, "make", make)
    monkeypatch.setattr(wheel_releases, "pythons", lambda: [here])
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    cache, folder = tmp_path / "cache", tmp_path / "wheels"
    Environments(cache, here.version).get(release)
    folder.mkdir()
    jax, jaxlib = folder / "jax-0.7.0-py3-none-any.whl", folder / "jaxlib-0.7.0-py3-none-any.whl"
    for text in ("mine", "mended", "mended"):
        jax.write_text(text)
        jaxlib.write_text("the same")
        found = WheelEnvironments(Wheels.within(folder), cache).get(release)
        assert "-wheels-" in str(found.python)
    links = ("--no-index", "--no-deps", "--find-links", str(folder), "jax==0.7.0", "jaxlib==0.7.0")
    assert made == [(), links, links]
    assert [entry.release for entry in Environments(cache).entries()] == [release] * 3
    assert "-wheels-" not in str(Environments(cache, here.version).get(release).python)


def test_the_users_own_folders_of_wheels_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jax-0.7.0-py3-none-any.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", "/mine https://example.org/wheels")
    for _ in range(2):
        WheelEnvironments(Wheels.within(tmp_path), tmp_path / "cache")
        assert os.environ["PIP_FIND_LINKS"] == f"/mine https://example.org/wheels {tmp_path}"


def test_wheels_of_a_folder_are_installed_before_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise pip would take the index's wheel of the same version."""
    installed: list[tuple[str, ...]] = []

    def installing(python: Path, folder: Path, packages: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        installed.append(packages)
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(making.shutil, "which", lambda name: None)
    monkeypatch.setattr(making, "installing", installing)
    monkeypatch.setattr(making, "_try_out", lambda release, folder: None)
    here = Interpreter(Path(sys.executable), sys.version_info[:2])
    making.make(Release("0.7.0", "0.7.0"), here, tmp_path, ("--no-index", "jax==0.7.0"))
    assert installed == [("--no-index", "jax==0.7.0"), ("jax==0.7.0", "jaxlib==0.7.0", *making.BESIDE_JAX)]


def test_cells_with_the_same_answer_are_told_once() -> None:
    places = [Place(str(index), str(index)) for index in range(2)]
    answer = Answer(Kind.FOUND, 0, 1, (Change(0, 1),))
    runs = {0: [Sample("pass", True)], 1: [Sample("fail", detail="lost: #1\nmore")]}
    text = findings.report(dict.fromkeys(["one", "two"], answer), dict.fromkeys(["one", "two"], runs), places, Rule())
    assert text.startswith("one\ntwo\n  FOUND: 1 is the first that fails, after 0.\n")
    assert text.count("FOUND") == 1


@pytest.mark.parametrize(
    ("of_jax", "of_jaxlib", "words"),
    [
        (Relation.NEW, Relation.OLD, "jax brought the change"),
        (Relation.OLD, Relation.NEW, "jaxlib brought the change"),
        (Relation.NEW, Relation.NEW, "either of jax and jaxlib brings the change"),
        (Relation.OLD, Relation.OLD, "only jax and jaxlib together bring the change"),
        # With one mixture alone.
        (Relation.NEW, None, "jax alone brings the change"),
        (Relation.OLD, None, "jaxlib brought the change, or only jax and jaxlib together do"),
        (None, Relation.NEW, "jaxlib alone brings the change"),
        (Relation.UNCLEAR, Relation.OLD, "jax brought the change, or only jax and jaxlib together do"),
        (Relation.OWN, Relation.UNCLEAR, "jax and jaxlib cannot be told apart"),
        (None, None, "jax and jaxlib cannot be told apart"),
    ],
)
def test_one_mixture_alone_shows_less(of_jax: Relation | None, of_jaxlib: Relation | None, words: str) -> None:
    old, new = Release("0.6.1", "0.6.1"), Release("0.6.2", "0.6.2")
    mixed = apart.Mixed(apart.NEW_JAX, of_jax), apart.Mixed(apart.NEW_JAXLIB, of_jaxlib)
    assert apart.verdict(old, new, *mixed)[0] == f"APART: {words}."


def test_exit_codes_of_several_cells() -> None:
    found, same = Answer(Kind.FOUND, 0, 1), Answer(Kind.SAME, 0, 1)
    unclear, unusable = Answer(Kind.CANNOT_TELL, 0, 1), Answer(Kind.UNTESTABLE, 0, 1)
    assert findings.exit_code([same, found, unclear]) == 0
    assert findings.exit_code([same, unusable, unclear]) == 3
    assert findings.exit_code([same, unusable]) == 2
    assert findings.exit_code([same, same]) == 1
