"""Bundles: every byte of one counts, and what its results say of themselves is judged again."""

from __future__ import annotations

import hashlib
import io
import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundle_fakes as fakes
import pytest

from conformance.bundles.archive import DIGEST, MANIFEST, VERSION, BadBundleError, pack, unpack
from conformance.bundles.making import members_of
from conformance.cli import commands
from conformance.spec import suite

pytestmark = pytest.mark.contract("C45")

ROOT = Path(__file__).parents[2]
RESULTS = "conformance-cpu.json"


@pytest.fixture
def bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert commands.main(["bundle", str(fakes.write(tmp_path / "results"))]) == 0
    capsys.readouterr()
    return tmp_path / "results" / "bundle.zip"


def verify(file: Path, *options: str) -> int:
    return commands.main(["verify", str(file), *options])


def rebuilt(members: dict[str, bytes]) -> bytes:
    """The archive of somebody who writes the hashes again as well."""
    return pack(members)[0]


def zipped(members: list[tuple[str, bytes]]) -> bytes:
    """The archive that any zip program writes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_bundle_is_verified_without_jax_and_from_another_folder(bundle: Path, tmp_path: Path) -> None:
    source = "import sys; sys.modules['jax'] = None; from conformance.cli.entry import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", source, "verify", bundle.name],
        cwd=bundle.parent,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "every byte as its manifest says" in ended.stdout
    assert "zero-copy      hostcb          run    earned: 2 of 2 cells pass" in ended.stdout


def test_any_zip_program_reads_it(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        manifest = archive.read(MANIFEST)
        digest = archive.read(DIGEST).decode()
    assert names == [MANIFEST, DIGEST, RESULTS, "environment.json", "journal-cpu.jsonl"]
    assert digest == f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n"
    assert [one["name"] for one in json.loads(manifest)["members"]] == names[2:]


def test_the_same_results_make_the_same_bytes(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "results")
    first = pack(members_of(folder))
    (folder / RESULTS).touch()
    assert pack(dict(reversed(members_of(folder).items()))) == first


def test_a_change_of_a_byte_of_a_member_is_refused(bundle: Path) -> None:
    """What only the zip format has, such as times, may change: nobody reads it."""
    data, whole = bundle.read_bytes(), unpack(bundle.read_bytes())
    for place in random.Random(0).sample(range(len(data)), 300):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        try:
            assert unpack(bytes(changed)) == whole
        except BadBundleError as error:
            assert str(error)


def test_every_truncation_is_refused(bundle: Path) -> None:
    data = bundle.read_bytes()
    for end in (*range(0, len(data), 97), *range(len(data) - 60, len(data))):
        with pytest.raises(BadBundleError):
            unpack(data[:end])


Change = Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]

CHANGES: dict[str, tuple[Change, str]] = {
    "data": (
        lambda found: [(n, c.replace(b'"pass"', b'"fail"', 1) if n == RESULTS else c) for n, c in found],
        f"{RESULTS} was changed",
    ),
    "manifest": (
        lambda found: [(n, c.replace(b'"bytes"', b'"bites"', 1) if n == MANIFEST else c) for n, c in found],
        f"{MANIFEST} was changed",
    ),
    "digest": (lambda found: [(n, c.upper() if n == DIGEST else c) for n, c in found], DIGEST),
    "added": (lambda found: [*found, ("notes.txt", b"")], "notes.txt is a member of the archive, and not in the man"),
    "removed": (lambda found: [one for one in found if one[0] != RESULTS], f"{RESULTS} is in the manifest"),
    "no manifest": (lambda found: [one for one in found if one[0] != MANIFEST], f"no member {MANIFEST}"),
    "renamed": (
        lambda found: [("results.json" if n == RESULTS else n, c) for n, c in found],
        f"{RESULTS} is in the manifest, and the archive has no such member",
    ),
    "swapped": (
        lambda found: [(n, dict(found)["environment.json"] if n == RESULTS else c) for n, c in found],
        f"{RESULTS} was changed",
    ),
    "parent folder": (lambda found: [*found, ("../evil.py", b"")], "'../evil.py'"),
    "absolute": (lambda found: [*found, ("/tmp/evil.py", b"")], "'/tmp/evil.py'"),
    "in a folder": (lambda found: [*found, ("a/b.json", b"")], "'a/b.json'"),
    "windows": (lambda found: [*found, ("C:\\evil.py", b"")], "evil.py"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_archive_of_the_members_is_refused(what: str, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = CHANGES[what]
    bundle.write_bytes(zipped(change([*members(bundle).items()])))
    assert verify(bundle) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ERROR: {bundle} is not genuine: ")
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", [RESULTS, MANIFEST])
def test_a_member_that_is_there_twice_is_refused(name: str, bundle: Path) -> None:
    found = [*members(bundle).items()]
    bundle.write_bytes(zipped([*found, (name, dict(found)[name])]))
    with pytest.raises(BadBundleError, match=f"{name} is in the archive twice"):
        unpack(bundle.read_bytes())


def test_a_member_that_claims_to_be_huge_is_not_read(bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    place = data.index(b"PK\1\2") + 24
    data[place : place + 4] = b"\xf0\xff\xff\xff"
    with pytest.raises(BadBundleError, match="claim more than"):
        unpack(bytes(data))


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip file", b"\0" * 1000])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file.zip").write_bytes(content)
    assert verify(tmp_path / "file.zip") == 2
    assert "no whole zip archive" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(tmp_path / "nothing.zip") == 2
    assert "ERROR: " in capsys.readouterr().err


def test_a_newer_archive_is_refused_in_words(bundle: Path) -> None:
    manifest = json.loads(members(bundle)[MANIFEST]) | {"version": VERSION + 1}
    text = json.dumps(manifest).encode()
    line = f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode()
    with pytest.raises(BadBundleError, match=f"has version {VERSION + 1}, and this reader knows {VERSION}"):
        unpack(zipped([*(members(bundle) | {MANIFEST: text, DIGEST: line}).items()]))


# Hashes that are right, of contents that are wrong ------------------------------------------------


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, bytes]], None]:
    def edited(found: dict[str, bytes]) -> None:
        results = json.loads(found[RESULTS])
        change(results)
        found[RESULTS] = json.dumps(results).encode()

    return edited


def set_cell(number: int, **fields: Any) -> Callable[[dict[str, bytes]], None]:
    return edit(lambda results: results["cells"][number].update(fields))


FAILS = {"verdict": "fail", "stage": "callback"}

CONTRADICTIONS: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "a failure as expected": (
        set_cell(0, **FAILS),
        f"{fakes.CORE} is stored as as_expected, and judged again it is un",
    ),
    "a pass as known": (set_cell(0, standing="known_failure"), "judged again it is as_expected"),
    "a better exit code": (
        edit(lambda results: (results["cells"][0].update(**FAILS, standing="unexpected"), results)),
        "the exit code is stored as 0, and it is 1",
    ),
    "a problem, and success": (edit(lambda results: results.update(problems=["x"])), "stored as 0, and it is 1"),
    "no cell, and success": (edit(lambda results: results.update(cells=[])), "stored as 0, and it is 2"),
    "a cell less": (edit(lambda results: results["cells"].pop()), "its cells are not those of its plan"),
    "a cell twice": (edit(lambda results: results["cells"].append(results["cells"][0])), "has the cell"),
    "no cell's id": (set_cell(0, id="hostcb/jit"), "is no id of a cell"),
    "an unknown verdict": (set_cell(0, verdict="fine"), "fine"),
    "a signal of its own": (set_cell(0, signal="SIGSEGV"), "SIGSEGV"),
    "a newer schema": (
        edit(lambda results: results.update(schema=2)),
        f"{RESULTS} has schema 2, and this reader knows 1",
    ),
    "no schema": (edit(lambda results: results.pop("schema")), f"{RESULTS} is no result of a run"),
    "another platform": (edit(lambda results: results.update(platform="tpu")), "holds the results of tpu"),
    "no run": (edit(lambda results: results.pop("run")), "does not say how its run was made"),
    "no results": (lambda found: found.pop(RESULTS), "holds no results"),
    "other known failures": (
        lambda found: found.update({"expectations-cpu.toml": b""}),
        "expectations-cpu.toml is not the text of known failures that the run used",
    ),
    "another environment": (lambda found: found.update({"environment.json": b"{}"}), "environment.json is not the env"),
    "no environment": (lambda found: found.pop("environment.json"), "environment.json is not the environment"),
    "a broken environment": (lambda found: found.update({"environment.json": b"{"}), "environment.json is no JSON"),
    "a stranger": (lambda found: found.update({"virus.exe": b"x"}), "virus.exe belongs to no result"),
    "a journal without the pass": (
        lambda found: found.update({"journal-cpu.jsonl": found["journal-cpu.jsonl"].split(b"\n", 1)[1]}),
        f"{fakes.CORE} is stored as a pass, and journal-cpu.jsonl has none of it",
    ),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_results_that_contradict_themselves_are_refused(
    what: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = CONTRADICTIONS[what]
    found = dict(unpack(bundle.read_bytes()).members)
    change(found)
    bundle.write_bytes(rebuilt(found))
    assert verify(bundle, "--json") == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert json.loads(captured.out)["genuine"] is False


def test_a_worse_exit_code_is_said_and_not_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A later version of the suite may know more reasons."""
    found = dict(unpack(bundle.read_bytes()).members)
    edit(lambda results: results.update(exit_code=1))(found)
    bundle.write_bytes(rebuilt(found))
    assert verify(bundle) == 0
    assert "exit code 0, DIFFERS: 1 is stored" in capsys.readouterr().out


