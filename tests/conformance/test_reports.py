"""Reports of runs, from the JSON alone: Markdown, the page and traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest
from results_fakes import CASE, KNOWN, LOST, PASSED, Page, cell, event, write

from conformance.cli.commands import main
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.results import load_results

pytestmark = pytest.mark.contract("C5")


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


def test_report_writes_what_it_is_asked_for_without_jax(tmp_path: Path) -> None:
    write(tmp_path, PASSED, LOST)
    program = "import sys, runpy; sys.modules['jax'] = None; runpy.run_module('conformance', run_name='__main__')"
    files = {name: tmp_path / f"report.{name}" for name in ("html", "markdown")}
    arguments = ["report", ".", *(f"--{name}={file.name}" for name, file in files.items()), "--trace", "traces"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "Written: traces, report.html, report.markdown\n")
    assert files["html"].read_text().startswith("<!DOCTYPE html>")
    assert files["markdown"].read_text().startswith("# Conformance")
    assert [file.name for file in (tmp_path / "traces").iterdir()] == ["hostcb_call_scan_cpu-8dev.json"]


def test_a_real_failure_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A cell that fails for a known reason, with its history, and one that passes, without."""
    failing, passing = "jax/io_callback/grad.scan.detached/cpu-1dev", "hostcb/id_tap/scan/cpu-1dev"
    arguments = ["run", "-n", "1", "--results", str(tmp_path), "--cell", failing, "--cell", passing]
    assert main(arguments) == 0
    ((record, passed),) = (run.cells for run in load_results(tmp_path))
    assert passed.verdict == "pass" and not passed.history
    assert [event.sequence for event in record.history] == [*range(len(record.history))]
    assert (record.id, record.verdict, record.stage, record.anomaly) == (failing, "fail", "callback", "lost")
    assert record.known
    assert record.known.link.startswith("https://")
    ends = map(json.loads, (tmp_path / "journal-cpu.jsonl").read_text().splitlines())
    (outcome,) = (end["outcome"] for end in ends if end["event"] == "end" and end["cell"] == failing)
    assert len(outcome["history"]) == len(record.history)


# Traces.

SWAPPED = LOST | {
    "id": "hostcb/id_tap/scan/cpu-8dev",
    "anomaly": "order",
    "witness": "order: cpu:3 ran #7 before #6",
    "history": [event(0, 3), event(1, 3), event(2, None), event(3, 0, begin=event(2, 0)["begin"])],
    "evidence": [[0, 7], [1, 6]],
}


def traced(path: Path) -> tuple[list[dict[str, Any]], dict[int, str]]:
    events = json.loads(path.read_text())
    return events, {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}


def test_a_trace_has_a_track_for_each_device_and_thread_and_marks_the_witness(tmp_path: Path) -> None:
    start = event(0, 3)["begin"]
    overlapping = LOST | {"history": [event(0, 3), event(1, 3, begin=start + 1_000, end=start + 9_000)]}
    write(tmp_path, SWAPPED, overlapping)
    assert main(["report", str(tmp_path), "--trace", str(tmp_path / "traces")]) == 0
    events, names = traced(tmp_path / "traces" / "hostcb_id_tap_scan_cpu-8dev.json")
    slices = [each for each in events if each["ph"] == "X"]
    assert [names[each["tid"]] for each in slices] == ["cpu:3", "cpu:3", "thread 1", "cpu:0"]
    assert [each["name"] for each in slices if "witness" in each["cat"]] == ["#7 first", "#6 first"]
    assert [each["ts"] for each in slices] == [0.0, 7.0, 14.0, 14.0]
    assert slices[0]["dur"] == 3.0
    assert [each["name"] for each in events if each["ph"] == "i"] == [SWAPPED["witness"]] * 2
    _, names = traced(tmp_path / "traces" / "hostcb_call_scan_cpu-8dev.json")
    assert sorted(names.values()) == ["cpu:3", "cpu:3 (2)"]


def test_results_without_a_history_cannot_be_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, PASSED)
    assert main(["report", str(tmp_path), "--trace", str(tmp_path / "traces")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ERROR: no cell has a history to trace")
