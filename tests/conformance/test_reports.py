"""What a run prints, what its reports say, what differs between two results, and what a platform is capable of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import results_fakes as fakes
from results_fakes import KNOWN, LOST, PASSED, WHY, Page, cell, results, write
from suite_runs import Capture, report_in

from conformance.cli.commands import main
from conformance.cli.run import show
from conformance.engine.options import RunOptions
from conformance.expectations.entries import Expectation, Expectations
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import parse_cell
from conformance.reports.capabilities import Claim, Observed, judged_claims
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.report import Report
from conformance.reports.results import load_results, record_of
from conformance.reports.terminal import summary

pytestmark = pytest.mark.contract("C5", "C70")


def test_markdown_says_what_matters(tmp_path: Path) -> None:
    variant = cell("hostcb/id_tap/vmap.scan+int8-matrix-dict/cpu-4dev+grid+x64")
    text = markdown(load_results(write(tmp_path, PASSED, variant, LOST, KNOWN, fakes.CASE)))
    assert text.startswith("# Conformance on cpu: NOT as expected\n")
    for line in (
        "- passed: 3 of 5 cells passed",
        "- unexpected: 2 unexpected results",
        "lost: cpu:3 never ran #6",
        "$ python -m conformance run --cell hostcb/call/scan/cpu-8dev",
        "| `io_callback` | ~1 | ~1 | ✗1 |",
    ):
        assert line in text.splitlines()
    good, empty = write(tmp_path / "good", PASSED, KNOWN), write(tmp_path / "empty")
    assert markdown(load_results(good)).startswith("# Conformance on cpu: as expected\n")
    assert markdown(load_results(empty)).startswith("# Conformance on cpu: NOT as expected\n")


def page_of(*cells: dict[str, Any], **fields: Any) -> Any:
    """What the page of one run holds."""
    return Page(html([record_of(results(*cells, **fields))])).data["runs"][0]


def test_the_page_holds_every_cell_and_its_history(tmp_path: Path) -> None:
    page = Page(html(load_results(write(tmp_path, PASSED, LOST, KNOWN, fakes.CASE))))
    cells = {cell["id"]: cell for cell in page.data["runs"][0]["cells"]}
    assert len(cells) == 4
    lost = cells[LOST["id"]]
    assert (lost["witness"], lost["history"][1]["value"]) == (LOST["witness"], "[NaN, Infinity]")
    assert page.data["known"][cells[KNOWN["id"]]["known"]]["link"] == "https://example.org/issues/1"
    # The only numbers of a history are those of the witness.
    order = LOST | {"witness": "order: cpu:3 ran #7 before #6", "evidence": [[0, 7], [2, 6]]}
    order["history"] = [fakes.event(0, 3), fakes.event(1, 0), fakes.event(2, 3)]
    history = page_of(order)["cells"][0]["history"]
    assert [(one["number"], one["words"][0]) for one in history] == [("#7", "#7"), ("", ""), ("#6", "#6")]


def test_cells_of_one_cause_are_one_entry_which_compares_them_with_jax() -> None:
    def bad(name: str, place: int, what: str) -> dict[str, Any]:
        return LOST | {"id": f"hostcb/{name}/scan/cpu-{place}dev", "anomaly": what, "witness": f"{what}: at #{place}"}

    lost = [bad("call", place, "lost") for place in range(33)]
    run = (PASSED, KNOWN, bad("tap", 1, "order"), *lost)
    before, block = summary(record_of(results(*run, problems=["a worker could not end"]))).split("\n\n")
    assert before.count("UNEXPECTED: fail at callback (lost): 33 cells, ") == 1
    assert before.count("UNEXPECTED: fail at callback (order): hostcb/tap/") == 1
    assert block.splitlines()[0] == "FAIL" and "34 unexpected results" in block
    assert [len(cause["cells"]) for cause in page_of(*run)["causes"]] == [33, 1]
    for cells, words in (
        ([PASSED, KNOWN], "PASS\n"),
        ([LOST | {"status": "changed_failure", "expected": "hang"}], "CHANGED FAILURE: fail at callback (lost), expec"),
        ([LOST | {"on_cpu": WHY}, LOST | {"id": PASSED["id"]}], "  unexpected  2 unexpected results, 1 known on the"),
        ([one | {"attempts": 1 + (place < 3)} for place, one in enumerate(lost)], " not run again: 30 of 33 cells\n"),
    ):
        assert words in summary(record_of(results(*cells)))
    of_hostcb = [LOST | {"id": f"hostcb/{name}/scan/cpu-1dev"} for name in ("dlpack_callback", "io_callback")]
    (cause,) = page_of(*of_hostcb, cell("jax/io_callback/jit/cpu-1dev"))["causes"]
    assert cause["notes"] == ["hostcb: 2 cells. The same with jax: 1 not in JAX, 1 not run."]
    of_jax = [LOST | {"id": f"jax/{name}/scan/cpu-1dev"} for name in ("io_callback", "pure_callback", "debug_print")]
    both = [*of_jax, *(one | {"id": one["id"].replace("jax", "hostcb")} for one in of_jax)]
    both[1] |= {"anomaly": "order"}
    both[2] |= {"verdict": "hang", "stage": None}
    alike = next(one["notes"] for one in page_of(*both)["causes"] if len(one["cells"]) > 1)
    assert "hostcb: 3 cells. The same with jax: 2 failed in another way, 1 failed in the same way." in str(alike)


def test_a_report_says_what_ran_when_and_with_which_versions(tmp_path: Path) -> None:
    """A page goes from hand to hand, without the folder that it was in."""
    runs = load_results(fakes.write_run(tmp_path, fakes.CELLS[:3], lacking={fakes.OF_JAX: "JAX lacks it"}))
    page = Page(html(runs))
    assert page.title == "PASS: cpu, conformance of host callbacks"
    facts = dict(page.data["runs"][0]["facts"])
    assert facts["software"] == "JAX 0.12.0.1, hostcb 0.1.0, acme-jax-plugin 2.3.1"
    assert (facts["suite"], facts["date"]) == ("of hostcb 0.1.0, commit 0123abcd", "2026-11-23 06:00:00 UTC")
    assert (facts["selected"], facts["command"]) == ("3 of 4 planned cells", "python -m conformance run")
    assert "- selected: 3 of 4 planned cells" in markdown(runs).splitlines()
    fakes.change(tmp_path, run=report_in(tmp_path)["run"] | {"plan": None})
    assert load_results(tmp_path)[0].facts["selected"] == "3 cells named by --cell"
    both = Page(html([*runs, record_of(results(LOST, platform="<b>"))]))
    assert both.title == "PASS: cpu, FAIL: &lt;b&gt;, conformance of host callbacks"


def test_a_run_of_chosen_cells_names_its_known_failures(tmp_path: Path, capsys: Capture) -> None:
    entry = Expectation((PASSED["id"],), "fail", "It is planted.", "none", "2026-11-28")
    for smoke in (True, False):
        made = Report("cpu", Expectations((entry,)))
        made.add(parse_cell(PASSED["id"]), Outcome(Verdict.FAIL))
        assert show(made, RunOptions(smoke=smoke, results=tmp_path)) == 0
        assert (f"KNOWN FAILURE: fail: {PASSED['id']}\n" in capsys.readouterr().out) is smoke


# `diff`: what differs between two results, and the table of more.

ONE, TWO, THREE = (f"jax/pure_callback/{program}/cpu-1dev" for program in ("jit", "vmap", "scan"))
OF_HOSTCB = ONE.replace("jax/", "hostcb/")
LACKED = "jax has no buffer_callback"
NOTHING = "0 fixed, 0 broken, 0 changed, 0 new, 0 gone"
BOTH = ("--implementation", "hostcb", "--implementation", "jax")


def way(verdict: str, count: int) -> dict[str, Any]:
    return {"verdict": verdict, "stage": None, "anomaly": "", "count": count, "witness": ""}


FAILED, OTHER = LOST["id"], LOST | {"id": "hostcb/call/cond/cpu-8dev"}
CHANCE = KNOWN["known"] | {"intermittent": True}
FAILS, PASSES = KNOWN | {"known": CHANCE}, cell(KNOWN["id"], known=CHANCE, expected="fail")
ALL = [cell(ONE), cell(TWO), cell(THREE)]
SELDOM, OFTEN = (LOST | {"repeated": {"outcomes": [way("pass", 50 - count), way("fail", count)]}} for count in (1, 40))
MANY = [cell(f"jax/pure_callback/scan/cpu-{count}dev") for count in range(1, 26)]


@pytest.mark.contract("C1", "C8")
@pytest.mark.parametrize(
    ("before", "after", "options", "code", "line"),
    [
        ([PASSED, LOST], [PASSED, LOST], (), 0, NOTHING),
        ([LOST], [cell(FAILED)], (), 0, f"FIXED: {FAILED}: fail at callback (lost) -> pass\n"),
        ([cell(FAILED)], [LOST], (), 1, f"BROKEN: {FAILED}: pass -> fail at callback (lost)\n"),
        ([LOST], [LOST | {"anomaly": "order"}], (), 1, "fail at callback (lost) -> fail at callback (order)\n"),
        ([LOST], [LOST | {"witness": "lost: cpu:2 never ran #5"}], (), 0, "0 changed"),
        ([PASSED], [PASSED, OTHER], (), 0, "NEW: hostcb/call/cond/cpu-8dev: fail at callback (lost)\n"),
        ([PASSED, OTHER], [PASSED], (), 1, "GONE: hostcb/call/cond/cpu-8dev: fail at callback (lost)\n"),
        # Repeated runs may fail more often than chance explains.
        ([SELDOM], [OFTEN], (), 1, "1 changed"),
        # What fails by chance is shown and is no failure, but for another way to fail.
        ([PASSES], [FAILS], (), 0, f"INTERMITTENT: {KNOWN['id']}: "),
        ([FAILS | {"known": None, "status": "unexpected"}], [PASSES], (), 0, f"INTERMITTENT: {KNOWN['id']}: "),
        ([FAILS | {"known": None, "status": "unexpected", "verdict": "flake"}], [PASSES], (), 0, "INTERMITTENT: "),
        ([FAILS | {"known": None, "status": "unexpected", "verdict": "hang"}], [PASSES], (), 0, "FIXED: "),
        ([PASSES], [FAILS | {"verdict": "hang", "status": "changed_failure"}], (), 1, "BROKEN"),
        # The entry has been removed, or is one of the first platform alone.
        ([PASSES], [FAILS | {"known": None, "status": "unexpected"}], (), 1, "BROKEN"),
        # Cells of one side are counted with the reason.
        (ALL, [cell(ONE)], (), 1, f"GONE: {TWO}: pass -> not applicable: {LACKED}\n"),
        (ALL, [cell(ONE)], ("--only-common",), 0, f"only in A: 2 cells not applicable in B: {LACKED}\n"),
        # A selection has few cells of a full run.
        (MANY, MANY[:2], (), 1, "cpu-12dev: pass\nGONE: 13 more\nonly in A: 23 cells not selected in B\n"),
        (MANY[:2], [*MANY, OTHER], (), 0, f"NEW: {OTHER['id']}: fail at callback (lost)\n"),
        # Two implementations of one run, or each in a folder of its own.
        ([cell(OF_HOSTCB), LOST | {"id": ONE}, PASSED], None, BOTH, 1, "0 fixed, 1 broken, 0 changed, 0 new, 1 gone\n"),
        # Nothing to compare.
        ([cell(ONE)], [cell(ONE)], ("-k", "grad"), 2, "ERROR: -k 'grad' matches no cell"),
        ([cell(ONE)], None, ("--implementation", "foo"), 2, "ERROR: no cell matches; there are cells of jax"),
        ([], [], (), 2, "ERROR: no cell matches; there are cells of nothing"),
        ([cell(ONE)], [cell(TWO)], ("--only-common",), 2, "ERROR: A and B have no cell in common"),
    ],
)
def test_differences(
    before: Any, after: Any, options: tuple[str, ...], code: int, line: str, tmp_path: Path, capsys: Capture
) -> None:
    left_out = [{"id": TWO, "reason": LACKED}, {"id": THREE, "reason": LACKED}]
    folders = [f"A={write(tmp_path / 'before', *before)}"]
    folders += [] if after is None else [f"B={write(tmp_path / 'after', *after, ineligible=left_out)}"]
    assert main(["diff", *folders, *options]) == code
    assert line in "".join(capsys.readouterr())


@pytest.mark.contract("C8")
def test_what_differs_among_environments_and_in_three_results(tmp_path: Path, capsys: Capture) -> None:
    def ran(name: str, jax: str, flag: str, *cells: dict[str, Any]) -> str:
        infos = {f"cpu-{n}dev": {"jax": jax, "XLA_FLAGS": f"--devices={n} {flag}".rstrip()} for n in (1, 8)}
        infos["cpu-8dev"] |= {"python": jax[-1:]}
        return str(write(tmp_path / name, *cells, run_info=infos))

    a, b = (
        ran("a", "0.8.2", "--old=1", cell(ONE), cell(TWO)),
        ran("b", "0.8.3", "--new=2", LOST | {"id": ONE}, cell(TWO)),
    )
    assert main(["diff", a, b]) == 1
    # Once for all topologies, and of flags those that differ.
    assert capsys.readouterr().out.splitlines()[:3] == [
        "environment: jax 0.8.2 -> 0.8.3",
        "environment: XLA_FLAGS --old=1 -> --new=2",
        "environment: python 2 -> 3",
    ]
    # Of a flag that is there twice the last one counts.
    swapped = [ran(order, "0.8.2", flags, cell(ONE)) for order, flags in (("e", "--x=1 --x=2"), ("f", "--x=2 --x=1"))]
    assert main(["diff", *swapped]) == 0
    assert (
        "XLA_FLAGS --devices=1 --x=1 --x=2 or --devices=8 --x=1 --x=2 -> --devices=1 --x=2" in capsys.readouterr().out
    )
    assert main(["diff", a, b, ran("c_d", "0.8.3", "--new=2", cell(ONE), cell(TWO))]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "2 cells with 3 columns: 1 differ, 1 agree (1 pass).\n\nenvironments:\n  jax: 0.8.2 in a;"
    )
    assert "\n  XLA_FLAGS: --old=1 in a; --new=2 in b, c_d\n" in printed
    assert f"\n\n1 cell: pass in a, c_d; fail at callback (lost) in b\n  {ONE}\n    in b: lost: cpu:3 never " in printed


@pytest.mark.contract("C8")
def test_results_of_two_platforms_have_the_same_cells(tmp_path: Path, capsys: Capture) -> None:
    def of(place: str, *changed: dict[str, Any]) -> list[dict[str, Any]]:
        cells = {f"hostcb/call/{program}/{place}": {} for program in ("jit", "scan", "vmap")}
        return [*({name: cell(name) for name in cells} | {one["id"]: one for one in changed}).values()]

    def told(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[int, str]:
        folders = [str(write(tmp_path / name, *cells)) for name, cells in (("a", before), ("b", after))]
        return main(["diff", *folders]), capsys.readouterr().out

    on_cpu, bad = of("cpu-8dev+x64"), LOST | {"id": "hostcb/call/scan/cuda-8dev+x64"}
    code, printed = told(on_cpu, of("cuda-8dev+x64", bad, cell("hostcb/call/cond/cuda-1dev")))
    assert printed.startswith(
        "platforms: a has cpu, b has cuda; ids match without that part\nBROKEN: hostcb/call/scan/*"
    )
    assert "\nonly in b: 1 cell not selected in a\n" in printed
    assert (code, printed.splitlines()[-1]) == (1, "0 fixed, 1 broken, 0 changed, 1 new, 0 gone")
    code, printed = told(on_cpu, of("tpu-8dev+x64@lower"))
    assert (code, "b has tpu@lower;" in printed, f"{NOTHING}\n" in printed) == (0, True, True)
    fewer = of("tpu-4dev+x64@lower", cell("hostcb/call/jit/tpu-1dev@lower"))
    code, printed = told(of("cpu-8dev+x64", LOST | {"id": "hostcb/call/jit/cpu-1dev"}), fewer)
    assert printed.startswith("platforms: a has cpu on 8 devices, b has tpu@lower on 4 devices; ids match")
    assert (code, printed.splitlines()[-1]) == (0, NOTHING.replace("0 fixed", "1 fixed"))
    # Which of two numbers of devices another one stands for is not known.
    assert told([*on_cpu, *of("cpu-2dev+x64")], fewer)[0] == 2
    # A folder of several platforms has one cell for each.
    assert NOTHING.replace("0 gone", "3 gone") in told([*on_cpu, *of("cuda-8dev+x64")], on_cpu)[1]


# What a run has observed of a platform's capabilities, and what it says of those that a vendor claims.

PASS, FAIL, UNSUPPORTED = "pass", "fail", "unsupported"


def rows(*cells: tuple[str, str]) -> dict[tuple[str, str], Observed]:
    found = record_of(results(*(cell(name, verdict=verdict) for name, verdict in cells)))
    return {(row.implementation, row.name): row for row in found.capabilities}


@pytest.mark.contract("C52")
def test_what_cells_show() -> None:
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
    expected = {"io_callback": "partly (1 of 2)", "pure_callback": "no (0 of 1)", "loops": "no (0 of 1)"}
    expected |= {"debug.callback": "not tested", "vmap": "yes (1 of 1)", "buffer_callback": "no (0 of 2)"}
    assert {name: found["jax", name].counted for name in expected} == expected
    assert rows(*refused)["jax", "vmap"].counted == "no (0 of 1)"


def test_a_report_has_no_rows_of_what_its_run_cannot_have() -> None:
    """Of JAX's own callbacks alone; and of variables that nobody has set."""
    run_info = {"acme-1dev": {"jax": "0.12.0.1", "PJRT_NPROC": ""}}
    run = record_of(results(cell("jax/io_callback/jit/acme-1dev"), platform="acme", run_info=run_info))
    data = Page(html([run])).data["runs"][0]
    names = [name for name, *_ in data["capabilities"]["rows"]]
    assert "io_callback" in names and "vmap" in names and not {"id_tap", "call", "dlpack_callback"} & {*names}
    assert data["environment"] == {"acme-1dev": {"jax": "0.12.0.1"}}
    text = markdown([run])
    assert "`vmap`" in text and "`id_tap`" not in text and "PJRT" not in text