def test_a_published_digest_shows_hashes_that_were_written_again(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = unpack(bundle.read_bytes()).digest
    assert verify(bundle, "--digest", published.upper()) == 0
    assert "NOTE" not in capsys.readouterr().out
    found = dict(unpack(bundle.read_bytes()).members)
    edit(lambda results: results.update(seconds=1.0))(found)
    bundle.write_bytes(rebuilt(found))
    assert verify(bundle) == 0
    assert "only a digest that was published elsewhere" in capsys.readouterr().out
    assert verify(bundle, "--digest", published) == 2
    assert "not the one that was published" in capsys.readouterr().err


# What a bundle holds ------------------------------------------------------------------------------


def test_known_failures_are_in_it_word_for_word(tmp_path: Path) -> None:
    known = "# A remark.\n" + fakes.KNOWN.format(cells="jax/*")
    folder = fakes.write(tmp_path / "r", outcomes={fakes.OF_JAX: fakes.failing()}, known=known)
    assert members_of(folder)["expectations-cpu.toml"].decode() == known


def test_the_environment_is_in_it(tmp_path: Path) -> None:
    environment = json.loads(members_of(fakes.write(tmp_path / "r"))["environment.json"])["cpu"]
    assert environment["topologies"]["cpu-1dev"]["device_kind"] == "cpu"
    for name in ("begin", "end", "command", "suite", "python", "packages", "plugin_modules", "host", "seed"):
        assert name in environment


def test_no_home_folder_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jane d\N{LATIN SMALL LETTER E WITH ACUTE}e")
    problem = f"{Path.home()}/project/x.py failed; {Path.home()}s"
    found = members_of(fakes.write(tmp_path / "r", problems=[problem]))
    assert json.loads(found[RESULTS])["problems"] == [f"~/project/x.py failed; {Path.home()}s"]


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_makes_one_too(tmp_path: Path) -> None:
    assert RESULTS in members_of(fakes.write(tmp_path / "r"))


def test_several_platforms_are_one_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fakes.write(tmp_path / "r")
    fakes.write(folder, cells=["hostcb/pure_callback/jit/tpu-1dev"], platform="tpu")
    output = tmp_path / "both.zip"
    assert commands.main(["bundle", str(folder), "--output", str(output)]) == 0
    capsys.readouterr()
    assert verify(output, "--json") == 0
    claimed = json.loads(capsys.readouterr().out)
    assert [run["platform"] for run in claimed["runs"]] == ["cpu", "tpu"]


def test_results_that_do_not_say_how_they_were_made_are_not_bundled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fakes.changed(fakes.write(tmp_path / "r"), lambda results: results.pop("run"))
    assert commands.main(["bundle", str(folder)]) == 2
    assert "does not say how its run was made" in capsys.readouterr().err
    assert not (folder / "bundle.zip").exists()


def test_no_results_are_not_bundled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["bundle", str(tmp_path)]) == 2
    assert "holds no conformance-PLATFORM.json" in capsys.readouterr().err


