"""What a run prints at its end, and the reports that are made of its results: Markdown and the page."""

from __future__ import annotations

import sys
from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest
from results_fakes import CASE, KNOWN, LOST, PASSED, Page, cell, results, write

from conformance.cli.expect import entries
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.on_cpu import known_on_cpu
from conformance.reports.results import load_results, record_of
from conformance.reports.terminal import MOST_KNOWN, summary
from conformance.spec.package import install_here

pytestmark = pytest.mark.contract("C5", "C70")


def test_markdown_says_what_matters(tmp_path: Path) -> None:
    variant = cell("hostcb/id_tap/vmap.scan+int8-matrix-dict/cpu-4dev+grid+x64")
    text = markdown(load_results(write(tmp_path, PASSED, variant, LOST, KNOWN, CASE)))
    lines = text.splitlines()
    assert lines[0] == "# Conformance on cpu: NOT as expected"
    expected = {
        "- passed: 3 of 5 cells passed",
        "- known: 1 known failure",
        "- unexpected: 2 unexpected results",
        "lost: cpu:3 never ran #6",
        "$ python -m conformance run --cell hostcb/call/scan/cpu-8dev",
        "| `id_tap` | ✓ | ✓ |",
        "| `call` |  | ✗1 |",
        "| `io_callback` | ~1 | ~1 | ✗1 |",
        "| jax | `0.12.0.1` |",
    }
    assert expected <= {*lines}
    assert "Dropped under grad. <https://example.org/issues/1>" in text
    good, empty = write(tmp_path / "good", PASSED, KNOWN), write(tmp_path / "empty")
    assert markdown(load_results(good)).startswith("# Conformance on cpu: as expected\n")
    assert markdown(load_results(empty)).startswith("# Conformance on cpu: NOT as expected\n")
    write(good, cell("hostcb/id_tap/jit/cuda-1dev"), platform="cuda")
    assert markdown(load_results(good)).count("# Conformance on") == 2


def test_markdown_stays_small(tmp_path: Path) -> None:
    long = "\n".join(["a line of a stack"] * 500)
    names = [f"{letter * 3} {other * 3}" for letter in ascii_letters for other in ascii_letters[:6]]
    causes = [
        LOST | {"id": f"hostcb/call/scan/cpu-{n}dev", "witness": f"{name}\n{long}"} for n, name in enumerate(names)
    ]
    alike = [LOST | {"id": f"hostcb/tap/scan/cpu-{n}dev", "witness": f"cell {n}\n{long}"} for n in range(300)]
    text = markdown(load_results(write(tmp_path, *causes, *alike)))
    assert "and 213 more causes." in text and "... and 200 more cells" in text
    assert len(text.encode()) < 1 << 18


def test_the_page_holds_every_cell_and_loads_nothing(tmp_path: Path) -> None:
    text = html(load_results(write(tmp_path, PASSED, LOST | {"evidence": [[0, 7], [1, 6]]}, KNOWN, CASE)))
    page = Page(text)
    (run,) = page.data["runs"]
    cells = {cell["id"]: cell for cell in run["cells"]}
    assert len(cells) == 4
    lost = cells[LOST["id"]]
    assert (lost["witness"], lost["evidence"]) == (LOST["witness"], [[0, 7], [1, 6]])
    first, second = lost["history"]
    assert (first["where"], first["begin"], first["end"]) == ("device 3", 0, 3000)
    assert (second["begin"], second["value"]) == (7000, "[NaN, Infinity]")
    assert page.data["known"][cells[KNOWN["id"]]["known"]]["link"] == "https://example.org/issues/1"
    # A passed cell costs the page little.
    assert set(cells[PASSED["id"]]) == {"id", "transforms", "promises", "verdict", "status", "seconds", "reproduce"}
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    names = {name for _, attributes in page.elements for name, _ in attributes}
    assert not {"src", "href", "srcset", "action", "style"} & names
    assert not [name for name in names if name.startswith("on")]


# What a run prints.


def lost(place: int) -> dict[str, Any]:
    return LOST | {"id": f"hostcb/call/scan/cpu-{place}dev", "witness": f"lost: cpu:{place} never ran #{place}"}


