"""Figures that several pages have: each agrees with the place that it comes from."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.rows import Row
from conformance.cli.commands import main

PROJECT = Path(__file__).parents[2]
CELLS = tomllib.loads((PROJECT / "ci" / "sessions.toml").read_text(encoding="utf-8"))["cells"]
MEASURED = {path.stem.removeprefix("speed-"): path for path in (PROJECT / "docs" / "pictures").glob("speed-*.json")}


def text(page: str) -> str:
    """The page with each paragraph in one line."""
    return " ".join((PROJECT / page).read_text(encoding="utf-8").split())


def loops(jax: str) -> dict[str, Row]:
    """What callbacks cost in a device loop, by their name."""
    return {row.what: row for row in results.read(MEASURED[jax]) if row.benchmark == "loop"}


def figure(number: float) -> str:
    """Two digits, as the pages for users have them."""
    return f"{number:.2g}"


def cells(*arguments: str) -> int:
    """How many cells `list` selects."""
    with contextlib.redirect_stdout(io.StringIO()) as listing:
        assert main(["list", *arguments]) == 0
    return len(listing.getvalue().splitlines())


def spread(name: str, side: str) -> str:
    """The least and the greatest figure of the releases that were measured."""
    found = sorted(getattr(loops(jax)[name], side) for jax in MEASURED)
    return f"{figure(found[0])} to {figure(found[-1])}"


def test_the_first_page_has_the_measured_costs() -> None:
    page = text("README.md")
    for name in ("id_tap", "call"):
        assert f"takes {spread(name, 'ours')} µs" in page, name
        assert spread(name, "theirs") in page, name


def test_the_pages_for_users_have_the_measured_costs() -> None:
    names = {"io_callback(ordered=True)": "`io_callback`, ordered"}
    for name, row in loops("0.10.2").items():
        shown = names.get(name, f"`{name}`")
        costs = f"{figure(row.ours)} / {figure(row.theirs)}"
        for page in ("docs/performance.md", "docs/callbacks/index.md"):
            lines = (PROJECT / page).read_text(encoding="utf-8").splitlines()
            found = [line for line in lines if line.startswith(f"| {shown} |") and " / " in line]
            assert found and f"| {costs} " in found[0], f"{page}: {shown} takes {costs} µs"


@pytest.mark.thorough
def test_the_numbers_of_cells_are_those_of_the_plan() -> None:
    # JAX 0.10.2 has no callbacks of its own on oneAPI.
    for name in ("rocm", "oneapi"):
        lowered = cells("--platform", name, "--depth", "lower", "--smoke")
        assert re.search(rf"\b{lowered} (cells|for oneAPI)", text("README.md"))
    tpu, cuda = (
        cells("--platform", name, "--depth", "lower", "-k", CELLS[f"compiled_for_{name}"]) for name in ("tpu", "cuda")
    )
    assert f"{tpu} cells" in text("README.md")
    assert f"{tpu} cells for TPU and {cuda} for CUDA" in text("docs/platforms.md")


def test_the_pages_count_the_cells_of_a_run_alike() -> None:
    measured = int(re.findall(r"([\d,]+) cells took", text("docs/benchmarks.md"))[0].replace(",", ""))
    for page in ("README.md", "CHANGELOG.md"):
        assert f"about {round(measured, -2):,} cells" in text(page)


def test_the_run_on_a_gpu_is_the_same_on_both_pages() -> None:
    passed, of = re.findall(r"on one H100: ([\d,]+) of ([\d,]+) cells", text("README.md"))[0]
    assert f"| {of} | {passed} |" in text("docs/platforms.md")


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_the_number_of_bugs_is_that_of_their_pages(page: str) -> None:
    programs = len(list((PROJECT / "docs" / "jax-bugs").glob("*.py")))
    assert re.search(rf"\b{programs} (ways|bugs)\b", text(page)), f"{programs} programs in docs/jax-bugs"
