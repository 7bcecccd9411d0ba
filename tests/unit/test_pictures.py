"""The pictures of the documents: they show the figures that the pages have, and hold nothing but shapes and text."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support.subprocesses import ROOT

from benchmarks import beside_jax, results
from benchmarks.rows import Row

FOLDER = ROOT / "docs" / "pictures"
PICTURES = [FOLDER / "speed.svg"]
RUNS = sorted(FOLDER.glob("speed-*.json"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_shapes_and_text_alone(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "style", "g", "rect", "circle", "line", "text", "title"}
    for element in root.iter():
        assert not [name for name in element.attrib if name.startswith("on") or "href" in name or name == "style"]
    text = picture.read_text()
    assert "url(" not in text
    # A page may be dark.
    assert "prefers-color-scheme: dark" in text
    assert root.get("role") == "img"
    assert root.get("aria-label")


def test_the_picture_of_the_speed_is_that_of_the_stored_figures() -> None:
    runs = [(json.loads(path.read_text())["environment"], results.read(path)) for path in RUNS]
    assert (FOLDER / "speed.svg").read_text() == beside_jax.drawn(runs), (
        "run python -m benchmarks.beside_jax docs/pictures/speed-*.json --svg docs/pictures/speed.svg"
    )


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_the_stored_figures_are_those_of_the_page_about_benchmarks(path: Path) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    about, rows = json.loads(path.read_text())["environment"], results.read(path)
    heading = next(line for line in page.splitlines() if re.match(r"\| what \| against \| target \| [\d.]+ \|", line))
    column = [word.strip() for word in heading.split("|")].index(about["jax"])
    assert f"On {about['date'][:10]}, on {about['cpus']} cores" in page
    drawn = {(row.benchmark, row.what, row.against): row for row in rows}
    assert {*beside_jax.DRAWN} <= {*drawn}
    for key in beside_jax.DRAWN:
        row, begin = drawn[key], "| {}: {} | {} |".format(*key)
        (line,) = [line for line in page.splitlines() if line.startswith(begin)]
        words = [word.strip() for word in line.split("|")]
        ratio, figures = words[column].replace("*", ""), words[column + 1]
        # The page has three digits.
        written = [float(number) for number in re.findall(r"[\d.e+-]*\d", f"{ratio} {figures}")]
        assert written == pytest.approx([row.ratio, row.low, row.high, row.ours, row.theirs], rel=0.01)
        assert figures.endswith(row.unit)


def row(ours: float, theirs: float) -> Row:
    key = next(iter(beside_jax.DRAWN))
    return Row(*key, "us", ours, theirs, ours / theirs, 0.0, 1.0, 0.0, None)


ABOUT = {"jax": "9.9", "python": "3.12.1", "cpus": 2, "date": "2026-11-24T01:02:03+00:00"}


def test_less_is_to_the_left_and_nothing_leaves_the_picture() -> None:
    for ours, theirs in ((1.0, 50.0), (0.001, 1e9)):
        root = ElementTree.fromstring(beside_jax.drawn([(ABOUT, [row(ours, theirs)])]))
        (left,) = [float(one.get("cx", 0)) for one in root.findall(f"{SVG}g/{SVG}circle[@class='ours']")]
        (right,) = [float(one.get("cx", 0)) for one in root.findall(f"{SVG}g/{SVG}circle[@class='theirs']")]
        assert beside_jax.LEFT <= left < right <= beside_jax.WIDTH - beside_jax.RIGHT


@pytest.mark.parametrize(("ratio", "words"), [(0.000144, "1/6,900"), (0.0137, "1/73"), (0.2, "1/5"), (0.66, "0.66")])
def test_a_ratio_is_one_part_of_so_many(ratio: float, words: str) -> None:
    assert f">{words}</text>" in beside_jax.drawn([(ABOUT, [row(ratio, 1.0)])])


def test_the_command_draws_files_that_the_benchmarks_write(tmp_path: Path) -> None:
    results.write(tmp_path / "run.json", [row(1.0, 50.0)], ABOUT)
    assert beside_jax.main([str(tmp_path / "run.json"), "--svg", str(tmp_path / "speed.svg")]) == 0
    text = (tmp_path / "speed.svg").read_text()
    assert "JAX 9.9, Python 3.12, 2 cores, 2026-11-24" in text
    assert "1 µs with hostcb, 50.0 µs with JAX 9.9" in text
