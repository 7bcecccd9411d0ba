"""`diff`: what differs between two results, and the table of more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from results_fakes import KNOWN, LOST, PASSED, cell, write

from conformance.cli.commands import main
from conformance.reports.columns import comparison, sides
from conformance.reports.results import load_results
from conformance.reports.table import Table

pytestmark = pytest.mark.contract("C1", "C8")

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
        folders = [f"A={write(self._folder / 'before', *before)}"]
        if after is not None:
            folders.append(f"B={write(self._folder / 'after', *after, **fields)}")
        code = main(["diff", *folders, *options])
        out, self.error = self._capsys.readouterr()
        return code, out.splitlines()


@pytest.fixture
def runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(tmp_path, capsys)


OTHER = LOST | {"id": "hostcb/call/cond/cpu-8dev"}
DIFFERENCES = {
    "nothing": ([PASSED, LOST], [PASSED, LOST], 0, "0 fixed, 0 broken, 0 changed, 0 new, 0 gone"),
    "fixed": ([LOST], [cell(LOST["id"])], 0, "FIXED: hostcb/call/scan/cpu-8dev: fail at callback (lost) -> pass"),
    "broken": ([cell(LOST["id"])], [LOST], 1, "BROKEN: hostcb/call/scan/cpu-8dev: pass -> fail at callback (lost)"),
    "other anomaly": ([LOST], [LOST | {"anomaly": "order"}], 1, "fail at callback (lost) -> fail at callback (order)"),
    "other words": ([LOST], [LOST | {"witness": "lost: cpu:2 never ran #5"}], 0, "0 changed"),
    "new": ([PASSED], [PASSED, OTHER], 0, "NEW: hostcb/call/cond/cpu-8dev: fail at callback (lost)"),
    "gone": ([PASSED, OTHER], [PASSED], 1, "GONE: hostcb/call/cond/cpu-8dev: fail at callback (lost)"),
    "all gone": ([PASSED], [], 1, f"GONE: {PASSED['id']}: pass"),
}


@pytest.mark.parametrize(("before", "after", "code", "line"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_differences(runs: Runs, before: list[Any], after: list[Any], code: int, line: str) -> None:
    found, lines = runs.diff(before, after)
    assert found == code
    assert any(line in each for each in lines)


def test_what_fails_by_chance_is_shown_and_is_no_failure(runs: Runs) -> None:
    known = KNOWN["known"] | {"intermittent": True}
    fails, passes = KNOWN | {"known": known}, cell(KNOWN["id"], known=known, expected="fail")
    code, lines = runs.diff([passes], [fails])
    assert (code, lines[0]) == (0, f"INTERMITTENT: {KNOWN['id']}: pass -> fail at callback (order)")
    assert lines[-1] == "0 fixed, 0 broken, 0 changed, 0 new, 0 gone, 1 intermittent"
    code, lines = runs.diff([fails], [passes])
    assert (code, lines[0]) == (0, f"INTERMITTENT: {KNOWN['id']}: fail at callback (order) -> pass")
    assert runs.diff([fails], [fails])[1] == ["0 fixed, 0 broken, 0 changed, 0 new, 0 gone"]
    # It fails, and not in the known way.
    assert runs.diff([passes], [fails | {"verdict": "hang", "status": "changed_failure"}])[0] == 1


def test_cells_of_one_side_are_counted_with_the_reason(runs: Runs) -> None:
    left_out = [{"id": TWO, "reason": LACKED}, {"id": THREE, "reason": LACKED}]
    three = [cell(ONE), cell(TWO), cell(THREE)]
    code, lines = runs.diff(three, [cell(ONE)], ineligible=left_out)
    assert (code, lines[0]) == (1, f"GONE: {TWO}: pass -> not applicable: {LACKED}")
    code, lines = runs.diff(three, [cell(ONE)], "--only-common", ineligible=left_out)
    assert (code, lines[0]) == (0, f"only in A: 2 cells not applicable in B: {LACKED}")
    assert runs.diff([cell(ONE)], three, "--only-common") == (
        0,
        ["only in B: 2 cells not selected in A", "0 fixed, 0 broken, 0 changed, 2 new, 0 gone"],
    )
    assert runs.diff([cell(ONE), cell(TWO)], [failing(ONE)], "--only-common")[0] == 1


OF_HOSTCB = ONE.replace("jax/", "hostcb/")


def test_two_implementations(runs: Runs) -> None:
    both = [cell(OF_HOSTCB), failing(ONE), PASSED]
    code, lines = runs.diff(both, None, "--implementation", "hostcb", "--implementation", "jax")
    assert code == 1
    assert lines[0] == "BROKEN: */pure_callback/jit/cpu-1dev: pass -> fail at callback (lost)"
    assert lines[-2:] == [
        "only in hostcb: 1 cell not selected in jax",
        "0 fixed, 1 broken, 0 changed, 0 new, 1 gone",
    ]
    code, lines = runs.diff(both, None, "--implementation", "jax", "--implementation", "hostcb")
    assert code == 0
    assert lines[0].startswith("FIXED: ")
    # Each in a folder of its own.
    code, lines = runs.diff([cell(OF_HOSTCB)], [failing(ONE)], "--implementation", "hostcb", "--implementation", "jax")
    assert lines[-1] == "0 fixed, 1 broken, 0 changed, 0 new, 0 gone"


@pytest.mark.parametrize(
    ("after", "options", "message"),
    [
        ([cell(ONE)], ["-k", "grad"], "no cell matches grad"),
        ([cell(ONE)], ["-k", "jit and"], "a word is missing"),
        ([cell(TWO)], ["--only-common"], "A and B have no cell in common"),
        (None, [], "a comparison needs two columns, and there is 'A' alone"),
        (None, ["--implementation", "hostcb", "--implementation", "jax"], "there is 'jax' alone"),
    ],
)
def test_nothing_to_compare(runs: Runs, after: list[Any] | None, options: list[str], message: str) -> None:
    assert runs.diff([cell(ONE)], after, *options) == (2, [])
    assert runs.error.startswith("ERROR: ") and message in runs.error


# More than two.

AGREED = cell("jax/io_callback/scan/cpu-8dev")


def table_of(tmp_path: Path, *columns: list[dict[str, Any]]) -> Table:
    folders = [write(tmp_path / f"c{number}", *cells) for number, cells in enumerate(columns)]
    return comparison(sides({folder.name: load_results(folder) for folder in folders}))


def test_cells_that_differ_are_grouped_and_the_others_counted(tmp_path: Path) -> None:
    first, second = cell("jax/a/jit/cpu-1dev"), cell("jax/b/jit/cpu-1dev")
    lost = [failing(one["id"]) for one in (first, second)]
    table = table_of(tmp_path, [first, second, AGREED], [*lost, AGREED], [first, second, AGREED])
    ((words, rows),) = table.groups.items()
    assert [row.cell for row in rows] == [first["id"], second["id"]]
    assert words == ("pass", "fail at callback (lost)", "pass")
    assert table.summary() == "3 cells with 3 columns: 2 differ, 1 agree (1 pass)."
    printed = table.markdown()
    assert "## 2 cells: pass in c0, c2; fail at callback (lost) in c1" in printed
    assert f"With c1: {LOST['witness']}" in printed


def test_cells_of_one_column_and_environments_that_differ_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = {"cpu-8dev": {"jax": "0.12.0", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}}
    before, after = write(tmp_path / "before", AGREED, cell(ONE)), write(tmp_path / "after", AGREED)
    third = write(tmp_path / "third", failing(AGREED["id"]), run_info=info)
    assert main(["diff", str(before), f"new={after}", str(third)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "2 cells with 3 columns: 1 differ, 0 agree, 1 ran in one column at most (1 pass)." in printed
    assert "- 1 cell ran in before alone" in printed
    # What is the same in all columns is not shown.
    assert printed[printed.index("## Environments") + 4 :][:2] == ["| jax | 0.12.0.1 | 0.12.0.1 | 0.12.0 |", ""]
