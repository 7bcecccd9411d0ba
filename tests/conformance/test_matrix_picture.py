"""The picture of the matrix: a square for each function and transform, with one half for each implementation."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import hostile_fakes
import pytest

from conformance.cli import commands
from conformance.reports.matrix_picture import matrix_picture
from conformance.reports.results import load_results

SVG = "{http://www.w3.org/2000/svg}"

PASSED = {
    "hostcb/id_tap/jit/cpu-1dev": True,
    "hostcb/pure_callback/vmap.scan/cpu-1dev": True,
    "hostcb/pure_callback/scan+int8/cpu-8dev": False,
    "jax/pure_callback/vmap.scan/cpu-1dev": False,
    "jax/io_callback_ordered/jit/cpu-1dev": True,
    "jax/pure_callback/case.raises.jit/cpu-1dev": False,
    "hostcb/io_and_debug_ordered/jit/cpu-2x4": True,
}
LEFT_OUT = ("hostcb/id_tap/table.some/cpu-1dev", "jax/ffi_target/jit/cpu-1dev", "fakes:GOOD/id_tap/jit/cpu-1dev")


def write(folder: Path, **fields: Any) -> Path:
    plain = hostile_fakes.results("x")["cells"][0]
    cells = [plain | {"id": cell, "verdict": "pass" if passed else "fail"} for cell, passed in PASSED.items()]
    cells += [plain | {"id": cell} for cell in LEFT_OUT]
    return hostile_fakes.write(folder, "x", cells=cells, run_info={"cpu-1dev": {"jax": "0.12.0.1"}}, **fields)


def words(folder: Path) -> tuple[set[str], list[str]]:
    """What the halves of squares say, and the other text."""
    root = ElementTree.fromstring(matrix_picture(load_results(folder)))
    titles = [str(one.text) for one in root.iter(f"{SVG}title")]
    return {title for title in titles if " of " in title}, [str(one.text) for one in root.iter(f"{SVG}text")]


def test_a_cell_counts_for_each_transform_of_its_program(tmp_path: Path) -> None:
    squares, _ = words(write(tmp_path))
    assert squares == {
        "hostcb, id_tap, jit: 1 of 1 cells pass",
        "hostcb, pure_callback, vmap: 1 of 1 cells pass",
        "hostcb, pure_callback, scan: 1 of 2 cells pass",
        "jax, pure_callback, vmap: 0 of 1 cells pass",
        "jax, pure_callback, scan: 0 of 1 cells pass",
        "jax, pure_callback, cases: 0 of 1 cells pass",
        "jax, io_callback (ordered), jit: 1 of 1 cells pass",
        "hostcb, several kinds in a program, jit: 1 of 1 cells pass",
        "hostcb, several kinds in a program, processes: 1 of 1 cells pass",
    }


def test_it_says_of_what_it_is(tmp_path: Path) -> None:
    _, text = words(write(tmp_path, run={"begin": "2026-11-24T20:04:05+00:00"}))
    assert "What callbacks do under each transform, in 7 cells" in text
    assert "JAX 0.12.0.1, cpu, 2026-11-24" in text
    assert "left: hostcb, right: jax" in text
    assert any(line.endswith("3 cells of other kinds are not drawn.") for line in text)
    columns = [line for line in text if line in ("jit", "vmap", "scan", "processes", "cases")]
    assert columns == ["jit", "vmap", "scan", "processes", "cases"]
    rows = [line for line in text if line.startswith(("id_tap", "pure", "io", "several"))]
    assert rows == ["id_tap", "pure_callback", "io_callback (ordered)", "several kinds in a program"]


def test_a_half_that_fails_has_a_number_beside_its_colour(tmp_path: Path) -> None:
    root = ElementTree.fromstring(matrix_picture(load_results(write(tmp_path))))
    kinds = {str(one[0].text).rpartition(":")[0]: one.get("class") for one in root.iter(f"{SVG}rect") if len(one)}
    assert kinds["hostcb, pure_callback, vmap"] == "all"
    assert kinds["hostcb, pure_callback, scan"] == "some"
    assert kinds["jax, pure_callback, scan"] == "none"
    counts = [one.get("class") for one in root.iter(f"{SVG}text") if "count" in (one.get("class") or "")]
    # One of each kind is in the legend.
    assert sorted(map(str, counts)) == ["count in-none"] * 4 + ["count in-some"] * 2


def test_the_command_writes_it_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "results")
    assert commands.main(["report", str(folder), "--svg", str(tmp_path / "matrix.svg")]) == 0
    assert capsys.readouterr().out == f"Written: {tmp_path / 'matrix.svg'}\n"
    assert ElementTree.parse(tmp_path / "matrix.svg").getroot().tag == f"{SVG}svg"


def test_what_was_lowered_is_not_drawn_beside_what_ran(tmp_path: Path) -> None:
    folder = write(tmp_path)
    ran = words(folder)
    plain = hostile_fakes.results("x")["cells"][0]
    lowered = hostile_fakes.results("x") | {
        "platform": "cuda",
        "depth": "lower",
        "run_info": {"cuda": {"jax": "0.12.0.1"}},
    }
    lowered["cells"] = [plain | {"id": "hostcb/call/jit/cuda-1dev@lower", "verdict": "pass"}]
    (folder / "conformance-cuda@lower.json").write_text(json.dumps(lowered))
    assert words(folder) == ran
    (folder / "conformance-cpu.json").unlink()
    assert words(folder)[0] == {"hostcb, call, jit: 1 of 1 cells pass"}


def test_older_results_do_not_say_when_they_began(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert "run" not in json.loads((folder / "conformance-cpu.json").read_text())
    _, text = words(folder)
    assert "JAX 0.12.0.1, cpu" in text
