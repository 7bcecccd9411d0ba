"""The command `bisect`: releases, scripts, the journal, what it says and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from releases_fakes import VERSIONS, FakeEnvironments, install

from conformance.bisecting.probe_journal import NAME, ProbeJournal
from conformance.cli.commands import main
from conformance.releases.release import Skipped
from conformance.releases.wheels import Wheels

pytestmark = pytest.mark.contract("C9")

CHANGED = """\
import os
new = os.environ["JAX"] >= "0.6.2"
print("new" if new else "old")
raise SystemExit(0 if new else 3)
"""


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> Any:
    """Runs the command with a script on releases that are fakes; returns the exit code and what was printed."""
    install(monkeypatch, tmp_path)

    def run(script: str, *arguments: str) -> tuple[int, str, str]:
        path = tmp_path / "script.py"
        path.write_text(script)
        code = main(["bisect", "--script", str(path), "--results", str(tmp_path / "results"), *arguments])
        return code, *capsys.readouterr()

    return run


# The command ----------------------------------------------------------------------------------------


def test_the_first_release_with_another_outcome(bisect: Any) -> None:
    code, printed, told = bisect(CHANGED, "--good", "0.5.3", "--bad", "0.7.2")
    assert code == 0
    assert "FOUND: 0.6.2 is the first that passes, after 0.6.1." in printed
    assert "0.6.1: exit 3, prints old  (3 of 3 runs)" in printed
    assert "0.6.2: exit 0, prints new  (3 of 3 runs)" in printed
    assert "0.5.3 0.6.0 0.6.1 0.6.2 0.7.0 0.7.1 0.7.2\n    A     A     A     .                 .\n" in printed
    assert "NOTE: --good and --bad are swapped: the end named good fails, and the other passes" in told


def test_a_good_end_that_is_newer_is_said(bisect: Any) -> None:
    code, printed, told = bisect(CHANGED, "--good", "0.7.2", "--bad", "0.5.3")
    assert code == 0
    assert "FOUND: 0.6.2 is the first that passes" in printed
    assert told.startswith("NOTE: the good end 0.7.2 is newer than the bad end 0.5.3: the search is for what mended it")
    assert "are swapped" not in told


def test_no_ends_are_the_whole_range(bisect: Any) -> None:
    script = 'import os; print(os.environ["JAX"] in ("0.6.1", "0.6.2"))'
    code, printed, _ = bisect(script)
    assert code == 0
    assert "FOUND: 0.6.1 is the first with another outcome, after 0.6.0." in printed
    assert "FOUND: 0.7.0 is the first with another outcome, after 0.6.2." in printed


def test_every_release_as_a_line_of_marks(bisect: Any) -> None:
    script = 'import os; raise SystemExit({"0.6.0": 1, "0.7.0": 2, "0.7.1": 125}.get(os.environ["JAX"], 0))'
    code, printed, _ = bisect(script, "--all")
    assert code == 0
    assert "    .     A     .     .     B     ?     .\n" in printed
    assert ". exit 0, prints nothing   A exit 1, prints nothing   B exit 2, prints nothing" in printed
    assert "outcome changes between 0.7.0 and 0.7.2; 0.7.1 could not be tested." in printed


def test_a_range_names_what_could_not_be_tested(bisect: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, (Skipped("0.6.3", "it was yanked"), Skipped("0.1 to 0.4.30 (99 releases)", "old")))
    FakeEnvironments.broken["0.6.2"] = "it cannot be installed: no wheel"
    script = 'import os; print("old" if os.environ["JAX"] < "0.6.2" else "new")'
    code, printed, _ = bisect(script, "--good", "0.5.3", "--bad", "0.7.2")
    assert code == 0
    assert "outcome changes between 0.6.1 and 0.7.0; 0.6.2 and 0.6.3 could not be tested." in printed
    assert "0.6.2: it cannot be installed: no wheel" in printed
    assert "0.6.3: it was yanked" in printed


def test_ends_that_do_not_differ_have_an_exit_code_of_their_own(bisect: Any) -> None:
    code, printed, _ = bisect("print(1)", "--good", "0.5.3", "--bad", "0.7.2")
    assert code == 1
    assert "NOTHING TO FIND: 0.5.3 and 0.7.2 do not differ" in printed


def test_what_comes_and_goes_is_measured(bisect: Any, tmp_path: Path) -> None:
    """A counter in a file is chance that tests can foresee: in newer releases every other run fails."""
    count = tmp_path / "count"
    script = f"""\