def test_cells_of_one_cause_are_one_entry_and_the_block_is_the_end() -> None:
    swapped = LOST | {"id": "hostcb/tap/scan/cpu-1dev", "anomaly": "order", "witness": "order: cpu:0 ran #7 before #6"}
    run = record_of(results(PASSED, KNOWN, swapped, *map(lost, range(33)), problems=["a worker could not end"]))
    before, block = summary(run, page=Path("results/index.html")).split("\n\n")
    assert before.count("UNEXPECTED: ") == 2
    assert "33 cells, hostcb/call/scan/cpu-0dev for one" in before
    lines = block.splitlines()
    assert lines[0] == "FAIL" and len(lines) <= 12
    for fact in ("JAX 0.12.0.1", "1 of 36 cells passed", "34 unexpected results"):
        assert fact in block
    assert lines[-1].endswith(" results/index.html")
    assert [len(cause["cells"]) for cause in Page(html([run])).data["runs"][0]["causes"]] == [33, 1]


def test_a_failure_says_whose_it_may_be() -> None:
    def failed(cell_id: str, **fields: Any) -> dict[str, Any]:
        return cell(cell_id, verdict="fail", status="unexpected", witness="lost", **fields)

    known = {"reason": "JAX loses it.", "link": "https://example.org/2", "intermittent": False}
    cells = [
        failed(f"{name}/npu-1dev") for name in ("hostcb/call/jit", "hostcb/io_callback/jit", "jax/io_callback/jit")
    ]
    cells += [cell("hostcb/id_tap/scan/npu-1dev"), failed("jax/id_tap/scan/npu-1dev", on_cpu=known)]
    cells += [failed(f"jax/call/{name}/npu-1dev", on_cpu=known) for name in ("scan", "pmap", "vmap")]
    run = record_of(results(*cells, platform="npu"))
    shared = [
        "hostcb: 2 cells. The same with jax: 1 not run, 1 failed.",
        "jax: 1 cell. The same with hostcb: 1 failed.",
    ]
    of_jax = [
        "known on the CPU: JAX loses it. https://example.org/2",
        "jax: 4 cells. The same with hostcb: 3 not run, 1 passed.",
    ]
    causes = Page(html([run])).data["runs"][0]["causes"]
    assert [(len(cause["cells"]), cause["notes"]) for cause in causes] == [(3, shared), (4, of_jax)]
    for text in (summary(run), markdown([run])):
        assert all(note.removeprefix("known on the CPU: ") in text for note in (*shared, *of_jax))
    toml = "\n".join(entries(run, "2026-11-28", whole=False))
    assert toml.count('reason = ""') == 3
    assert 'reason = "JAX loses it."\nlink = "https://example.org/2"' in toml


def test_a_failure_of_the_cpu_is_recognised_on_another_platform() -> None:
    cell_id, failed = "jax/pure_callback/case.has_cause.jit/npu-2dev", Outcome(Verdict.FAIL, Stage.DISPATCH)
    assert known_on_cpu(cell_id, failed)
    for other in (cell_id.replace("jax/", "hostcb/"), cell_id.replace("npu", "cpu")):
        assert known_on_cpu(other, failed) is None
    assert known_on_cpu(cell_id, Outcome(Verdict.FAIL, Stage.RESULT)) is None


def test_a_good_run_is_its_block_alone_and_many_reasons_are_cut() -> None:
    def known(place: int) -> dict[str, Any]:
        why = KNOWN["known"] | {"reason": f"Reason {place}."}
        return KNOWN | {"id": f"jax/io_callback/grad.scan/cpu-{place}dev", "known": why}

    run = record_of(results(PASSED, *map(known, range(MOST_KNOWN + 2))))
    assert summary(run).startswith("PASS\n") and "Reason 0." not in summary(run)
    assert summary(run, colour=True).startswith("\033[1;32mPASS\033[0m\n")
    said = summary(run, known=True)
    assert f"Reason {MOST_KNOWN - 1}." in said and f"Reason {MOST_KNOWN}." not in said


@pytest.mark.parametrize(
    ("spec", "command"),
    [(object(), "/venv/python -m pip install uv"), (None, "uv pip install --python /venv/python uv")],
)
def test_a_printed_installation_is_for_this_interpreter(
    spec: object, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that uv has made has no pip."""
    monkeypatch.setattr(sys, "executable", "/venv/python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    assert install_here("uv") == command
