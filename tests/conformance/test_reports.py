"""What a run prints at its end, and the reports that are made of its results: Markdown and the page."""

from __future__ import annotations

import re
import shutil
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
from conformance.spec.package import COMMAND, command_here, install_here

pytestmark = pytest.mark.contract("C5", "C70")


def test_markdown_says_what_matters(tmp_path: Path) -> None:
    variant = cell("hostcb/id_tap/vmap.scan+int8-matrix-dict/cpu-4dev+grid+x64")
    lines = markdown(load_results(write(tmp_path, PASSED, variant, LOST, KNOWN, CASE))).splitlines()
    assert lines[0] == "# Conformance on cpu: NOT as expected"
    expected = {
        "- passed: 3 of 5 cells passed",
        "- known: 1 known failure",
        "- unexpected: 2 unexpected results",
        "lost: cpu:3 never ran #6",
        "$ python -m conformance run --cell hostcb/call/scan/cpu-8dev",
        "| callback | vmap | scan |",
        "| `id_tap` | ✓ | ✓ |",
        "| `call` |  | ✗1 |",
        "| callback | grad | scan | case |",
        "| `io_callback` | ~1 | ~1 | ✗1 |",
        "| 1.50 | `hostcb/call/scan/cpu-8dev` |",
        "| jax | `0.12.0.1` |",
    }
    assert expected <= {*lines}
    assert any("Dropped under grad. <https://example.org/issues/1>" in line for line in lines)


def test_markdown_of_a_good_run_of_an_empty_one_and_of_two_platforms(tmp_path: Path) -> None:
    good, empty = write(tmp_path / "good", PASSED, KNOWN), write(tmp_path / "empty")
    assert markdown(load_results(good)).startswith("# Conformance on cpu: as expected\n")
    assert markdown(load_results(empty)).startswith("# Conformance on cpu: NOT as expected\n")
    write(good, cell("hostcb/id_tap/jit/cuda-1dev"), platform="cuda")
    assert markdown(load_results(good)).count("# Conformance on") == 2


def test_markdown_stays_small(tmp_path: Path) -> None:
    long = "\n".join(["a line of a stack"] * 500)
    names = [f"{letter * 3} {other * 3}" for letter in ascii_letters for other in ascii_letters]
    causes = [
        LOST | {"id": f"hostcb/call/scan/cpu-{n}dev", "witness": f"{name}\n{long}"} for n, name in enumerate(names)
    ]
    alike = [LOST | {"id": f"hostcb/tap/scan/cpu-{n}dev", "witness": f"cell {n}\n{long}"} for n in range(3000)]
    write(tmp_path, *causes, *alike)
    text = markdown(load_results(tmp_path))
    assert "and 2605 more causes." in text
    assert "... and 2900 more cells" in text
    assert "... and 489 more lines" in text
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
    assert cells[CASE["id"]]["transforms"] == ["case"]
    # A passed cell costs the page little.
    assert set(cells[PASSED["id"]]) == {"id", "transforms", "promises", "verdict", "status", "seconds", "reproduce"}
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    names = {name for _, attributes in page.elements for name, _ in attributes}
    assert not {"src", "href", "srcset", "action", "style"} & names
    assert not [name for name in names if name.startswith("on")]


# What a run prints.


def lost(place: int) -> dict[str, object]:
    name = f"hostcb/call/scan/cpu-{place}dev"
    return cell(name, **(LOST | {"id": name, "witness": f"lost: cpu:{place} never ran #{place}"}))


def test_cells_of_one_cause_are_one_entry_and_the_block_is_the_end() -> None:
    swapped = LOST | {"id": "hostcb/tap/scan/cpu-1dev", "anomaly": "order", "witness": "order: cpu:0 ran #7 before #6"}
    run = record_of(results(PASSED, KNOWN, swapped, *map(lost, range(33)), problems=["a worker could not end"]))
    before, block = summary(run, page=Path("results/index.html")).split("\n\n")
    assert before.count("UNEXPECTED: ") == 2
    assert "33 cells, hostcb/call/scan/cpu-0dev for one" in before
    assert before.index("cpu:0 never ran #0") < before.index("order: cpu:0 ran #7")
    lines = block.splitlines()
    assert lines[0] == "FAIL"
    assert len(lines) <= 12
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


@pytest.mark.parametrize(
    ("cell_id", "stage", "known"),
    [
        ("jax/pure_callback/case.has_cause.jit/npu-2dev", Stage.DISPATCH, True),
        ("jax/pure_callback/case.has_cause.jit/npu-2dev", Stage.RESULT, False),
        ("hostcb/pure_callback/case.has_cause.jit/npu-2dev", Stage.DISPATCH, False),
        ("jax/pure_callback/case.has_cause.jit/cpu-2dev", Stage.DISPATCH, False),
    ],
)
def test_a_failure_of_the_cpu_is_recognised_on_another_platform(cell_id: str, stage: Stage, known: bool) -> None:
    assert (known_on_cpu(cell_id, Outcome(Verdict.FAIL, stage)) is not None) is known


def test_a_good_run_is_its_block_alone() -> None:
    run = record_of(results(PASSED, KNOWN))
    assert summary(run).startswith("PASS\n")
    assert summary(run, colour=True).startswith("\033[1;32mPASS\033[0m\n")
    assert "Dropped under grad." not in summary(run)
    assert "Dropped under grad." in summary(run, known=True)


def test_the_reasons_of_many_known_failures_are_cut() -> None:
    def known(place: int) -> dict[str, object]:
        why = KNOWN["known"] | {"reason": f"Reason {place}."}
        return KNOWN | {"id": f"jax/io_callback/grad.scan/cpu-{place}dev", "known": why}

    said = summary(record_of(results(PASSED, *map(known, range(MOST_KNOWN + 2)))), known=True)
    assert f"Reason {MOST_KNOWN - 1}." in said
    assert f"Reason {MOST_KNOWN}." not in said
    assert "... and 2 more reasons of known failures" in said


def test_the_page_knows_the_programs_that_have_no_transforms() -> None:
    """They come after those with transforms; otherwise the first screen of the matrix is empty."""
    named = re.search(r"const kind = \{ (.*?) \}", html([]))
    assert named
    known = {word.partition(":")[0] for word in named[1].split(", ")}
    ids = (
        "hostcb/call/table.call.jit/cpu-1dev",
        "hostcb/call/case.raises.jit/cpu-1dev",
        "hostcb/call/jit.scan/cpu-1dev",
    )
    transforms = [one.transforms for one in record_of(results(*map(cell, ids))).cells]
    assert [known.issuperset(one) for one in transforms] == [True, True, False]


def test_a_witness_cannot_control_the_terminal() -> None:
    text = summary(record_of(results(LOST | {"witness": "\033[2J\rPASS"}, problems=["one\nPASS"])))
    assert "\033" not in text
    assert "\r" not in text
    assert "PASS" not in text.splitlines()


def test_a_printed_command_names_the_interpreter_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "environment/bin/python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert command_here(f"{COMMAND} run") == "environment/bin/python -m conformance run"
    monkeypatch.setenv("PATH", str(program.parent))
    assert shutil.which("python") == str(program)
    assert command_here(f"{COMMAND} run") == "python -m conformance run"


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
