"""What a run has observed of a platform's capabilities, and what it says of those that a vendor claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.expectations.entries import Expectation, Expectations
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import parse_cell
from conformance.reports.capabilities import Observed, Result, judged_claims, observed
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.report import Report
from conformance.reports.results import load_results
from conformance.spec.capabilities import why_no_claim

pytestmark = pytest.mark.contract("C52")

PASS, FAIL, UNSUPPORTED = "pass", "fail", "unsupported"


def rows(*results: tuple[str, str]) -> dict[tuple[str, str], Observed]:
    found = observed(Result(cell, verdict) for cell, verdict in results)
    return {(row.implementation, row.name): row for row in found}


@pytest.mark.parametrize(
    ("cell", "shows"),
    [
        ("hostcb/id_tap/vmap.scan/toy-1dev", {"id_tap", "ordered", "vmap", "loops"}),
        ("hostcb/pure_callback/pjit+int8-matrix-dict/toy-2dev", {"pure_callback", "sharded", "element-types"}),
        ("jax/io_callback_ordered/grad.cond/toy-1dev", {"io_callback", "ordered", "grad", "cond"}),
        ("jax/debug_callback/shard_map/toy-2x4", {"debug.callback", "sharded", "shard_map", "multi-process"}),
        ("jax/pure_callback/case.raises.jit/toy-2dev", {"errors"}),
        ("hostcb/call/table.returns/toy-2dev", set()),
        ("mine/unknown_callback/while_body/toy-2dev", {"loops"}),
    ],
)
def test_what_a_cell_shows(cell: str, shows: set[str]) -> None:
    assert {name for (_, name), row in rows((cell, PASS)).items() if row.cells} == shows


def test_what_is_counted() -> None:
    """A function that is refused everywhere is left out of what it is used with, if anything else is there."""
    refused = (("jax/buffer_callback/vmap/toy-1dev", UNSUPPORTED), ("jax/buffer_callback/jit/toy-1dev", UNSUPPORTED))
    found = rows(
        *refused,
        ("jax/io_callback/vmap/toy-1dev", PASS),
        ("jax/io_callback/scan/toy-1dev", FAIL),
        ("jax/pure_callback/jit/toy-1dev", "crash(SIGABRT)"),
        ("jax/debug_callback/jit/toy-1dev", "missing"),
        ("hostcb/io_callback/jit/toy-1dev", PASS),
        ("hostcb/io_callback/jit/toy-1dev@compile", FAIL),
    )
    counted = {name: row.counted for (implementation, name), row in found.items() if implementation == "jax"}
    expected = {"io_callback": "partly (1 of 2)", "pure_callback": "no (0 of 1)", "loops": "no (0 of 1)"}
    expected |= {"debug.callback": "not tested", "vmap": "yes (1 of 1)", "buffer_callback": "no (0 of 2)"}
    assert {name: counted[name] for name in expected} == expected
    assert rows(*refused)["jax", "vmap"].counted == "no (0 of 1)"


def test_claims() -> None:
    good = [Result(f"hostcb/{name}/scan/toy-1dev", PASS) for name in ("id_tap", "call")]
    found = observed([Result("jax/id_tap/scan/toy-1dev", FAIL), *good])
    claims = judged_claims(["ordered", "hostcb:ordered", "sharded"], found)
    assert [claim.verdict for claim in claims] == ["failed", "holds", "not tested"]
    assert why_no_claim("hostcb:ordered") is None
    assert "'odered' is no capability; there are id_tap, " in (why_no_claim("odered") or "")


@pytest.mark.parametrize("known", [True, False])
def test_a_claim_that_fails_is_a_verdict_of_its_own(tmp_path: Path, known: bool) -> None:
    """Also where the failure is known: to list it is not to have the capability."""
    cell = "jax/io_callback_ordered/scan/toy-1dev"
    entries = (Expectation((cell,), "fail", "planted", "none", "2026-11-23"),) if known else ()
    made = Report("toy", Expectations(entries), claims=("ordered",))
    made.add(parse_cell(cell), Outcome(Verdict.FAIL, Stage.CALLBACK, "order: planted", anomaly="order"))
    made.add(parse_cell("jax/io_callback_ordered/jit/toy-1dev"), Outcome(Verdict.PASS))
    assert made.exit_code == 1
    words = f"claimed capability `ordered` failed in 1 of 2 cells: {cell}"
    assert words in made.summary()
    made.write(tmp_path / "conformance-toy.json")
    data = json.loads((tmp_path / "conformance-toy.json").read_text())
    assert data["claims"] == [{"name": "ordered", "verdict": "failed", "cells": 2, "failed": [cell]}]
    runs = load_results(tmp_path)
    assert "NOT as expected" in markdown(runs) and words in html(runs)
    assert "| `ordered`: callbacks in the order of the program | partly (1 of 2) |" in markdown(runs)
