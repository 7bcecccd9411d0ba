"""Reports of runs, from the JSON alone."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from conformance.cli.commands import main
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.results import SCHEMA_VERSION, UnreadableResultsError, load_results
from conformance.reports.visible import visible

HOSTILE = "</script><img src=x onerror=alert(1)> ]]> & \" ' ``` ```` | {{ results }} \x1b[31m \x00 \ud800 end"


def event(sequence: int, device: int | None, **fields: Any) -> dict[str, Any]:
    start = 10_000_000_000_000 + sequence * 7_000
    times = {"thread": 140_172_696_722_304, "begin": start, "end": start + 3_000}
    return (
        {"sequence": sequence, "site": "first", "value": [1.0], "transforms": "()", "device": device} | times | fields
    )


def cell(cell_id: str, **fields: Any) -> dict[str, Any]:
    passed = {
        "id": cell_id,
        "promises": ["H1"],
        "verdict": "pass",
        "stage": None,
        "anomaly": "",
        "witness": "",
        "seconds": 0.25,
        "signal": None,
        "history": [],
        "standing": "as_expected",
        "expected": "pass",
        "known": None,
        "attempts": 1,
        "reproduce": f"python -m conformance run --cell {cell_id}",
    }
    return passed | fields


PASSED = cell("hostcb/id_tap/vmap.scan/cpu-8dev")
LOST = cell(
    "hostcb/call/scan/cpu-8dev",
    verdict="fail",
    stage="callback",
    anomaly="lost",
    witness="lost: cpu:3 never ran #6",
    standing="unexpected",
    attempts=2,
    seconds=1.5,
    history=[event(0, 3), event(1, 0, value=[float("nan"), float("inf")])],
)
KNOWN = cell(
    "jax/io_callback/grad.scan/cpu-1dev",
    verdict="fail",
    stage="callback",
    anomaly="order",
    witness="order: cpu:0 ran #2 before #1",
    standing="known_failure",
    expected="fail",
    known={"reason": "Dropped under grad.", "link": "https://example.org/issues/1", "intermittent": False},
)
CASE = cell("jax/io_callback/case.raises.jit/cpu-8dev", standing="unexpected_pass", expected="hang")


def write(folder: Path, *cells: dict[str, Any], platform: str = "cpu", **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    run = {
        "schema": SCHEMA_VERSION,
        "platform": platform,
        "run_info": {"cpu-8dev": {"jax": "0.12.0.1", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}},
        "seconds": 12.0,
        "exit_code": 1,
        "problems": [],
        "cells": list(cells),
        "ineligible": [{"id": "hostcb/id_tap/pmap.pmap/cpu-8dev", "reason": "JAX refuses"}],
    }
    (folder / f"conformance-{platform}.json").write_text(json.dumps(run | fields))
    return folder


def hostile(folder: Path) -> Path:
    """A run whose every text, names included, tries to be more than text."""
    word = HOSTILE.replace("/", "\N{DIVISION SLASH}")
    bad = LOST | {
        "id": f"{word}/{word}/{word}.scan/{word}",
        "promises": [HOSTILE],
        "verdict": HOSTILE,
        "stage": HOSTILE,
        "anomaly": HOSTILE,
        "witness": f"{HOSTILE}\n{HOSTILE}",
        "reproduce": HOSTILE,
        "history": [event(0, None, site=HOSTILE, value=HOSTILE, transforms=HOSTILE)],
    }
    known = KNOWN | {"witness": HOSTILE, "known": {"reason": HOSTILE, "link": HOSTILE, "intermittent": False}}
    return write(folder, bad, known, platform="cpu", problems=[HOSTILE], run_info={word: {HOSTILE: HOSTILE}})


class Page(HTMLParser):
    """What a page consists of, as a browser would take it apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts[-1] += data


def test_markdown_says_what_matters(tmp_path: Path) -> None:
    write(tmp_path, PASSED, LOST, KNOWN, CASE, process_starts=7)
    text = markdown(load_results(tmp_path))
    lines = text.splitlines()
    assert lines[0] == "# Conformance on cpu: NOT as expected"
    assert "2 of 4 cells passed, 1 known failures, 2 unexpected results, 1 cells not applicable, 12 s." in lines
    assert "lost: cpu:3 never ran #6" in lines
    assert "$ python -m conformance run --cell hostcb/call/scan/cpu-8dev" in lines
    assert "| callback | vmap | scan |" in lines
    assert "| `id_tap` | ✓ | ✓ |" in lines
    assert "| `call` |  | ✗1 |" in lines
    assert "| callback | grad | scan | case |" in lines
    assert "| `io_callback` | ~1 | ~1 | ✗1 |" in lines
    assert "Dropped under grad. <https://example.org/issues/1>" in text
    assert (
        "12 s from start to end; 2 s in 4 cells, 0.562 s in one on average, 7 worker processes started. The slowest:"
        in lines
    )
    assert "| 1.50 | `hostcb/call/scan/cpu-8dev` |" in lines
    assert "| jax | `0.12.0.1` |" in lines


