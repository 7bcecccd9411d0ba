"""Any number of results side by side, from the JSON alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_conformance_reports import HOSTILE, LOST, PASSED, Page, cell, event, hostile, write

from conformance.cli.report import main
from conformance.reports.comparison import ComparisonError, comparison
from conformance.reports.results import load_results
from conformance.reports.table import Table
from conformance.reports.table_pages import html, markdown

pytestmark = pytest.mark.contract("C8")

BOTH = "pure_callback/fault.raises.jit/cpu-8dev"
AGREED = cell("jax/io_callback/scan/cpu-8dev")


def compared(tmp_path: Path, *columns: list[dict[str, Any]], **options: Any) -> Table:
    folders = [write(tmp_path / f"c{number}", *cells) for number, cells in enumerate(columns)]
    return comparison({folder.name: load_results(folder) for folder in folders}, **options)


def failed(cell_id: str, anomaly: str = "lost", **fields: Any) -> dict[str, Any]:
    return LOST | {"id": cell_id, "anomaly": anomaly} | fields


def test_cells_that_differ_are_grouped_and_the_others_counted(tmp_path: Path) -> None:
    first, second = cell("jax/a/jit/cpu-1dev"), cell("jax/b/jit/cpu-1dev")
    lost = [failed(one["id"]) for one in (first, second)]
    table = compared(tmp_path, [first, second, AGREED], [*lost, AGREED], [first, second, AGREED])
    (group,) = table.groups
    assert [row.cell for row in group.rows] == [first["id"], second["id"]]
    assert group.words == ("pass", "fail (lost, callback)", "pass")
    assert table.summary() == "3 cells with 3 columns: 2 differ, 1 agree (1 pass)."
    assert "## 2 cells: pass in c0, c2; fail (lost, callback) in c1" in markdown(table)
    assert "With c1: lost: cpu:3 never ran #6" in markdown(table)


@pytest.mark.parametrize("change", [{"anomaly": "order"}, {"stage": "result"}, {"verdict": "crash(SIGABRT)"}])
def test_another_failure_is_a_difference(tmp_path: Path, change: dict[str, Any]) -> None:
    assert len(compared(tmp_path, [LOST], [LOST | change]).groups) == 1


def test_another_witness_is_none(tmp_path: Path) -> None:
    assert compared(tmp_path, [LOST], [LOST | {"witness": "lost: cpu:5 never ran #2"}]).groups == ()


def test_a_cell_that_some_columns_lack_is_said(tmp_path: Path) -> None:
    table = compared(tmp_path, [PASSED, AGREED], [AGREED])
    assert table.groups == ()
    assert "- 1 cell ran in c0 alone" in markdown(table)
    # What ran once agrees with nothing.
    assert (
        table.summary() == "2 cells with 2 columns: 0 differ, 1 agree (1 pass), 1 ran in one column at most (1 pass)."
    )
    assert "1 cell ran in c0 alone" in html(table)


def test_by_implementation(tmp_path: Path) -> None:
    table = compared(tmp_path, [cell(f"hostcb/{BOTH}"), failed(f"jax/{BOTH}"), AGREED], by_implementation=True)
    assert [column.label for column in table.columns] == ["hostcb", "jax"]
    (group,) = table.groups
    assert group.rows[0].cell == f"*/{BOTH}"
    assert group.words == ("pass", "fail (lost, callback)")


def test_by_implementation_of_several(tmp_path: Path) -> None:
    both = [cell(f"hostcb/{BOTH}"), cell(f"jax/{BOTH}")]
    table = compared(tmp_path, both, both, by_implementation=True)
    assert [column.label for column in table.columns] == ["c0 hostcb", "c0 jax", "c1 hostcb", "c1 jax"]


def test_by_platform(tmp_path: Path) -> None:
    info = {"cuda-8dev": {"jax": "0.12.0", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}}
    write(tmp_path, AGREED)
    write(tmp_path, failed(AGREED["id"].replace("cpu", "cuda")), platform="cuda", run_info=info)
    table = comparison({"results": load_results(tmp_path)}, by_platform=True)
    assert [column.label for column in table.columns] == ["cpu", "cuda"]
    assert table.groups[0].rows[0].cell == "jax/io_callback/scan/*-8dev"
    # What is the same in both is not shown.
    assert table.environments == {"jax": ("0.12.0.1", "0.12.0")}
    assert "| jax | 0.12.0.1 | 0.12.0 |" in markdown(table)


def test_patterns_select(tmp_path: Path) -> None:
    table = compared(tmp_path, [PASSED, AGREED], [PASSED, AGREED], patterns=["io_callback and scan"])
    assert [row.cell for row in table.rows] == [AGREED["id"]]
    with pytest.raises(ComparisonError, match="no cell answers to -k"):
        compared(tmp_path, [PASSED], [PASSED], patterns=["none"])


def test_what_fails_by_chance_is_marked(tmp_path: Path) -> None:
    known = {"reason": "A race.", "link": "none", "intermittent": True}
    table = compared(tmp_path, [PASSED], [failed(PASSED["id"], known=known)])
    assert f"- `{PASSED['id']}` (known to fail by chance)" in markdown(table)


def test_the_page_has_the_history_of_each_failure(tmp_path: Path) -> None:
    table = compared(tmp_path, [cell(LOST["id"])], [LOST | {"history": [event(0, 3), event(1, 0, value=[7.5])]}])
    text = html(table)
    page = Page(text)
    links = {value for name, value in page.attributes if name == "href"}
    assert links == {"#w0"}
    assert ("id", "w0") in page.attributes
    for words in ("lost: cpu:3 never ran #6", "[7.5]", "<td>7 µs</td>", "<th>transforms</th>"):
        assert words in text
    assert "script" not in page.tags
    assert any(value and "default-src 'none'" in value for _, value in page.attributes)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    runs = load_results(hostile(tmp_path / "one"))
    table = comparison({HOSTILE: runs, "other": load_results(write(tmp_path / "two", cell(runs[0].cells[0].id)))})
    page = Page(html(table))
    assert not {"img", "script"} & {*page.tags}
    assert "<img" not in markdown(table).replace("\\<img", "")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write(tmp_path / "before", cell(LOST["id"])), write(tmp_path / "after", LOST)
    page = tmp_path / "page.html"
    assert main(["compare", str(before), f"new={after}", "--html", str(page)]) == 0
    assert "pass in before; fail (lost, callback) in new" in capsys.readouterr().out
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a"], "a comparison needs two columns, and there is 'a' alone"),
        (["a", "a"], "two results are called 'a': give each a name, NAME=DIR"),
        (["a", "empty"], "empty holds no conformance-PLATFORM.json"),
        (["a", "x=none"], "none holds no conformance-PLATFORM.json"),
        (["a", "b", "-k", "x and ("], "-k 'x and (': a word is missing"),
    ],
)
def test_what_cannot_be_compared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", PASSED)
    write(tmp_path / "b", PASSED)
    (tmp_path / "empty").mkdir()
    assert main(["compare", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ERROR: ")
    assert error.count("\n") == 1
    assert words in error


def test_folders_of_one_name_have_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, found in (("a", cell(LOST["id"])), ("b=c", LOST)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "results", found)
    assert main(["compare", "a/results", "b=c/results"]) == 0
    assert "pass in a/results; fail (lost, callback) in b=c/results" in capsys.readouterr().out


def test_comparing_needs_no_jax(tmp_path: Path) -> None:
    write(tmp_path / "a", PASSED)
    write(tmp_path / "b", LOST)
    program = "import sys, runpy; sys.modules['jax'] = None; runpy.run_module('conformance', run_name='__main__')"
    ended = subprocess.run(
        [sys.executable, "-c", program, "compare", "a", "b"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "2 cells with 2 columns" in ended.stdout
