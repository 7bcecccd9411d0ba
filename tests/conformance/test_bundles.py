"""Bundles: every byte of one counts, its results are judged again, and only what all cells show earns a profile."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import bundle_fakes as fakes
import pytest

from conformance.bundles.archive import SUMS, BadBundleError, Bundle, bundle_of, unpack
from conformance.bundles.earning import NAMED
from conformance.cli import commands
from conformance.engine import preparation
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import Plan, make_plan
from conformance.planning.selection import Choice
from conformance.spec.capabilities import PROFILES
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C45")

RESULTS, JOURNAL = "conformance-cpu.json", "journal-cpu.jsonl"
Members = dict[str, bytes]


@pytest.fixture
def bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert commands.main(["bundle", str(fakes.write(tmp_path / "results"))]) == 0
    capsys.readouterr()
    return tmp_path / "results" / "bundle.zip"


def zipped(members: Sequence[tuple[str, bytes]]) -> bytes:
    """The archive that any zip program writes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def test_a_change_of_a_byte_is_refused(bundle: Path) -> None:
    """What only the zip format has, such as times, may change: nobody reads it."""
    data, whole = bundle.read_bytes(), unpack(bundle)
    for place in random.Random(0).sample(range(len(data)), 150):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        try:
            assert unpack(io.BytesIO(changed)) == whole
        except BadBundleError as error:
            assert str(error)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_another_archive_of_the_members_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(bundle) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    changes: dict[str, Members] = {
        f"{RESULTS} was changed": found | {RESULTS: found[RESULTS].replace(b'"pass"', b'"fail"', 1)},
        f"{SUMS} was changed": found | {SUMS: b"".join(found[SUMS].splitlines(True)[::-1])},
        "notes.txt was changed, added or removed": {**found, "notes.txt": b""},
        f"{JOURNAL} was changed, added or removed": {name: found[name] for name in found if name != JOURNAL},
        f"no member {SUMS}": {name: found[name] for name in found if name != SUMS},
    }
    refused = {words: zipped([*members.items()]) for words, members in changes.items()}
    for name in (RESULTS, SUMS):
        refused[f"{name} is in the archive twice"] = zipped([*found.items(), (name, found[name])])
    for words, data in refused.items():
        bundle.write_bytes(data)
        assert commands.main(["verify", str(bundle)]) == 2
        said = capsys.readouterr()
        assert words in said.err and said.out == ""


# Hashes that are right, of contents that are wrong.


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Members], None]:
    def edited(found: Members) -> None:
        results = json.loads(found[RESULTS])
        change(results)
        found[RESULTS] = json.dumps(results).encode()

    return edited


def edit_cell(**fields: Any) -> Callable[[Members], None]:
    return edit(lambda results: results["cells"][0].update(fields))


def changed(bundle: Path, change: Callable[[Members], object]) -> None:
    found = dict(unpack(bundle).members)
    change(found)
    bundle.write_bytes(Bundle(found).packed())


