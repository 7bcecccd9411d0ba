"""What a run leaves: it is as described, each byte of a bundle counts, and what all cells show earns a profile."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import results_fakes as fakes
from suite_runs import Capture, Patch, cells, journal_in, report_in, run_here

from conformance.bundles.archive import SUMS, BadBundleError, Bundle, bundle_of, unpack
from conformance.bundles.earning import NAMED
from conformance.cli import commands
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.reports import results
from conformance.reports.markdown import markdown
from conformance.reports.results import SCHEMA_VERSION, load_results
from conformance.spec.capabilities import PROFILES

pytestmark = pytest.mark.contract("C45")

SCHEMA = json.loads((Path(results.__file__).parent / "schema" / f"results-{SCHEMA_VERSION}.json").read_text())
RESULTS, JOURNAL = "conformance-cpu.json", "journal-cpu.jsonl"
Members = dict[str, bytes]


@pytest.mark.contract("C47")
def test_what_a_run_writes_is_as_described_and_can_be_bundled(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """The cell has two programs in each of its runs, and its process loses a callback of every third program."""
    jsonschema = pytest.importorskip("jsonschema", reason="the dependency group `test` has it")
    secrets = {"JAX_TOKEN": "a secret", "JAX_ENABLE_CHECKS": "0", "AWS_SECRET_ACCESS_KEY": "a secret"}
    cell = cells("suite_fakes:FAILS_EVERY_THIRD_TIME", "call")
    assert run_here(tmp_path, monkeypatch, *cell, "--repeat", "7", **secrets) == 1
    printed = capsys.readouterr().out
    folder = tmp_path / "results"
    assert "a secret" not in (folder / RESULTS).read_text()
    data = report_in(folder)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert "JAX_ENABLE_CHECKS=0" in data["run_info"]["cpu-1dev"]["variables"]
    assert {"jax", "jaxlib", "numpy", "pytest"} <= {*data["run"]["packages"]}
    repeated = data["cells"][0]["repeated"]
    assert (repeated["runs"], repeated["failures"], repeated["confidence"]) == (7, 4, 0.95)
    assert [(way["verdict"], way["count"]) for way in repeated["outcomes"]] == [("fail", 4), ("pass", 3)]
    assert (data["process_starts"], len(journal_in(folder, "end"))) == (1, 7)
    assert "4 of 7" in printed and "| 4 of 7 | 57.1 % |" in markdown(load_results(folder))
    assert commands.main(["bundle", str(folder)]) == 0
    assert commands.main(["verify", str(folder / "bundle.zip")]) == 1
    assert NAMED in capsys.readouterr().out


@pytest.fixture
def bundle(tmp_path: Path, capsys: Capture) -> Path:
    assert commands.main(["bundle", str(fakes.write_run(tmp_path / "results"))]) == 0
    capsys.readouterr()
    return tmp_path / "results" / "bundle.zip"


def test_a_change_of_a_byte_is_refused(bundle: Path) -> None:
    """What only the zip format has, such as times, may change: nobody reads it."""
    data, whole = bundle.read_bytes(), unpack(bundle)
    for place in random.Random(0).sample(range(len(data)), 100):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        try:
            assert unpack(io.BytesIO(changed)) == whole
        except BadBundleError as error:
            assert str(error)


def test_another_archive_of_the_members_is_refused(bundle: Path, capsys: Capture) -> None:
    with zipfile.ZipFile(bundle) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    for words, change in {
        f"{RESULTS} was changed": {RESULTS: found[RESULTS].replace(b'"pass"', b'"fail"', 1)},
        "notes.txt was changed, added or removed": {"notes.txt": b""},
        f"{JOURNAL} was changed, added or removed": {JOURNAL: None},
        f"no member {SUMS}": {SUMS: None},
    }.items():
        with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in (found | change).items():
                if content is not None:
                    archive.writestr(name, content)
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


FAILS: dict[str, Any] = {"verdict": "fail", "stage": "callback"}
CONTRADICTIONS: dict[str, Callable[[Members], object]] = {
    "is stored as as_expected, and judged again it is un": edit_cell(**FAILS),
    "code is stored as 0, and it is 1": edit_cell(**FAILS, status="unexpected"),
    "is stored as 0, and it is 1": edit(lambda results: results.update(problems=["x"])),
    "its cells are not those of its plan": edit(lambda results: results["cells"].pop()),
    "has the cell": edit(lambda results: results["cells"].append(results["cells"][0])),
    "fine": edit_cell(verdict="fine"),
    "holds the results of tpu": edit(lambda results: results.update(platform="tpu")),
    "virus.exe belongs to no result": lambda found: found.update({"virus.exe": b"x"}),
    f"{fakes.CORE} is stored as a pass, and its journal has none of it": lambda found: found.update(
        {JOURNAL: found[JOURNAL].split(b"\n", 1)[1]}
    ),
}


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_results_that_contradict_themselves_are_refused(words: str, bundle: Path, capsys: Capture) -> None:
    found = dict(unpack(bundle).members)
    CONTRADICTIONS[words](found)
    bundle.write_bytes(Bundle(found).packed())
    assert commands.main(["verify", str(bundle), "--json"]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert json.loads(said.out)["genuine"] is False


def test_a_worse_exit_code_is_accepted_and_a_published_digest_shows_other_contents(
    bundle: Path, capsys: Capture
) -> None:
    """A later version of the suite may know more reasons for the code."""
    published = unpack(bundle).digest
    assert commands.main(["verify", str(bundle), "--digest", published.upper()]) == 0
    bundle.write_bytes(bundle_of(fakes.change(bundle.parent, exit_code=1)).packed())
    assert commands.main(["verify", str(bundle)]) == 0
    assert "DIFFERS: 1 is stored" in capsys.readouterr().out
    assert commands.main(["verify", str(bundle), "--digest", published]) == 2


def test_what_is_bundled(tmp_path: Path, monkeypatch: Patch) -> None:
    """No name of a home folder, and no results that were edited."""
    monkeypatch.setenv("HOME", "/home/jane d\N{LATIN SMALL LETTER E WITH ACUTE}e")
    problem = f"{Path.home()}/project/x.py failed; {Path.home()}s"
    found = bundle_of(fakes.write_run(tmp_path / "home", problems=[problem])).members
    assert json.loads(found[RESULTS])["problems"] == [f"~/project/x.py failed; {Path.home()}s"]
    folder = fakes.write_run(tmp_path / "edited", outcomes={fakes.CORE: fakes.failing()})
    assert commands.main(["bundle", str(fakes.change(folder, exit_code=0))]) == 2


# Profiles.

ALL = {f"{profile} hostcb run" for profile in PROFILES} | {"core jax run"}
OTHERS = ALL - {"core hostcb run"}
MISSING = Outcome(Verdict.MISSING, reason="planned and never run")
COMPILED, LOWERED, RUN = (f"hostcb/pure_callback/jit/tpu-1dev{depth}" for depth in ("@compile", "@lower", ""))
AT_DEPTHS = {"cells": (COMPILED, LOWERED, RUN), "outcomes": {COMPILED: fakes.failing(Stage.COMPILE), RUN: MISSING}}
OF_JAX = {"outcomes": {fakes.OF_JAX: fakes.failing()}, "known": fakes.ENTRY.format("jax/*")}
LACKING = {"lacking": {"hostcb/io_callback/jit/cpu-1dev": "mine has no io_callback"}}
OF_CASE = {"outcomes": {fakes.BAD_CASE: fakes.failing()}, "known": fakes.ENTRY.format("*/case.keeps_its_view.*")}


def core(outcome: Outcome) -> dict[str, Any]:
    return {"outcomes": {fakes.CORE: outcome}}


ANOTHER = "hostcb/debug_callback/jit/cpu-1dev"
SOME = {"cells": (*fakes.CELLS, ANOTHER), **core(fakes.failing())}
SOME["outcomes"] |= {ANOTHER: MISSING}
EARNED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "": ({}, ALL),
    f"{fakes.CORE}: flake": (core(fakes.failing(verdict=Verdict.FLAKE)), OTHERS),
    f"1 of its 1 cells did not run, the first is {fakes.CORE}": (core(MISSING), OTHERS),
    "1 of the 1 cells that ran fails, the first is jax": (OF_JAX, ALL - {"core jax run"}),
    # A known failure of a case is listed and costs nothing.
    "It is planted. https://example.org/1": (OF_CASE, ALL),
    "all cells of io_callback were left out: mine has no io_callback": (LACKING, OTHERS),
    "the run had 1 problem, the first is: interr": ({"problems": ["interrupted"]}, set()),
    f"1 of the 1 cells that ran fails, the first is {fakes.CORE}: fail at callback (lost); 1 did not run": (
        SOME,
        OTHERS,
    ),
    "did not run": (AT_DEPTHS, {"core hostcb lower"}),
}


@pytest.mark.parametrize("words", EARNED)
def test_what_is_earned(words: str, tmp_path: Path, capsys: Capture) -> None:
    arguments, earned = EARNED[words]
    file = tmp_path / "bundle.zip"
    file.write_bytes(bundle_of(fakes.write_run(tmp_path / "results", **arguments)).packed())
    code = commands.main(["verify", str(file), "--json"])
    found = json.loads(capsys.readouterr().out)["profiles"]
    claims = {f"{one['profile']} {one['implementation']} {one['depth']}" for one in found if one["earned"]}
    assert (claims, code) == (earned, 0 if earned else 1)
    assert words in str([(one["known_failures"], one["reasons"]) for one in found])


def test_refusals_alone_earn_no_profile(tmp_path: Path, capsys: Capture) -> None:
    """A program that must be refused is as right as one that must be lowered, but not all of a callback are such."""
    cells = ["hostcb/buffer_callback/jit/tpu-1dev@lower", "hostcb/buffer_callback/vmap/tpu-1dev@lower"]
    folder = fakes.write_run(tmp_path / "r", cells=cells)
    for refused, earned in ((1, True), (2, False)):
        found = [one | {"shown": "refused"} for one in report_in(folder)["cells"][:refused]]
        fakes.change(folder, cells=found + report_in(folder)["cells"][refused:])
        assert commands.main(["bundle", str(folder)]) == 0
        assert commands.main(["verify", str(folder / "bundle.zip")]) == int(not earned)
        assert ("not earned: all programs with buffer_callback were refused" in capsys.readouterr().out) is not earned


def test_a_claim_that_failed_is_judged_again(tmp_path: Path, capsys: Capture) -> None:
    claims = [{"name": "ordered", "cells": 2, "failed": [fakes.ORDERED]}]
    fails = {"outcomes": {fakes.ORDERED: fakes.failing()}, "known": fakes.ENTRY.format(fakes.ORDERED)}
    folder = fakes.write_run(tmp_path / "r", **fails, claims=claims, exit_code=1)
    assert commands.main(["bundle", str(folder)]) == 0
    assert "FAIL: 6 of 7 cells passed, 0 unexpected results, 1 problem of the run\n" in capsys.readouterr().out
    commands.main(["verify", str(folder / "bundle.zip")])
    said = capsys.readouterr().out
    assert "exit code 1, as stored\n" in said
    assert f"  PROBLEM: CLAIM FAILED: claimed capability `ordered` failed in 1 of 2 programs: {fakes.ORDERED}\n" in said
    fakes.change(folder, exit_code=0, claims=[claims[0] | {"failed": []}])
    assert commands.main(["bundle", str(folder)]) == 2
    assert "the exit code is stored as 0, and it is 1\n" in capsys.readouterr().err