@pytest.mark.contract("C52")
@pytest.mark.parametrize("known", [True, False])
def test_a_claim_that_fails_is_a_verdict_of_its_own(known: bool) -> None:
    """Also where the failure is known: to list it is not to have the capability."""
    good = [(f"hostcb/{name}/scan/toy-1dev", PASS) for name in ("id_tap", "call")]
    found = rows(("jax/id_tap/scan/toy-1dev", FAIL), *good)
    claims = judged_claims(["ordered", "hostcb:id_tap", "sharded"], [*found.values()])
    assert [claim.verdict for claim in claims] == ["failed", "holds", "not tested"]
    for name, unit in {"errors": "case", "multi-process": "cell", "hostcb:id_tap": "program"}.items():
        assert f"failed in 1 of 2 {unit}s: x" in Claim(name, 2, ("x",)).sentence
    cell = "jax/io_callback_ordered/scan/toy-1dev"
    entries = (Expectation((cell,), "fail", "planted", "none", "2026-11-23"),) if known else ()
    made = Report("toy", Expectations(entries), claims=("ordered",))
    made.add(parse_cell(cell), Outcome(Verdict.FAIL, Stage.CALLBACK, "order: planted", anomaly="order"))
    made.add(parse_cell("jax/io_callback_ordered/jit/toy-1dev"), Outcome(Verdict.PASS))
    assert made.exit_code == 1
    words = f"claimed capability `ordered` failed in 1 of 2 programs: {cell}"
    assert words in made.summary()
    assert made.as_json()["claims"] == [{"name": "ordered", "verdict": "failed", "cells": 2, "failed": [cell]}]