import os, pathlib
count = pathlib.Path({str(count)!r})
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
raise SystemExit(os.environ["JAX"] >= "0.7.1" and number % 2 == 0)
"""
    code, printed, _ = bisect(script, "--runs", "14", "--good", "0.6.2", "--bad", "0.7.2")
    assert code == 0
    assert "FOUND: 0.7.1 is the first that may fail, after 0.7.0." in printed
    assert "0.7.0: 0 of 14 fail (rate 0.000 to 0.315)" in printed
    assert "0.7.1: 7 of 14 fail" in printed
    code, printed, _ = bisect(script, "--runs", "4", "--good", "0.6.2", "--bad", "0.7.2")
    assert code == 3
    assert "CANNOT TELL: with confidence 0.99, so many runs of 0.6.2 and 0.7.2 may differ by chance" in printed


def test_it_goes_on_where_it_ended(bisect: Any, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    script = CHANGED.replace("import os", f'import os; open({str(ran)!r}, "a").write("x")')
    assert bisect(script)[0] == 0
    first, journal = len(ran.read_text()), tmp_path / "results" / NAME
    lines = journal.read_text().splitlines()
    assert len(lines) == first
    # The last line was torn when the machine was switched off.
    journal.write_text("\n".join(lines[:4]) + '\n{"probe": ["0.6')
    assert bisect(script, "--resume")[0] == 0
    assert len(ran.read_text()) == first + (first - 4)
    # With another script it is another question.
    assert bisect(script + "print()", "--resume")[0] == 0
    assert len(ran.read_text()) == first + (first - 4) + first
    # Without --resume nothing is overwritten.
    kept = journal.read_text()
    bisect(script)
    assert (tmp_path / "results" / "probes.1.jsonl").read_text() == kept


def test_runs_of_other_wheels_are_not_taken(bisect: Any, tmp_path: Path) -> None:
    """A rebuilt wheel has the version of the one before it, and so has what the index has."""
    ran, wheels = tmp_path / "ran", tmp_path / "wheels"
    script = CHANGED.replace("import os", f'import os; open({str(ran)!r}, "a").write(os.environ["JAX"] + " ")')
    arguments = ("--good", "0.6.1", "--bad", "0.6.2", "--runs", "2")

    def runs(*more: str) -> dict[str, int]:
        ran.write_text("")
        # So few runs cannot tell.
        assert bisect(script, *arguments, *more)[0] == 3
        return dict(Counter(ran.read_text().split()))

    wheels.mkdir()
    wheel = wheels / "jax-0.6.2-py3-none-any.whl"
    wheel.write_text("mine")
    assert runs("--wheels", str(wheels)) == {"0.6.1": 2, "0.6.2": 2}
    assert runs("--wheels", str(wheels), "--resume") == {}
    wheel.write_text("mended")
    assert runs("--wheels", str(wheels), "--resume") == {"0.6.2": 2}
    assert runs("--resume") == {"0.6.2": 2}
    assert runs("--resume") == {}


def test_mixtures_of_other_wheels_are_not_taken(bisect: Any, tmp_path: Path) -> None:
    ran, wheels = tmp_path / "ran", tmp_path / "wheels"
    note = f'open({str(ran)!r}, "a").write(os.environ["JAX"] + "+" + os.environ["JAXLIB"] + " ")'
    script = CHANGED.replace("import os", f"import os; {note}")
    wheels.mkdir()
    (wheels / "jax-0.7.2-py3-none-any.whl").touch()
    wheel = wheels / "jaxlib-0.6.2-py3-none-any.whl"
    for content in ("mine", "mended"):
        wheel.write_text(content)
        arguments = ("--good", "0.6.1", "--bad", "0.6.2", "--apart", "--wheels", str(wheels))
        ran.write_text("")
        resumed = ("--resume",) * (content == "mended")
        code, printed, _ = bisect(script, *arguments, *resumed)
        assert code == 0
        assert f"0.6.2, wheels {Wheels.within(wheels).hashed({'jaxlib': '0.6.2'})}: exit 0" in printed
        mixtures = {"0.6.1+0.6.2"} if resumed else {"0.6.1+0.6.2", "0.6.2+0.6.1"}
        assert {each for each in ran.read_text().split() if each.split("+")[0] != each.split("+")[1]} == mixtures


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--good", "0.6.9", "--bad", "0.7.2"], "there is no release 0.6.9 of JAX here; there are 0.5.3 to 0.7.2"),
        (["--good", "new", "--bad", "0.7.2"], "'new' is no version like 0.6.2: an end is a release of JAX"),
        (["--good", "0.7.2", "--bad", "0.7.2"], "--good and --bad are both 0.7.2"),
        (["--wheels", "nowhere"], "there is no folder nowhere with wheels"),
        (["--repo", "nowhere"], "--repo needs both ends: --good REV and --bad REV"),
        (["--repo", "nowhere", "--good", "a", "--bad", "b"], "there is no folder nowhere"),
        (["--repo", ".", "--all", "--good", "a", "--bad", "b"], "--all, --wheels and --apart are for releases"),
        (["--jaxlib", "0.6.0", "--apart"], "--jaxlib leaves no other jaxlib for --apart to try"),
        (["--resume"], "there is nothing to go on with"),
    ],
)
def test_bad_input_is_one_sentence(bisect: Any, arguments: list[str], words: str) -> None:
    code, printed, told = bisect("print(1)", *arguments)
    assert (code, printed) == (2, "")
    assert told.startswith("ERROR: ")
    assert words in told
    assert len(told.splitlines()) == 1


def test_an_end_that_an_unreachable_index_may_have(
    bisect: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path, unreachable="pip cannot connect to the package index (timed out)")
    code, _, told = bisect("print(1)", "--good", "0.6.9", "--bad", "0.7.2")
    assert code == 2
    assert "there are 0.5.3 to 0.7.2; pip cannot connect to the package index (timed out)\n" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is nothing to bisect"),
        (["--script", "nowhere.py"], "there is no script nowhere.py"),
        (["--script", "nowhere.py", "cell"], "--script and cells exclude each other"),
        (["jax/nothing/jit/cpu-1dev"], "jax has no callback 'nothing'"),
        (["-k", "and"], "a word is expected before 'and'"),
    ],
)
def test_what_is_no_question_is_one_sentence(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    install(monkeypatch, tmp_path)
    assert main(["bisect", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ERROR: ")
    assert words in told


def test_an_end_that_cannot_be_tested_is_named(bisect: Any) -> None:
    FakeEnvironments.broken["0.7.2"] = "JAX 0.7.2 cannot be installed: no wheel"
    code, printed, told = bisect("print(1)", "--good", "0.5.3", "--bad", "0.7.2")
    assert code == 2
    assert "ERROR: nothing can be found: 0.7.2 cannot be tested: JAX 0.7.2 cannot be installed: no wheel" in told
    assert "UNUSABLE: 0.7.2 cannot be tested, and is an end:" in printed
    assert "0.7.2: JAX 0.7.2 cannot be installed: no wheel" in printed


@pytest.mark.parametrize("option", ["--good", "--bad"])
def test_one_end_that_cannot_be_tested_has_no_other_in_its_place(option: str, bisect: Any) -> None:
    FakeEnvironments.broken["0.6.1"] = "no wheel"
    code, printed, told = bisect(CHANGED, option, "0.6.1")
    assert code == 2
    assert "UNUSABLE: 0.6.1 cannot be tested, and is an end:" in printed
    assert "ERROR: nothing can be found: 0.6.1 cannot be tested: no wheel" in told


def test_one_release_alone_is_compared_with_nothing(bisect: Any) -> None:
    FakeEnvironments.broken |= dict.fromkeys(VERSIONS[:-1], "no wheel")
    code, printed, told = bisect("print(1)", "--runs", "2")
    assert code == 2
    assert "  UNUSABLE: only 0.7.2 can be tested, and there is nothing to compare it with.\n" in printed
    assert printed.count("0.7.2: exit 0, prints 1") == 1
    assert "0.5.3: no wheel" in printed
    assert told.splitlines()[-1] == "ERROR: nothing can be found: only 0.7.2 can be tested"


def test_two_ends_that_cannot_be_tested_are_named(bisect: Any) -> None:
    FakeEnvironments.broken |= dict.fromkeys(("0.6.1", "0.6.2"), "no wheel")
    code, printed, _ = bisect("print(1)", "--good", "0.6.1", "--bad", "0.6.2")
    assert code == 2
    assert "UNUSABLE: 0.6.1 and 0.6.2 cannot be tested, and are the ends:" in printed


@pytest.mark.parametrize("new", ["0", "os.environ['JAX'] > '0.6.1'"])
def test_an_output_that_is_never_the_same(new: str, bisect: Any) -> None:
    """The end of the script may be; its output may be compared no more."""
    script = f"import os; print(os.urandom(8).hex()); raise SystemExit({new})"
    advice = (
        "measure with --runs 50 or --confidence 0.99, or with --compare verdict, which ignores what the script prints."
    )
    ends = ("--good", "0.6.1", "--bad", "0.6.2")
    code, printed, _ = bisect(script, *ends)
    assert code == 3
    assert advice in printed
    if new == "0":
        assert "or ignore what the script prints with --compare verdict." in bisect(script, *ends, "--runs", "6")[1]
    assert bisect(script, *ends, "--compare", "verdict")[0] == (1 if new == "0" else 0)


def test_an_end_of_a_script_that_is_not_always_the_same_is_only_measured(bisect: Any, tmp_path: Path) -> None:
    """In each release it fails the first time."""
    script = f"""\
