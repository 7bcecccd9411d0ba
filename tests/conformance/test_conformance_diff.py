"""Comparisons of runs that selected different cells, and of implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_conformance_reports import KNOWN, LOST, PASSED, cell, write

from conformance.cli.commands import main

pytestmark = pytest.mark.contract("C1")

ONE, TWO, THREE = (f"jax/pure_callback/{program}/cpu-1dev" for program in ("jit", "vmap", "scan"))
LACKED = "jax has no buffer_callback"


def failing(cell_id: str, **fields: Any) -> dict[str, Any]:
    return LOST | {"id": cell_id} | fields


class Runs:
    """Two results folders, and what `diff` says about them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self.error = ""

    def diff(self, before: list[Any], after: list[Any] | None, *options: str, **fields: Any) -> tuple[int, list[str]]:
        folders = [str(write(self._folder / "before", *before))]
        if after is not None:
            folders.append(str(write(self._folder / "after", *after, **fields)))
        code = main(["diff", *folders, *options])
        out, self.error = self._capsys.readouterr()
        return code, out.splitlines()


@pytest.fixture
def runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(tmp_path, capsys)


def test_a_side_that_is_a_subset_is_said(runs: Runs) -> None:
    before, after = [cell(ONE), cell(TWO), failing(THREE)], [cell(ONE)]
    code, lines = runs.diff(before, after)
    assert code == 1
    assert lines == [
        f"GONE: {TWO}: pass",
        f"GONE: {THREE}: fail at callback (lost)",
        "only in A: 2 cells not selected in B",
        "0 fixed, 0 broken, 0 changed, 0 new, 2 gone",
    ]
    assert runs.diff(before, after, "--only-common") == (0, lines[2:])
    assert runs.diff(after, before, "--only-common") == (
        0,
        ["only in B: 2 cells not selected in A", "0 fixed, 0 broken, 0 changed, 2 new, 0 gone"],
    )


def test_what_a_release_lacks_is_said_with_its_reason(runs: Runs) -> None:
    left_out = [{"id": TWO, "reason": LACKED}, {"id": THREE, "reason": LACKED}]
    before, after = [cell(ONE), cell(TWO), cell(THREE)], [cell(ONE)]
    code, lines = runs.diff(before, after, ineligible=left_out)
    assert code == 1
    assert lines[0] == f"GONE: {TWO}: pass -> not applicable: {LACKED}"
    code, lines = runs.diff(before, after, "--only-common", ineligible=left_out)
    assert (code, lines[0]) == (0, f"only in A: 2 cells not applicable in B: {LACKED}")


def test_only_common_still_fails_for_what_broke(runs: Runs) -> None:
    code, lines = runs.diff([cell(ONE), cell(TWO)], [failing(ONE)], "--only-common")
    assert code == 1
    assert lines[0] == f"BROKEN: {ONE}: pass -> fail at callback (lost)"


def test_expressions_choose_cells_of_both_sides(runs: Runs) -> None:
    before, after = [cell(ONE), cell(TWO)], [failing(ONE), failing(THREE)]
    assert runs.diff(before, after, "-k", "vmap")[1][-1] == "0 fixed, 0 broken, 0 changed, 0 new, 1 gone"
    assert runs.diff(before, after, "-k", "/jit/", "-k", "vmap")[1][-1].startswith(
        "0 fixed, 1 broken, 0 changed, 0 new"
    )
    assert runs.diff(before, before, "-k", "not vmap") == (0, ["0 fixed, 0 broken, 0 changed, 0 new, 0 gone"])


def test_what_comes_and_goes_by_chance_is_shown(runs: Runs) -> None:
    known = KNOWN["known"] | {"intermittent": True}
    fails, passes = KNOWN | {"known": known}, cell(KNOWN["id"], known=known, expected="fail")
    assert runs.diff([passes], [fails]) == (
        0,
        [
            f"INTERMITTENT: {KNOWN['id']}: pass -> fail at callback (order)",
            f"    {KNOWN['witness']}",
            f"    {KNOWN['reproduce']}",
            "0 fixed, 0 broken, 0 changed, 0 new, 0 gone, 1 intermittent",
        ],
    )
    assert runs.diff([fails], [passes])[1][0] == f"INTERMITTENT: {KNOWN['id']}: fail at callback (order) -> pass"
    assert runs.diff([fails], [fails])[1] == ["0 fixed, 0 broken, 0 changed, 0 new, 0 gone"]


OF_HOSTCB = ONE.replace("jax/", "hostcb/")


def test_two_implementations(runs: Runs) -> None:
    both = [cell(OF_HOSTCB), failing(ONE), PASSED]
    expected = [
        "BROKEN: pure_callback/jit/cpu-1dev: pass -> fail at callback (lost)",
        f"    {LOST['witness']}",
        f"    {LOST['reproduce']}",
        "only in hostcb: 1 cell not selected in jax",
        "0 fixed, 1 broken, 0 changed, 0 new, 1 gone",
    ]
    options = ("--implementations", "hostcb", "jax", "--only-common")
    # Of two folders, and of one that has both.
    assert runs.diff(both, [failing(ONE)], *options) == (1, expected)
    assert runs.diff(both, None, *options) == (1, expected)
    code, lines = runs.diff(both, None, "--implementations", "jax", "hostcb")
    assert code == 0
    assert lines[0] == "FIXED: pure_callback/jit/cpu-1dev: fail at callback (lost) -> pass"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-k", "grad"], "no cell of A or B answers to grad"),
        (["-k", "jit and"], "a word is missing"),
        (["--implementations", "hostcb", "jax"], "there is no cell of hostcb, only of jax"),
    ],
)
def test_nothing_to_compare(runs: Runs, options: list[str], message: str) -> None:
    assert runs.diff([cell(ONE)], [cell(ONE)], *options) == (2, [])
    assert runs.error.startswith("ERROR: ") and message in runs.error


def test_sides_that_share_nothing(runs: Runs) -> None:
    assert runs.diff([cell(ONE)], [cell(TWO)], "--only-common") == (2, [])
    assert runs.error == "ERROR: A and B have no cell in common\n"
    assert runs.diff([cell(ONE)], None) == (2, [])
    assert "name two results directories" in runs.error