def test_data_and_placement_are_not_taken_for_transforms(tmp_path: Path) -> None:
    variant = cell("hostcb/id_tap/vmap.scan+int8-matrix-dict/cpu-4dev+grid+x64")
    write(tmp_path, PASSED, variant)
    (run,) = load_results(tmp_path)
    assert [each.transforms for each in run.cells] == [("vmap", "scan")] * 2
    assert "| callback | vmap | scan |" in markdown([run]).splitlines()


def test_markdown_of_a_good_run_and_of_an_empty_one(tmp_path: Path) -> None:
    good, empty = write(tmp_path / "good", PASSED, KNOWN), write(tmp_path / "empty")
    assert markdown(load_results(good)).startswith("# Conformance on cpu: as expected\n")
    assert markdown(load_results(empty)).startswith("# Conformance on cpu: NOT as expected\n")


def test_markdown_stays_small(tmp_path: Path) -> None:
    long = "\n".join(["a line of a stack"] * 500)
    write(tmp_path, *(LOST | {"id": f"hostcb/call/scan/cpu-{n}dev", "witness": long} for n in range(3000)))
    text = markdown(load_results(tmp_path))
    assert "and 2900 more." in text
    assert "... and 488 more lines" in text
    assert len(text.encode()) < 1 << 18


def test_hostile_text_in_markdown(tmp_path: Path) -> None:
    text = markdown(load_results(hostile(tmp_path)))
    fence = None
    for line in text.splitlines():
        if fence is None and line.startswith("```") and not line.strip("`"):
            fence = line
        elif fence is not None:
            fence = None if line == fence else fence
        else:
            outside_code = "".join(part for number, part in enumerate(line.split("`````")) if number % 2 == 0)
            assert "<img" not in outside_code
    assert fence is None


def test_page_holds_every_cell(tmp_path: Path) -> None:
    write(tmp_path, PASSED, LOST, KNOWN, CASE)
    page = Page(html(load_results(tmp_path)))
    data = json.loads(page.scripts[0])
    (run,) = data["runs"]
    cells = {cell["id"]: cell for cell in run["cells"]}
    assert len(cells) == 4
    assert cells[LOST["id"]]["witness"] == LOST["witness"]
    first, second = cells[LOST["id"]]["history"]
    assert (first["where"], first["begin"], first["end"]) == ("device 3", 0, 3000)
    assert (second["begin"], second["value"]) == (7000, "[NaN, Infinity]")
    assert data["known"][cells[KNOWN["id"]]["known"]]["link"] == "https://example.org/issues/1"
    assert cells[CASE["id"]]["transforms"] == ["case"]
    assert run["environment"]["cpu-8dev"]["jax"] == "0.12.0.1"
    # A passed cell costs the page little.
    assert set(cells[PASSED["id"]]) == {"id", "transforms", "promises", "verdict", "standing", "seconds", "reproduce"}