def test_results_that_were_edited_are_not_bundled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fakes.write(tmp_path / "r", outcomes={fakes.CORE: fakes.failing()})
    fakes.changed(folder, lambda results: results.update(exit_code=0))
    assert commands.main(["bundle", str(folder)]) == 2
    assert "cannot be bundled: conformance-cpu.json: the exit code" in capsys.readouterr().err


# Versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("jax", [True, False], ids=["with JAX", "without JAX"])
def test_version(jax: bool) -> None:
    gone = "" if jax else "sys.modules['jax'] = None; suite.installed = lambda package: None; "
    source = f"import sys; from conformance.spec import suite; {gone}from conformance.cli.entry import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", source, "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("conformance suite of hostcb 0.")
    assert [line.split()[0] for line in lines[1:]] == ["JAX", "jaxlib", "Python"]
    assert ("not installed" in ended.stdout) is not jax


def test_the_commit_is_the_checkouts_and_changes_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"rev-parse": "0123abcd", "status": " M conformance/x.py"}
    monkeypatch.setattr(suite, "_git", lambda command, *_: answers[command])
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    (tmp_path / ".git").touch()
    found = suite.this_suite.__wrapped__()
    assert (found.commit, found.changed) == ("0123abcd", True)
    assert found.words.endswith(", commit 0123abcd with uncommitted changes")
    (tmp_path / ".git").unlink()
    assert suite.this_suite.__wrapped__().commit is None


def test_a_file_that_is_not_there_is_named_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "bundle.zip"
    assert verify(missing) == 2
    assert capsys.readouterr().err == f"ERROR: {missing}: No such file or directory\n"
    assert verify(tmp_path) == 2
    assert capsys.readouterr().err == f"ERROR: {tmp_path}: Is a directory\n"


def test_the_printed_command_verifies_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = fakes.write(tmp_path / "results")
    assert commands.main(["bundle", str(results)]) == 0
    command = capsys.readouterr().out.splitlines()[-1].partition("`")[2].rstrip("`")
    _, _, arguments = command.partition(" verify ")
    assert commands.main(["verify", *arguments.split()]) in (0, 1)
