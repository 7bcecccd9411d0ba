"""Bundles: every byte of one counts, and what its results say of themselves is judged again."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundle_fakes as fakes
import pytest

from conformance.bundles.archive import SUMS, BadBundleError, Bundle, bundle_of, unpack
from conformance.cli import commands

pytestmark = pytest.mark.contract("C45")

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
    return Bundle(members).packed()


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


def test_a_change_of_a_byte_of_a_member_is_refused(bundle: Path) -> None:
    """What only the zip format has, such as times, may change: nobody reads it."""
    data, whole = bundle.read_bytes(), unpack(bundle)
    for place in random.Random(0).sample(range(len(data)), 300):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        try:
            assert unpack(io.BytesIO(changed)) == whole
        except BadBundleError as error:
            assert str(error)


Change = Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]

CHANGES: dict[str, tuple[Change, str]] = {
    "data": (
        lambda found: [(n, c.replace(b'"pass"', b'"fail"', 1) if n == RESULTS else c) for n, c in found],
        f"{RESULTS} was changed",
    ),
    "sums": (lambda found: [(n, c.upper() if n == SUMS else c) for n, c in found], "was changed, added or removed"),
    "order": (
        lambda found: [(n, b"".join(c.splitlines(True)[::-1]) if n == SUMS else c) for n, c in found],
        f"{SUMS} was changed",
    ),
    "added": (lambda found: [*found, ("notes.txt", b"")], "notes.txt was changed, added or removed"),
    "removed": (lambda found: [one for one in found if one[0] != RESULTS], f"{RESULTS} was changed, added or removed"),
    "no sums": (lambda found: [one for one in found if one[0] != SUMS], f"no member {SUMS}"),
    "swapped": (
        lambda found: [(n, dict(found)["journal-cpu.jsonl"] if n == RESULTS else c) for n, c in found],
        f"{RESULTS} was changed",
    ),
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
@pytest.mark.parametrize("name", [RESULTS, SUMS])
def test_a_member_that_is_there_twice_is_refused(name: str, bundle: Path) -> None:
    found = [*members(bundle).items()]
    bundle.write_bytes(zipped([*found, (name, dict(found)[name])]))
    with pytest.raises(BadBundleError, match=f"{name} is in the archive twice"):
        unpack(bundle)


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
    "a better exit code": (
        edit(lambda results: (results["cells"][0].update(**FAILS, status="unexpected"), results)),
        "the exit code is stored as 0, and it is 1",
    ),
    "a problem, and success": (edit(lambda results: results.update(problems=["x"])), "stored as 0, and it is 1"),
    "a cell less": (edit(lambda results: results["cells"].pop()), "its cells are not those of its plan"),
    "a cell twice": (edit(lambda results: results["cells"].append(results["cells"][0])), "has the cell"),
    "no cell's id": (set_cell(0, id="hostcb/jit/x/y"), "is no id of a cell"),
    "an unknown verdict": (set_cell(0, verdict="fine"), "fine"),
    "a newer schema": (
        edit(lambda results: results.update(schema=2)),
        f"{RESULTS} has schema 2, and this reader knows 1",
    ),
    "another platform": (edit(lambda results: results.update(platform="tpu")), "holds the results of tpu"),
    "no results": (lambda found: found.pop(RESULTS), "holds no results"),
    "a stranger": (lambda found: found.update({"virus.exe": b"x"}), "virus.exe belongs to no result"),
    "a journal without the pass": (
        lambda found: found.update({"journal-cpu.jsonl": found["journal-cpu.jsonl"].split(b"\n", 1)[1]}),
        f"{fakes.CORE} is stored as a pass, and its journal has none of it",
    ),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_results_that_contradict_themselves_are_refused(
    what: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = CONTRADICTIONS[what]
    found = dict(unpack(bundle).members)
    change(found)
    bundle.write_bytes(rebuilt(found))
    assert verify(bundle, "--json") == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert json.loads(captured.out)["genuine"] is False


def test_a_worse_exit_code_is_said_and_not_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A later version of the suite may know more reasons."""
    found = dict(unpack(bundle).members)
    edit(lambda results: results.update(exit_code=1))(found)
    bundle.write_bytes(rebuilt(found))
    assert verify(bundle) == 0
    assert "exit code 0, DIFFERS: 1 is stored" in capsys.readouterr().out


def test_a_published_digest_shows_hashes_that_were_written_again(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = unpack(bundle).digest
    assert verify(bundle, "--digest", published.upper()) == 0
    assert "NOTE" not in capsys.readouterr().out
    found = dict(unpack(bundle).members)
    edit(lambda results: results.update(seconds=1.0))(found)
    bundle.write_bytes(rebuilt(found))
    assert verify(bundle) == 0
    assert "only a digest that was published elsewhere" in capsys.readouterr().out
    assert verify(bundle, "--digest", published) == 2
    assert "not the one that was published" in capsys.readouterr().err


# What a bundle holds ------------------------------------------------------------------------------


def test_no_home_folder_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jane d\N{LATIN SMALL LETTER E WITH ACUTE}e")
    problem = f"{Path.home()}/project/x.py failed; {Path.home()}s"
    found = bundle_of(fakes.write(tmp_path / "r", problems=[problem])).members
    assert json.loads(found[RESULTS])["problems"] == [f"~/project/x.py failed; {Path.home()}s"]


def test_results_that_were_edited_are_not_bundled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fakes.write(tmp_path / "r", outcomes={fakes.CORE: fakes.failing()})
    fakes.changed(folder, lambda results: results.update(exit_code=0))
    assert commands.main(["bundle", str(folder)]) == 2
    assert "cannot be bundled: conformance-cpu.json: the exit code" in capsys.readouterr().err