def test_page_is_alone_in_the_world(tmp_path: Path) -> None:
    write(tmp_path, PASSED, LOST, KNOWN)
    text = html(load_results(tmp_path))
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not {"src", "href", "srcset", "action", "data", "poster"} & {name for name, _ in page.attributes}
    assert any(value and "default-src 'none'" in value for _, value in page.attributes)
    for reaching_out in ("@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "import("):
        assert reaching_out not in text
    assert "prefers-color-scheme: dark" in text
    # Text from a run is never made into markup.
    for parsing in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert parsing not in text


def test_hostile_text_in_the_page(tmp_path: Path) -> None:
    harmless = Page(html(load_results(write(tmp_path / "harmless", LOST, KNOWN))))
    page = Page(html(load_results(hostile(tmp_path / "hostile"))))
    assert page.tags == harmless.tags
    assert page.attributes == harmless.attributes
    data = json.loads(page.scripts[0])
    assert data["runs"][0]["cells"][0]["witness"] == visible(f"{HOSTILE}\n{HOSTILE}")
    assert page.scripts[1] == harmless.scripts[1]


def test_report_writes_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(hostile(tmp_path))
    files = {name: tmp_path / f"report.{name}" for name in ("markdown", "html")}
    assert main(["report", folder, *(f"--{name}={file}" for name, file in files.items())]) == 0
    assert capsys.readouterr().out == f"Written: {files['html']}, {files['markdown']}\n"
    assert files["html"].read_text().startswith("<!DOCTYPE html>")
    assert files["markdown"].read_text().startswith("# Conformance")
    write(tmp_path, PASSED)
    assert main(["report", folder]) == 0
    assert capsys.readouterr().out.startswith("# Conformance on cpu: as expected")


def test_several_platforms_share_a_folder(tmp_path: Path) -> None:
    write(tmp_path, PASSED)
    write(tmp_path, PASSED | {"id": "hostcb/id_tap/jit/cuda-1dev"}, platform="cuda")
    runs = load_results(tmp_path)
    assert [run.platform for run in runs] == ["cpu", "cuda"]
    assert markdown(runs).count("# Conformance on") == 2


def test_reading_needs_no_jax(tmp_path: Path) -> None:
    write(tmp_path, PASSED, LOST)
    # Any import of JAX fails, as where it is not installed.
    program = "import sys, runpy; sys.modules['jax'] = None; runpy.run_module('conformance', run_name='__main__')"
    for arguments, code in ((["report", "."], 0), (["diff", "a=.", "b=."], 0)):
        command = [sys.executable, "-c", program, *arguments]
        environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == code, result.stderr


BROKEN_FILES = {
    "no JSON": ("{", "is no result of a run"),
    "no object": ("[]", "is no result of a run"),
    "no schema": ("{}", "is no result of a run: KeyError: 'schema'"),
    "a newer schema": (json.dumps({"schema": SCHEMA_VERSION + 1}), f"has schema {SCHEMA_VERSION + 1}, and this reader"),
    "a schema in words": ('{"schema": "one"}', "the schema is 'one', not a number"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_unreadable_results(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str) -> None:
    (tmp_path / "conformance-cpu.json").write_text(content)
    assert main(["report", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert main(["diff", str(tmp_path), f"b={tmp_path}"]) == 2


@pytest.mark.parametrize("field", ["id", "standing", "history", "seconds", "verdict"])
def test_unreadable_cells(tmp_path: Path, field: str) -> None:
    write(tmp_path, LOST | {field: {"of": "another kind"}})
    if field == "verdict":
        # Words are shown whatever they are.
        assert load_results(tmp_path)
    else:
        with pytest.raises(UnreadableResultsError):
            load_results(tmp_path)


def test_no_results_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "holds no conformance-PLATFORM.json" in capsys.readouterr().err


def test_run_writes_what_is_read(tmp_path: Path) -> None:
    """A real cell that fails for a known reason, from the run to the records."""
    cell_id = "jax/io_callback/grad.scan.detached/cpu-1dev"
    assert main(["run", "-n", "1", "--results", str(tmp_path), "--cell", cell_id]) == 0
    ((record,),) = (run.cells for run in load_results(tmp_path))
    assert (record.id, record.verdict, record.stage, record.anomaly) == (cell_id, "fail", "callback", "lost")
    assert record.known is not None
    assert record.known.link.startswith("https://")
    assert record.history[0].site == "first"
    lines = map(json.loads, (tmp_path / "journal-cpu.jsonl").read_text().splitlines())
    ends = [line for line in lines if line["event"] == "end"]
    # The same history as JSON lines, of every attempt.
    assert len(ends[-1]["outcome"]["history"]) == len(record.history)


def test_run_keeps_the_histories_of_passed_cells_on_request(tmp_path: Path) -> None:
    arguments = ["run", "-n", "1", "--results", str(tmp_path), "--cell", "hostcb/id_tap/scan/cpu-1dev"]
    kept = {}
    # One after the other: the second run must not inherit anything of the first.
    for options in (["--histories"], []):
        assert main([*arguments, *options]) == 0
        ((record,),) = (run.cells for run in load_results(tmp_path))
        assert record.verdict == "pass"
        kept[len(options)] = [event.sequence for event in record.history]
    assert kept[1] and kept[1] == list(range(len(kept[1])))
    assert kept[0] == []