import os, pathlib
ran = pathlib.Path({str(tmp_path)!r}) / ("ran-" + os.environ["JAX"])
first = not ran.exists()
ran.touch()
raise SystemExit(first)
"""
    code, printed, _ = bisect(script, "--good", "0.6.1", "--bad", "0.6.2")
    assert code == 3
    assert "did not do the same each time; measure with --runs 50 or --confidence 0.99." in printed


@pytest.mark.parametrize("confidence", ["abc", "nan", "0.4", "1"])
def test_what_is_no_confidence(confidence: str, bisect: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ending:
        bisect("print(1)", "--confidence", confidence)
    assert ending.value.code == 2
    assert f"{confidence!r} is no confidence like 0.99: it is from 0.5 to below 1" in capsys.readouterr().err


def test_jax_and_jaxlib_are_told_apart(bisect: Any) -> None:
    script = 'import os; print(os.environ["JAXLIB"] >= "0.6.2")'
    code, printed, _ = bisect(script, "--good", "0.6.0", "--bad", "0.7.0", "--apart")
    assert code == 0
    assert "APART: jaxlib brought the change." in printed
    assert "jax 0.6.2 with jaxlib 0.6.1 does what 0.6.1 does" in printed
    assert "jax 0.6.1 with jaxlib 0.6.2 does what 0.6.2 does" in printed
    FakeEnvironments.broken["0.6.1 with jaxlib 0.6.2"] = "they do not fit"
    script = script.replace("JAXLIB", "JAX")
    _, printed, _ = bisect(script, "--good", "0.6.0", "--bad", "0.7.0", "--apart")
    assert "APART: jax alone brings the change." in printed
    assert "jax 0.6.1 with jaxlib 0.6.2 cannot be tried: they do not fit" in printed


def test_one_jaxlib_for_all(bisect: Any) -> None:
    _, printed, _ = bisect(CHANGED.replace("JAX", "JAXLIB"), "--good", "0.6.0", "--bad", "0.7.0", "--jaxlib", "0.6.1")
    assert "NOTHING TO FIND: 0.6.0 and 0.7.0 do not differ" in printed
    assert "0.7.0 with jaxlib 0.6.1: exit 3, prints old" in printed


# A killed search ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sigint_reaches_programs")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_search_that_is_ended_keeps_its_probes_and_leaves_no_process(end: signal.Signals, tmp_path: Path) -> None:
    """The script hangs in the last release; what the load and the script started must end with the search."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "if os.environ['JAX'] == '0.7.2':\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        f"    open({str(tmp_path / 'hangs')!r}, 'w').close()\n"
        "    time.sleep(600)\n"
    )
    os.mkfifo(tmp_path / "hangs")
    program = (
        "import sys, pytest; from pathlib import Path; from releases_fakes import install\n"
        "from conformance.cli.commands import main\n"
        f"install(pytest.MonkeyPatch(), Path({str(tmp_path)!r}))\n"
        f"sys.exit(main(['bisect', '--script', {str(script)!r}, '--results', {str(tmp_path)!r}, '--stress']))"
    )
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        # Opening a pipe waits until the script has opened it, too.
        with (tmp_path / "hangs").open():
            pass
        process.send_signal(end)
        _, told = process.communicate(timeout=60)
    finally:
        # What it has started ends with it.
        process.kill()
    assert process.returncode == 130
    assert "--resume goes on with them" in told
    assert [json.loads(line)["probe"][0] for line in (tmp_path / NAME).read_text().splitlines()] == ["0.5.3"]
    with pytest.raises(ProcessLookupError):
        # The search has waited for its end.
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_full_disk_ends_the_search(bisect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that cannot be kept is no release that cannot be tested."""

    def write(journal: ProbeJournal, *_: object) -> None:
        journal._file.close()
        journal._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
        kept(journal, *_)

    kept: Any = ProbeJournal.add
    monkeypatch.setattr(ProbeJournal, "add", write)
    code, printed, told = bisect("print(1)")
    assert (code, printed) == (2, "")
    assert told.splitlines()[-1].startswith("ERROR: the probe cannot be written to ")
    assert told.splitlines()[-1].endswith("No space left on device")