FAILS: dict[str, Any] = {"verdict": "fail", "stage": "callback"}
CONTRADICTIONS: dict[str, tuple[Callable[[Members], object], str]] = {
    "a failure as expected": (edit_cell(**FAILS), "is stored as as_expected, and judged again it is un"),
    "a failure, and success": (
        edit(lambda results: results["cells"][0].update(**FAILS, status="unexpected")),
        "stored as 0, and it is 1",
    ),
    "a problem, and success": (edit(lambda results: results.update(problems=["x"])), "stored as 0, and it is 1"),
    "a cell less": (edit(lambda results: results["cells"].pop()), "its cells are not those of its plan"),
    "a cell twice": (edit(lambda results: results["cells"].append(results["cells"][0])), "has the cell"),
    "no cell's id": (edit_cell(id="hostcb/jit/x/y"), "is no id of a cell"),
    "an unknown verdict": (edit_cell(verdict="fine"), "fine"),
    "a newer schema": (edit(lambda results: results.update(schema=2)), "has schema 2, and this reader knows 1"),
    "another platform": (edit(lambda results: results.update(platform="tpu")), "holds the results of tpu"),
    "no results": (lambda found: found.pop(RESULTS), "holds no results"),
    "a stranger": (lambda found: found.update({"virus.exe": b"x"}), "virus.exe belongs to no result"),
    "a journal without the pass": (
        lambda found: found.update({JOURNAL: found[JOURNAL].split(b"\n", 1)[1]}),
        f"{fakes.CORE} is stored as a pass, and its journal has none of it",
    ),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_results_that_contradict_themselves_are_refused(
    what: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = CONTRADICTIONS[what]
    changed(bundle, change)
    assert commands.main(["verify", str(bundle), "--json"]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert json.loads(said.out)["genuine"] is False


def test_a_worse_exit_code_is_accepted_and_a_published_digest_shows_other_contents(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later version of the suite may know more reasons for the code."""
    published = unpack(bundle).digest
    assert commands.main(["verify", str(bundle), "--digest", published.upper()]) == 0
    changed(bundle, edit(lambda results: results.update(exit_code=1)))
    assert commands.main(["verify", str(bundle)]) == 0
    assert "DIFFERS: 1 is stored" in capsys.readouterr().out
    assert commands.main(["verify", str(bundle), "--digest", published]) == 2


def test_what_is_bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name of a home folder, and no results that were edited."""
    monkeypatch.setenv("HOME", "/home/jane d\N{LATIN SMALL LETTER E WITH ACUTE}e")
    problem = f"{Path.home()}/project/x.py failed; {Path.home()}s"
    found = bundle_of(fakes.write(tmp_path / "home", problems=[problem])).members
    assert json.loads(found[RESULTS])["problems"] == [f"~/project/x.py failed; {Path.home()}s"]
    folder = fakes.write(tmp_path / "edited", outcomes={fakes.CORE: fakes.failing()})
    fakes.changed(folder, lambda results: results.update(exit_code=0))
    assert commands.main(["bundle", str(folder)]) == 2


# Profiles.


class Verified:
    """What `verify` says of results: the exit code, and each profile by its name, implementation and depth."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], **arguments: Any) -> None:
        file = tmp_path / "bundle.zip"
        file.write_bytes(bundle_of(fakes.write(tmp_path / "results", **arguments)).packed())
        self.code = commands.main(["verify", str(file), "--json"])
        claims = json.loads(capsys.readouterr().out)["profiles"]
        self.claims = {f"{one['profile']} {one['implementation']} {one['depth']}": one for one in claims}

    @property
    def earned(self) -> set[str]:
        return {name for name, one in self.claims.items() if one["earned"]}


ALL = {f"{profile} hostcb run" for profile in PROFILES} | {"core jax run"}
MISSING = Outcome(Verdict.MISSING, reason="planned and never run")
OF_JAX = {fakes.OF_JAX: fakes.failing()}
COMPILED, LOWERED, RUN = (f"hostcb/pure_callback/jit/tpu-1dev{depth}" for depth in ("@compile", "@lower", ""))


@pytest.mark.parametrize(
    ("arguments", "earned", "reason"),
    [
        ({}, ALL, ("ordered jax run", "the plan has no cell of it")),
        (
            {"outcomes": {fakes.CORE: fakes.failing()}},
            ALL - {"core hostcb run"},
            ("core hostcb run", f"1 of its 1 cells fail, the first is {fakes.CORE}: fail"),
        ),
        (
            {"outcomes": {fakes.CORE: fakes.failing(verdict=Verdict.FLAKE)}},
            ALL - {"core hostcb run"},
            ("core hostcb run", "flake"),
        ),
        (
            {"outcomes": {fakes.CORE: MISSING}},
            ALL - {"core hostcb run"},
            ("core hostcb run", f"1 of its 1 cells did not run, the first is {fakes.CORE}"),
        ),
        (
            {"outcomes": OF_JAX, "known": fakes.KNOWN.format(cells="jax/*")},
            ALL - {"core jax run"},
            ("core jax run", "1 of its 1 cells fail"),
        ),
        (
            {"lacking": {"hostcb/io_callback/jit/cpu-1dev": "mine has no io_callback"}},
            ALL - {"core hostcb run"},
            ("core hostcb run", "all cells of io_callback were left out: mine has no io_callback"),
        ),
        ({"problems": ["interrupted"]}, set(), ("core hostcb run", "the run had 1 problems, the first is: interr")),
        (
            {
                "cells": (COMPILED, LOWERED, RUN),
                "outcomes": {COMPILED: fakes.failing(Stage.COMPILE), RUN: MISSING},
            },
            {"core hostcb lower"},
            ("core hostcb run", "did not run"),
        ),
    ],
    ids=["all", "fails", "flake", "missing", "known", "lacking", "problem", "depths"],
)
def test_what_is_earned(
    arguments: Mapping[str, Any],
    earned: set[str],
    reason: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verified = Verified(tmp_path, capsys, **arguments)
    assert (verified.earned, verified.code) == (earned, 0 if earned else 1)
    profile, words = reason
    assert words in verified.claims[profile]["reasons"][0]


def test_a_known_failure_of_a_case_is_listed_and_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = fakes.KNOWN.format(cells="*/case.keeps_its_view.*")
    verified = Verified(tmp_path, capsys, outcomes={fakes.CASE: fakes.failing()}, known=known)
    assert verified.earned == ALL
    failures = verified.claims["zero-copy hostcb run"]["known_failures"]
    assert failures == {fakes.CASE: "It is planted. https://example.org/1"}


@pytest.mark.parametrize("both", [True, False])
def test_neither_refusals_alone_nor_cells_that_were_named_earn_a_profile(
    both: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that must be refused is as right as one that must be lowered, but not all of a callback are such."""
    cells = ["hostcb/buffer_callback/jit/tpu-1dev@lower", "hostcb/buffer_callback/vmap/tpu-1dev@lower"]
    folder = fakes.write(tmp_path / "r", cells=cells)
    fakes.changed(folder, lambda found: [one.update(shown="refused") for one in found["cells"][: 1 + both]])
    assert commands.main(["bundle", str(folder)]) == 0
    assert commands.main(["verify", str(folder / "bundle.zip")]) == int(both)
    assert ("not earned: all programs with buffer_callback were refused" in capsys.readouterr().out) is both
    named = fakes.changed(fakes.write(tmp_path / "named"), lambda results: results["run"].update(plan=None))
    assert commands.main(["bundle", str(named)]) == 0
    assert commands.main(["verify", str(named / "bundle.zip")]) == 1
    assert NAMED in capsys.readouterr().out


def test_the_plan_is_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the recorded options, without those that only select: the plan of `--smoke` is the whole one."""
    file = tmp_path / "bundle.zip"
    file.write_bytes(bundle_of(fakes.write(tmp_path / "results")).packed())
    with monkeypatch.context() as planned:
        for cells, code in ((fakes.CELLS, 0), (fakes.CELLS[:-1], 2)):
            planned.setattr(preparation, "planned_again", lambda options, cells=cells: [*cells])
            assert commands.main(["verify", str(file), "--replan"]) == code
    assert f"1 cells, like {fakes.OF_JAX}" in capsys.readouterr().err

    def undrawn(implementations: Sequence[str], platform: str, devices: Sequence[int], choice: Choice) -> Plan:
        assert choice == Choice(7, full=False)
        return make_plan(implementations, [Topology(platform, count) for count in devices])

    monkeypatch.setattr(preparation.selecting, "whole_plan_of", undrawn)
    options = {"platform": "cpu", "devices": [1], "implementations": ["jax"], "seed": 7, "full": False, "smoke": True}
    options |= {"depth": "run", "usual_devices": False, "topologies": []}
    assert fakes.OF_JAX in preparation.planned_again(options)
